//! `weft proxy`: programs of the host use the tunnel, and the host has no interface.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::SockRef;
use weft_lab::{Namespace, Process, here, link, until, wait_until_ok, within};

use crate::capture::Port;
use crate::names;
use crate::network::congestion;
use crate::support::{BEHIND, Ended, World, page, url};

/// The port of the HTTP proxy.
const HTTP: &str = "3128";
/// A server behind the gateway.
const SERVER: &str = "203.0.113.1:80";

/// Runs tests with the TCP/IP of the kernel, and with weft's own.
macro_rules! with_each_stack {
    ($($test:ident)+) => {
        mod kernel {
            $(#[test] fn $test() { super::$test("kernel"); })+
        }
        mod own {
            $(#[test] fn $test() { super::$test("own"); })+
        }
    };
}

with_each_stack! {
    curl_uses_the_tunnel_through_each_proxy_and_nothing_leaves_beside_it
    names_are_looked_up_through_the_tunnel_only
    what_is_outside_the_tunnel_is_refused_or_goes_by_the_host
    datagrams_and_reverse_forwards_cross_the_tunnel
    standard_input_and_output_are_a_connection_for_ssh
    a_connection_of_standard_input_and_output_that_is_cut_short_fails
    what_came_from_standard_input_arrives_before_the_end
    what_standard_output_does_not_take_and_standard_input_does_not_give_is_told
    a_running_proxy_follows_the_allowed_ips_of_a_reload
    a_proxy_that_cannot_start_says_why_and_leaves_nothing
    a_password_lets_other_machines_in
    the_proxy_ends_with_weft
}

impl World {
    /// `weft proxy FILE OPTIONS`.
    pub(crate) fn proxy_command(&self, file: &Path, options: &[&str]) -> Command {
        self.weft(&[&["proxy", file.to_str().unwrap(), "--stack", self.stack], options].concat())
    }

    /// Starts a proxy with these options, and waits until it serves.
    pub(crate) fn proxy(&self, file: &Path, options: &[&str]) -> Process {
        let process = Process::start(&self.client, self.proxy_command(file, options)).unwrap();
        process.wait_for_line("serving");
        process
    }

    /// Runs `weft proxy` to its end.
    fn proxy_output(&self, file: &Path, options: &[&str]) -> Ended {
        self.proxy_command(file, options).output().unwrap().into()
    }

    /// Gets a page from the HTTP proxy that tests start at [`HTTP`].
    fn get(&self, url: &str) -> Ended {
        self.curl(&["--proxy", &format!("http://127.0.0.1:{HTTP}"), url])
    }

    /// A directory in which the user may make files.
    fn own_directory(&self) -> PathBuf {
        let path = self.directory.path().join("own");
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(self.user), Some(self.user)).unwrap();
        path
    }

    /// The file of a tunnel for some destinations.
    fn split_file(&self) -> PathBuf {
        let file = self.file("");
        let text = std::fs::read_to_string(&file).unwrap();
        self.write("split.conf", &text.replace("0.0.0.0/0, ::/0", "203.0.113.0/24, 10.77.0.0/24"))
    }
}

fn curl_uses_the_tunnel_through_each_proxy_and_nothing_leaves_beside_it(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    world.serve_page(80);
    let mut outside = [Port::open(&world.gateway, "wan"), Port::open(&world.client, "wan")];
    let socket = world.own_directory().join("socks");
    let forwards = ["--forward", "8081=203.0.113.1:80", "--forward", "8082=[2001:db8:ff::1]:80"];
    let proxies = ["--socks5", "1080", "--http", HTTP, "--socks5", "own/socks"];
    let process = world.proxy(&world.file(""), &[&proxies[..], &forwards].concat());
    let mut seen = BTreeSet::new();
    // After each page: the socket that sees all packets has room for those of a few.
    let mut get = |arguments: &[&str], own: &str| {
        let ended = world.curl(arguments);
        assert!(ended.code == Some(0), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stdout == page(own), "{arguments:?}: the page of {own} differs");
        let [gateway, client] = &mut outside;
        seen.extend(gateway.take(client));
    };
    for (host, own, forward) in [(BEHIND[0], "10.77.0.2", 8081), (BEHIND[1], "fd77::2", 8082)] {
        for proxy in ["socks5h://127.0.0.1:1080", "socks5://127.0.0.1:1080", "http://127.0.0.1:3128"] {
            get(&["--proxy", proxy, &url(host)], own);
        }
        get(&["--proxy", "http://127.0.0.1:3128", "--proxytunnel", &url(host)], own);
        get(&[&format!("http://127.0.0.1:{forward}/")], own);
    }
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // curl 8 takes the path of a Unix socket for localhost.
    let unix = format!("socks5h://localhost{}", socket.display());
    get(&["--proxy", &unix, &url(BEHIND[0])], "10.77.0.2");
    // An address of the host itself, and one that no program listens on.
    let own = world.get("http://127.0.0.1:3128/");
    assert!(own.text().contains("127.0.0.1 is an address of this machine itself"), "{own:?}");
    let closed = world.get("http://203.0.113.1:81/");
    assert!(closed.text().contains("cannot connect to 203.0.113.1:81: "), "{closed:?}");

    let is_allowed =
        |packet: &&String| *packet == "udp 192.0.2.2 51820" || packet.starts_with("icmpv6 ff02::");
    assert!(seen.iter().all(|packet| is_allowed(&packet)), "past the tunnel: {seen:?}");
    assert!(thread_is_filtered(&process, "weft-proxy"));
    process.stop();
    assert!(world.processes().is_empty() && !socket.exists());
}

#[test]
fn a_client_that_speaks_another_protocol_leaves_a_line_in_the_log() {
    let Some(world) = World::new() else { return };
    let process = world.proxy(&world.file(""), &["--socks5", "1080", "--http", HTTP]);
    let open =
        "SOCKS5 on 127.0.0.1:1080, HTTP on 127.0.0.1:3128: every user of this machine can reach the tunnel";
    assert!(process.log().contains(open), "{}", process.log());
    for (port, request, line) in [
        (1080, &[4, 1, 0, 80, 10, 9, 0, 1, 0][..], "it speaks SOCKS4, and this port SOCKS5 alone"),
        (1080, b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP, and this port SOCKS5 alone"),
        (1080, &[22, 3, 1, 0], "it speaks TLS, and this port SOCKS5 alone"),
        (3128, &[5, 1, 0], "it does not speak HTTP"),
    ] {
        // A line a second is written at most, by each proxy.
        until(line, || {
            world.client.run(|| {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                // It may have hung up meanwhile.
                let _ = stream.write_all(request);
                let _ = stream.read_to_end(&mut Vec::new());
            });
            process.log().contains(line)
        });
    }
    process.stop();
}

#[test]
fn a_client_that_gives_way_to_another_one_leaves_a_line_in_the_log() {
    let Some(world) = World::on("own") else { return };
    let weft = world.directory.path().join("weft");
    // A quarter is for the tunnel, and a client takes three.
    let limited = ["-c", "ulimit -n 128; exec \"$@\"", "sh", weft.to_str().unwrap(), "proxy"];
    let file = world.file("");
    let options = [file.to_str().unwrap(), "--stack", "own", "--socks5", "1080"];
    let command = world.as_user("sh", &[&limited[..], &options].concat());
    let process = Process::start(&world.client, command).unwrap();
    process.wait_for_line("serving");
    let connect = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, 1080)).unwrap();
    let _clients: Vec<_> = world.client.run(|| (0..33).map(connect).collect());
    process.wait_for_line(
        "SOCKS5 on 127.0.0.1:1080: all 32 places are taken; a client gives way to another one: 127.0.0.1",
    );
    process.stop();
}

/// Reports whether a thread of the process may make the system calls of its role alone.
fn thread_is_filtered(process: &Process, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let mut threads = tasks.flatten().filter_map(status);
    let thread = threads.find(|status| status.starts_with(&format!("Name:\t{name}\n")));
    thread.unwrap().contains("\nSeccomp:\t2\n")
}

fn names_are_looked_up_through_the_tunnel_only(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    names::serve(&world, "10.77.0.1");
    let named = Ipv4Addr::from(names::ANSWER);
    link::add_address(&world.gateway, "lo", std::net::IpAddr::from(named).into()).unwrap();
    let listener = world.gateway.run(|| TcpListener::bind((named, 80))).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.0 200 OK\r\n\r\nfound");
        }
    });
    let proxies = ["--socks5", "1080", "--http", HTTP];
    let with_dns = world.proxy(&world.file("DNS = 10.77.0.1"), &proxies);
    for proxy in ["socks5h://127.0.0.1:1080", "http://127.0.0.1:3128"] {
        let ended = world.curl(&["--proxy", proxy, "http://any.example/"]);
        assert_eq!((ended.code, ended.text().as_str()), (Some(0), "found"), "{}", ended.stderr);
    }
    with_dns.stop();
    let without = world.proxy(&world.file(""), &proxies);
    let ended = world.get("http://any.example/");
    assert!(ended.text().contains("there is no DNS server (add DNS = ADDRESS to [Interface]"), "{ended:?}");
    without.stop();
    let given = world.proxy(&world.file(""), &["--http", HTTP, "--dns", "10.77.0.1"]);
    let ended = world.get("http://any.example/");
    assert_eq!(ended.text(), "found");
    given.stop();
}

fn what_is_outside_the_tunnel_is_refused_or_goes_by_the_host(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    world.serve_page(80);
    let file = world.split_file();
    // The gateway's outer address: the host has a way to it.
    let listener = world.gateway.run(|| TcpListener::bind("192.0.2.2:80")).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, from)) = listener.accept() {
            let _ = client.read(&mut [0; 4096]);
            let _ = write!(client, "HTTP/1.0 200 OK\r\n\r\n{}", from.ip());
        }
    });
    let refusing = world.proxy(&file, &["--http", HTTP]);
    let refused = world.get("http://192.0.2.2/");
    assert!(refused.text().contains("192.0.2.2 is in the AllowedIPs of no peer"), "{refused:?}");
    let inside = world.get("http://203.0.113.1/");
    assert!(inside.stdout == page("10.77.0.2"), "{}", inside.stderr);
    refusing.stop();
    let direct = world.proxy(&file, &["--http", HTTP, "--elsewhere", "direct"]);
    assert_eq!(world.get("http://192.0.2.2/").text(), "192.0.2.1");
    // This machine by its other addresses, and what is reached from it alone: containers, and metadata.
    let container = Namespace::new("container").unwrap();
    let options = link::LinkOptions {
        name_a: "docker0".to_owned(),
        addresses_a: vec!["172.17.0.1/16".parse().unwrap()],
        addresses_b: vec!["172.17.0.2/16".parse().unwrap()],
        ..link::LinkOptions::default()
    };
    link::join(&world.client, &container, &options).unwrap();
    for (address, reason) in [
        ("192.0.2.1", "192.0.2.1 is an address of this machine itself"),
        ("[::ffff:192.0.2.1]", "192.0.2.1 is an address of this machine itself"),
        ("172.17.0.1", "172.17.0.1 is an address of this machine itself"),
        ("172.17.0.2", "172.17.0.2 is in 172.17.0.0/16, the network of docker0 on this machine"),
        ("169.254.169.254", "169.254.169.254 is link-local (--elsewhere-allow 169.254.169.254 "),
    ] {
        let refused = world.get(&format!("http://{address}/"));
        assert!(refused.text().contains(reason), "{refused:?}");
    }
    let inside = world.get("http://203.0.113.1/");
    assert!(inside.stdout == page("10.77.0.2"), "{}", inside.stderr);
    direct.stop();
}

fn datagrams_and_reverse_forwards_cross_the_tunnel(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    let path = world.own_directory().join("page.sock");
    let options = [
        "--forward",
        "udp:5353=10.77.0.1:7000",
        "--reverse",
        "80=3000",
        "--reverse",
        "udp:10.77.0.2:53=3001",
        "--forward",
        "own/page.sock=203.0.113.1:80",
    ];
    world.serve_page(80);
    let process = world.proxy(&world.file(""), &options);
    let bind = |at: &str| UdpSocket::bind(at).unwrap();
    let server = world.gateway.run(|| bind("10.77.0.1:7000"));
    let client = world.client.run(|| bind("127.0.0.1:0"));
    let mut buffer = [0; 2000];
    for len in [1, 1200] {
        client.send_to(&vec![7; len], "127.0.0.1:5353").unwrap();
        let (got, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!((got, from.ip().to_string().as_str()), (len, "10.77.0.2"));
        server.send_to(&buffer[..got], from).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), len);
    }
    // From the tunnel to services of the host.
    let service = world.client.run(|| bind("127.0.0.1:3001"));
    let asking = world.gateway.run(|| bind("10.77.0.1:0"));
    asking.send_to(b"question", "10.77.0.2:53").unwrap();
    let (got, from) = service.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..got], b"question");
    service.send_to(b"answer", from).unwrap();
    let (got, from) = asking.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..got], from), (&b"answer"[..], SocketAddr::from(([10, 77, 0, 2], 53))));
    let service = world.client.run(|| TcpListener::bind("127.0.0.1:3000")).unwrap();
    for to in ["10.77.0.2:80", "[fd77::2]:80"] {
        let mut asking = world.gateway.run(|| TcpStream::connect(to)).unwrap();
        let (mut served, _) = service.accept().unwrap();
        asking.write_all(b"question").unwrap();
        served.read_exact(&mut buffer[..8]).unwrap();
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut answer = String::new();
        asking.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&page("10.77.0.2")));
    process.stop();
}

/// `weft proxy FILE --stdio` to [`SERVER`], with pipes.
fn start_stdio(world: &World) -> (Child, ChildStdin) {
    let mut command = world.proxy_command(&world.file(""), &["--stdio", SERVER]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let input = child.stdin.take().unwrap();
    (child, input)
}

/// Waits for the end of a process, which has to come while its standard input is open.
fn end_of(child: Child) -> Ended {
    within("it ends", move || child.wait_with_output()).unwrap().into()
}

fn standard_input_and_output_are_a_connection_for_ssh(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    world.serve_page(80);
    let (mut child, mut input) = start_stdio(&world);
    input.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    // ssh ends when it hears of the end, and closes its side then.
    let mut output = child.stdout.take().unwrap();
    let answer = within("standard output ends", move || {
        let mut answer = Vec::new();
        output.read_to_end(&mut answer).map(|_| answer)
    });
    assert!(answer.unwrap().ends_with(&page("10.77.0.2")));
    drop(input);
    let ended = end_of(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let refused = world.proxy_output(&world.file(""), &["--stdio", "203.0.113.1:81"]);
    assert_eq!((refused.code, refused.stdout.len()), (Some(1), 0));
    assert!(refused.stderr.contains("cannot connect to 203.0.113.1:81: "), "{refused:?}");
    assert!(world.processes().is_empty());
}

fn a_connection_of_standard_input_and_output_that_is_cut_short_fails(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    let listener = world.gateway.run(|| TcpListener::bind(SERVER)).unwrap();
    // A byte crosses it: a reset that comes before weft sees the connection is one that cannot be made.
    let accept = |mut input: &ChildStdin| {
        input.write_all(b"x").unwrap();
        let listener = listener.try_clone().unwrap();
        within("the connection arrives", move || {
            let mut server = listener.accept().unwrap().0;
            server.read_exact(&mut [0]).unwrap();
            server
        })
    };
    let reset = |server: TcpStream| {
        SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
    };
    let failed = format!("error: the connection to {SERVER} has failed: ");

    let (child, input) = start_stdio(&world);
    reset(accept(&input));
    let ended = end_of(child);
    assert!(ended.code == Some(1) && ended.stderr.contains(&failed), "{ended:?}");
    drop(input);

    // It has sent everything, and takes nothing.
    let (mut child, input) = start_stdio(&world);
    let server = accept(&input);
    server.shutdown(Shutdown::Write).unwrap();
    let mut output = child.stdout.take().unwrap();
    within("standard output ends", move || output.read(&mut [0])).unwrap();
    reset(server);
    let ended = end_of(child);
    assert!(ended.code == Some(1) && ended.stderr.contains(&failed), "{ended:?}");
    drop(input);

    for (signal, code, told) in [
        (Signal::SIGINT, 1, "error: ended by SIGINT before the connection to"),
        (Signal::SIGTERM, 1, "error: ended by SIGTERM before the connection to"),
        // ssh(1) sends it when it needs no more.
        (Signal::SIGHUP, 0, ""),
    ] {
        let (child, input) = start_stdio(&world);
        let mut server = accept(&input);
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let ended = end_of(child);
        assert!(ended.code == Some(code) && ended.stderr.contains(told), "{signal}: {ended:?}");
        // The own stack ends first.
        if stack == "kernel" {
            let end = within("the server hears of it", move || server.read(&mut [0]));
            assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        }
        drop(input);
    }
    assert!(world.processes().is_empty());
}

fn what_came_from_standard_input_arrives_before_the_end(stack: &'static str) {
    const BYTES: usize = 1 << 20;
    let Some(world) = World::on(stack) else { return };
    if !here::installed(&["tc"]) {
        return;
    }
    world.limit_rate(1 << 19);
    let listener = world.gateway.run(|| TcpListener::bind(SERVER)).unwrap();
    let (child, mut input) = start_stdio(&world);
    let mut server = within("the connection arrives", move || listener.accept()).unwrap().0;
    // Nothing but the end of standard input is waited for then.
    server.shutdown(Shutdown::Write).unwrap();
    let writing = std::thread::spawn(move || input.write_all(&[7; BYTES]));
    let received = within("everything arrives", move || {
        let mut received = Vec::new();
        server.read_to_end(&mut received).map(|_| received)
    });
    assert_eq!(received.unwrap().len(), BYTES);
    writing.join().unwrap().unwrap();
    let ended = end_of(child);
    assert!(ended.code == Some(0) && ended.stderr.is_empty(), "{ended:?}");
}

fn what_standard_output_does_not_take_and_standard_input_does_not_give_is_told(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    let listener = world.gateway.run(|| TcpListener::bind(SERVER)).unwrap();
    let file = world.file("");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, gone) = std::io::pipe().unwrap();
    drop(reader);
    for (output, code, told) in [
        (Stdio::from(full), 1, "cannot write to standard output: No space left"),
        // As with other programs of a pipe, its reader wants no more.
        (gone.into(), 0, ""),
    ] {
        let mut command = world.proxy_command(&file, &["--stdio", SERVER]);
        command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let listener = listener.try_clone().unwrap();
        let mut server = within("the connection arrives", move || listener.accept()).unwrap().0;
        server.write_all(b"hello").unwrap();
        let ended = end_of(child);
        assert!(ended.code == Some(code) && ended.stderr.contains(told), "{ended:?}");
        let end = within("the server hears of it", move || server.read(&mut [0]));
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "{told}");
        drop(input);
    }
    let mut command = world.proxy_command(&file, &["--stdio", SERVER]);
    let ended = Ended::from(command.stdin(File::open("/").unwrap()).output().unwrap());
    let told = "cannot read standard input: Is a directory";
    assert!(ended.code == Some(1) && ended.stderr.contains(told), "{ended:?}");
}

fn a_running_proxy_follows_the_allowed_ips_of_a_reload(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    world.serve_page(80);
    let file = world.split_file();
    let command = world.proxy_command(&file, &["--http", HTTP]);
    let process = Process::start(&world.client, world.in_session(command)).unwrap();
    process.wait_for_line("serving");
    let get = |host: &str| world.get(&url(host));
    let told = |host: &str| format!("{host} is in the AllowedIPs of no peer");
    assert!(get(BEHIND[1]).text().contains(&told(BEHIND[1])));

    let text = std::fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        world.write("split.conf", text);
        let reloaded = world.weft_in_session(&["reload", file.to_str().unwrap()]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        format!("{reloaded:?}").contains("Address and MTU are those of the start")
    };
    let other = text.replace("203.0.113.0/24", "2001:db8:ff::/64");
    assert!(!reload(&other));
    // The proxy hears of it a moment later.
    until("the other prefix is reached", || get(BEHIND[1]).stdout == page("fd77::2"));
    assert!(get(BEHIND[0]).text().contains(&told(BEHIND[0])));
    // The device of the kernel follows it.
    assert_eq!(reload(&other.replace("[Interface]\n", "[Interface]\nMTU = 1300\n")), stack == "own");
    process.stop();
}

fn a_proxy_that_cannot_start_says_why_and_leaves_nothing(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    let file = world.file("");
    let users = world.write("users", "ann\n");
    let _busy = world.client.run(|| TcpListener::bind("127.0.0.1:1081")).unwrap();
    for (options, code, told) in [
        (&[][..], 2, "nothing to serve: give --socks5, --http, --forward, --reverse or --stdio"),
        (&["--socks5", "0.0.0.0:1080"], 2, "SOCKS5 on 0.0.0.0:1080 would let every machine"),
        (&["--http", "[::]:3128"], 2, "--allow-anyone"),
        (&["--socks5", "example.com:1080"], 2, "an address of this host is PORT"),
        (&["--forward", "8080"], 2, "[udp:]FROM=TO"),
        (&["--stdio", "203.0.113.1:80", "--http", HTTP], 2, "cannot be used with"),
        (
            &["--socks5", "1080", "--password-file", users.to_str().unwrap()],
            78,
            "users:1: a line is USER:PASSWORD",
        ),
        (&["--socks5", "1080", "--password-file", "none"], 78, "cannot read none: "),
        (
            &["--socks5", "1080", "--socks5", "1081"],
            1,
            "cannot listen on 127.0.0.1:1081 for SOCKS5: another program",
        ),
        (
            &["--http", "192.0.2.77:80", "--allow-anyone"],
            1,
            "192.0.2.77:80 for HTTP: there is no such address",
        ),
    ] {
        let ended = world.proxy_output(&file, options);
        assert!(ended.code == Some(code) && ended.stderr.contains(told), "{options:?}: {ended:?}");
        assert!(world.processes().is_empty());
    }
}

fn a_password_lets_other_machines_in(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    world.serve_page(80);
    let users = world.write("users", "ann:secret\n");
    let options =
        ["--socks5", "0.0.0.0:1080", "--http", "0.0.0.0:3128", "--password-file", users.to_str().unwrap()];
    let process = world.proxy(&world.file(""), &options);
    for proxy in ["socks5h://192.0.2.1:1080", "http://192.0.2.1:3128"] {
        let ask = |user: &str| {
            let mut command = world.gateway.command("curl");
            command.args(["--silent", "--noproxy", "", "--proxy", proxy, "--proxy-user", user]);
            Ended::from(command.arg(url(BEHIND[0])).output().unwrap())
        };
        assert!(ask("ann:secret").stdout == page("10.77.0.2"), "{proxy}");
        assert!(!ask("ann:wrong").text().starts_with("10.77.0.2"), "{proxy}");
    }
    assert!(!process.log().contains("secret"));
    process.stop();
}

fn the_proxy_ends_with_weft(stack: &'static str) {
    let Some(world) = World::on(stack) else { return };
    let mut process = world.proxy(&world.file(""), &["--socks5", "1080"]);
    process.signal(Signal::SIGKILL);
    process.wait();
    until("nothing of the user is left", || world.processes().is_empty());
    let connected = world.client.run(|| TcpStream::connect("127.0.0.1:1080"));
    assert_eq!(connected.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

/// The congestion control of the established connection that has this port at one end, as the kernel has it.
fn congestion_of(inside: &Namespace, port: u16) -> String {
    wait_until_ok(|| {
        let filter = format!("( sport = :{port} or dport = :{port} )");
        let output = inside.command("ss").args(["-Htni", "state", "established", &filter]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // The addresses, and below them what TCP has.
        match text.lines().collect::<Vec<_>>()[..] {
            [_, information] => Ok(information.split_whitespace().next().unwrap_or_default().to_owned()),
            _ => Err(format!("one connection with port {port}: {output:?}")),
        }
    })
}

#[test]
fn connections_of_a_proxy_in_the_tunnel_have_its_congestion_control_and_no_others() {
    let Some(world) = World::new() else { return };
    if !here::installed(&["ss"]) {
        return;
    }
    let usual = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let usual = usual.trim();
    let Some(other) = congestion("available").into_iter().find(|name| name != usual) else {
        return here::not_run("this kernel has one congestion control");
    };
    let listen = |network: &Namespace, address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        network.run(|| TcpListener::bind(address)).unwrap()
    };
    let connect = |network: &Namespace, address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        network.run(|| TcpStream::connect(address)).unwrap()
    };
    let (behind, local) =
        (listen(&world.gateway, "203.0.113.1:7000"), listen(&world.client, "127.0.0.1:3000"));
    let file = world.file("");
    for (options, expected) in [(&["--congestion", &other][..], &*other), (&[], usual)] {
        let ports = ["--forward", "8081=203.0.113.1:7000", "--reverse", "8080=3000"];
        let process = world.proxy(&file, &[&ports[..], options].concat());
        let inside = world.inside();
        for (network, address, listener, port) in [
            (&world.client, "127.0.0.1:8081", &behind, 7000),
            (&world.gateway, "10.77.0.2:8080", &local, 8080),
        ] {
            let _client = connect(network, address);
            let listener = listener.try_clone().unwrap();
            let _server = within("the connection arrives", move || listener.accept()).unwrap();
            assert_eq!(congestion_of(&inside, port), expected, "through {address}");
        }
        // The namespace, and what others connect in it, keep theirs.
        let default = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        assert_eq!(inside.run(default).trim(), usual);
        process.stop();
        until("no process of the user is left", || world.processes().is_empty());
    }
    let refused = world.proxy_output(&file, &["--socks5", "1080", "--congestion", "no-such"]);
    let told = "cannot use the congestion control no-such: ";
    assert!(refused.code == Some(1) && refused.stderr.contains(told), "{refused:?}");
    assert!(refused.stderr.contains(&other), "it names what there is: {refused:?}");
}
