//! Names are looked up through the tunnel and nowhere else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use weft_lab::mounts;

use crate::capture::Port;
use crate::support::{Ended, World};

/// The name server of the gateway answers every question for an IPv4 address with this one.
pub(crate) const ANSWER: [u8; 4] = [203, 0, 113, 77];

/// Answers at an address of the gateway, for as long as the process lives.
pub(crate) fn serve(world: &World, address: &str) {
    serve_as(world, address, ANSWER.into());
}

/// The same with another answer, to questions for its family.
pub(crate) fn serve_as(world: &World, address: &str, found: IpAddr) {
    let at = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 53);
    let socket = world.gateway.run(|| UdpSocket::bind(at)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..length], found) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

/// The answer to a question (RFC 1035, section 4), with a time to live of zero.
fn answer(question: &[u8], found: IpAddr) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut end = HEADER;
    while *question.get(end)? != 0 {
        end += usize::from(question[end]) + 1;
    }
    let (kind, octets) = match found {
        IpAddr::V4(found) => (1, found.octets().to_vec()),
        IpAddr::V6(found) => (28, found.octets().to_vec()),
    };
    let is_asked = question.get(end + 1..end + 3)? == [0, kind];
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_asked), 0, 0, 0, 0]);
    answer.extend(question.get(HEADER..end + 5)?);
    if is_asked {
        answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 0, 0, octets.len() as u8]);
        answer.extend(octets);
    }
    Some(answer)
}

/// Where services of the host listen.
const SOCKETS: [&str; 3] =
    ["/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve", "/run/avahi-daemon/socket"];

#[test]
fn a_name_is_looked_up_at_the_tunnels_server_past_every_service_of_the_host() {
    let Some(world) = World::new() else { return };
    serve(&world, "10.77.0.1");
    let prepare = || {
        mounts::empty("/run")?;
        // As systemd-resolved has it: a link into a directory that is hidden.
        for socket in SOCKETS {
            std::fs::create_dir_all(Path::new(socket).parent().unwrap())?;
        }
        std::fs::write("/run/systemd/resolve/stub-resolv.conf", "nameserver 127.0.0.53\n")?;
        std::fs::write("/run/resolv.conf", "nameserver 127.0.0.53\n")?;
        mount_file("/run/resolv.conf", "/etc/resolv.conf")?;
        std::fs::write(
            "/run/nsswitch.conf",
            "passwd: files\nhosts: resolve [!UNAVAIL=return] files myhostname dns\n",
        )?;
        mount_file("/run/nsswitch.conf", "/etc/nsswitch.conf")
    };
    let work = || {
        let script =
            "getent ahostsv4 intranet.example; ls -A /run/nscd /run/systemd/resolve /run/avahi-daemon";
        // setpriv(1) may ask nscd for the user, before the services listen.
        let start = "echo ready; read go; exec ./weft exec \"$1\" -- sh -c \"$2\"";
        let file = world.file("DNS = 10.77.0.1");
        let mut command = world.as_user("sh", &["-c", start, "sh", file.to_str().unwrap(), script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        said.read_line(&mut text).unwrap();
        let services: Vec<UnixListener> = SOCKETS.map(|socket| UnixListener::bind(socket).unwrap()).into();
        for service in &services {
            service.set_nonblocking(true).unwrap();
        }
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        said.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        assert!(text.contains("203.0.113.77"), "{text}");
        for socket in SOCKETS {
            let name = Path::new(socket).file_name().unwrap().to_str().unwrap();
            assert!(!text.lines().any(|line| line == name), "{socket} is there: {text}");
        }
        let asked = services.iter().filter(|service| service.accept().is_ok()).count();
        assert_eq!(asked, 0, "services of the host were asked");
    };
    mounts::run_separate(prepare, work);
}

pub(crate) fn mount_file(from: &str, to: &str) -> std::io::Result<()> {
    use nix::mount::{MsFlags, mount};
    let none = None::<&Path>;
    Ok(mount(Some(from), to, none, MsFlags::MS_BIND, none)?)
}

#[test]
fn without_dns_no_name_is_found_and_that_is_said_unless_a_server_is_given() {
    let Some(world) = World::new() else { return };
    serve(&world, "fd77::1");
    let command = ["getent", "ahostsv4", "intranet.example"];
    let ended: Ended = world.exec(&world.file(""), &[], &command).output().unwrap().into();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("office.conf: there is no DNS") && ended.stderr.contains("--dns ADDRESS"),
        "{ended:?}"
    );
    let ended: Ended = world.exec(&world.file(""), &["--dns", "fd77::1"], &command).output().unwrap().into();
    assert!(ended.code == Some(0) && ended.text().contains("203.0.113.77"), "{ended:?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn names_are_looked_up_at_the_host_only_where_that_is_asked_for() {
    let Some(world) = World::new() else { return };
    // Outside the tunnel. The tunnel leads to none.
    serve(&world, "192.0.2.2");
    world.serve_page(80);
    let prepare = || {
        mounts::empty("/mnt")?;
        std::fs::write("/mnt/resolv.conf", "nameserver 192.0.2.2\nsearch office.example\n")?;
        mount_file("/mnt/resolv.conf", "/etc/resolv.conf")
    };
    let work = || {
        let mut outside = [Port::open(&world.gateway, "wan"), Port::open(&world.client, "wan")];
        let [gateway, client] = &mut outside;
        let mut is_asked = || gateway.take(client).contains("udp 192.0.2.2 53");
        let file = world.file("DNS = 10.77.0.1");
        let look_up = |options: &[&str]| -> Ended {
            let script = "cat /etc/resolv.conf; getent ahostsv4 intranet.example";
            let command = world.exec(&file, options, &["sh", "-c", script]);
            world.in_session(command).output().unwrap().into()
        };
        let without = look_up(&["--dns", "10.77.0.1"]);
        assert!(without.code == Some(2) && !is_asked(), "{without:?}");
        // Two commands at once: each has its address for the host's server.
        let stay = world.exec(&file, &["--dns", "host"], &["sh", "-c", "echo ready; read line"]);
        let mut stay = world.in_session(stay);
        let mut stay = stay.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(stay.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(said.next().as_deref(), Some("ready"));
        let ended = look_up(&["--dns", "host"]);
        assert!(ended.code == Some(0) && ended.text().contains("203.0.113.77"), "{ended:?}");
        assert!(ended.text().contains("search office.example"), "{ended:?}");
        assert!(is_asked());
        drop(stay.stdin.take());
        stay.wait().unwrap();

        let both = look_up(&["--dns", "host", "--dns", "10.77.0.1"]);
        assert!(both.code == Some(2) && both.stderr.contains("leave the other --dns out"), "{both:?}");
    };
    mounts::run_separate(prepare, work);
}

#[test]
fn a_proxy_looks_names_up_at_the_host_where_that_is_asked_for() {
    let Some(world) = World::new() else { return };
    serve(&world, "192.0.2.2");
    let prepare = || {
        mounts::empty("/mnt")?;
        std::fs::write("/mnt/resolv.conf", "nameserver 192.0.2.2\n")?;
        mount_file("/mnt/resolv.conf", "/etc/resolv.conf")
    };
    let work = || {
        let named = IpAddr::from(ANSWER);
        weft_lab::link::add_address(&world.gateway, "lo", named.into()).unwrap();
        let listener = world.gateway.run(|| TcpListener::bind((named, 80))).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut client, from)) = listener.accept() {
                let _ = client.read(&mut [0; 4096]);
                let _ = write!(client, "HTTP/1.0 200 OK\r\n\r\nhello {}", from.ip());
            }
        });
        let file = world.file("");
        let mut proxy = world.weft(&["proxy", file.to_str().unwrap(), "--dns", "host", "--http", "3128"]);
        // From this thread, which has the mounts.
        let mut proxy = proxy.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(proxy.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line.contains("serving")));
        let curl = world.curl(&["--proxy", "http://127.0.0.1:3128", "http://intranet.example/"]);
        assert_eq!(curl.text(), "hello 10.77.0.2", "{curl:?}");
        proxy.kill().unwrap();
        proxy.wait().unwrap();
    };
    mounts::run_separate(prepare, work);
}
