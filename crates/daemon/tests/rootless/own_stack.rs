//! `weft proxy` where namespaces and TUN devices are forbidden, as in a container: `--stack own`, and `auto`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use nix::sys::signal::Signal;
use weft_lab::refusal::{Argument, Refusal};
use weft_lab::{Process, mounts, until, within};
use weft_tunnel::PrivateKey;

use crate::names;
use crate::support::{BEHIND, Ended, Gateway, World};

/// Bytes of a transfer.
const BYTES: usize = 50_000_000;
const LINKS: [(&str, Option<&str>); 2] =
    [("veth", None), ("200 Mbit/s, 60 ms", Some("rate=200mbit,delay=30ms"))];
/// The port of the server behind the gateway.
const PORT: u16 = 8080;
const NAME: &str = "server.example";

/// Refuses what Docker's default filter refuses: new namespaces, and to enter others.
pub(crate) fn forbid_namespaces(command: &mut Command) {
    /// The least of the flags that make a namespace but CLONE_NEWNS, which needs a capability. Threads and
    /// processes are made with lower ones.
    const NAMESPACE: u32 = libc::CLONE_NEWCGROUP.cast_unsigned();
    Refusal::new(libc::SYS_unshare, &[], libc::EPERM).apply_to(command);
    Refusal::new(libc::SYS_setns, &[], libc::EPERM).apply_to(command);
    Refusal::new(libc::SYS_clone, &[(0, Argument::AtLeast(NAMESPACE))], libc::EPERM).apply_to(command);
    // Its flags are in memory, where a filter sees nothing: the C library then uses the other call.
    Refusal::new(libc::SYS_clone3, &[], libc::ENOSYS).apply_to(command);
}

/// What the server sends: bytes that differ at each place.
fn content() -> Vec<u8> {
    let mut state = 1_u64;
    let mut content = Vec::with_capacity(BYTES + 8);
    while content.len() < BYTES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        content.extend((state >> 8).to_le_bytes());
    }
    content.truncate(BYTES);
    content
}

fn sha256(bytes: &[u8]) -> String {
    digest::digest(&digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers GET with `content`, and PUT with the hash of what it got.
fn serve(listener: &TcpListener, content: &[u8]) {
    while let Ok((client, _)) = listener.accept() {
        // A client that hangs up is not the last one.
        let _ = answer(client, content);
    }
}

fn answer(mut client: TcpStream, content: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    let head = loop {
        let count = client.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..count]);
        if let Some(end) = memchr::memmem::find(&request, b"\r\n\r\n") {
            break end + 4;
        }
        if count == 0 {
            return Ok(());
        }
    };
    let hash;
    let answer = if request.starts_with(b"PUT ") {
        while request.len() < head + BYTES {
            let count = client.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            request.extend_from_slice(&buffer[..count]);
        }
        hash = sha256(&request[head..]);
        hash.as_bytes()
    } else {
        content
    };
    write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len())?;
    client.write_all(answer)
}

/// A world with a server behind its gateway, and the hash of what that sends.
struct Site {
    world: World,
    content: PathBuf,
    hash: String,
}

impl Site {
    fn new(gateway: Gateway, link: Option<&str>) -> Option<Self> {
        let programs: &[&str] = if gateway == Gateway::Weft { &[] } else { &["wireguard-go", "wg"] };
        let world = World::beyond(gateway, link, programs)?;
        let bytes = content();
        let (content, hash) = (world.directory.path().join("content"), sha256(&bytes));
        File::create(&content).unwrap().write_all(&bytes).unwrap();
        for address in BEHIND {
            let at = SocketAddr::new(address.parse().unwrap(), PORT);
            let (listener, bytes) = (world.gateway.run(|| TcpListener::bind(at)).unwrap(), bytes.clone());
            std::thread::spawn(move || serve(&listener, &bytes));
        }
        Some(Self { world, content, hash })
    }

    /// Starts a proxy, with a choice of the stack in a place without namespaces.
    fn proxy(&mut self, stack: &'static str) -> Process {
        self.world.stack = stack;
        let file = self.world.file("DNS = 10.77.0.1");
        let mut command = self.world.proxy_command(&file, &["--socks5", "1080"]);
        if stack == "auto" {
            forbid_namespaces(&mut command);
        }
        let process = Process::start(&self.world.client, command).unwrap();
        process.wait_for_line("serving");
        process
    }

    /// Fetches and sends the content, and returns the times.
    fn transfer(&self, host: &str) -> [Duration; 2] {
        let url = format!("http://{host}:{PORT}/");
        let proxy = ["--proxy", "socks5h://127.0.0.1:1080"];
        let began = Instant::now();
        let fetched = self.world.curl(&[&proxy[..], &[&url]].concat());
        let fetching = began.elapsed();
        assert_eq!(fetched.code, Some(0), "{host}: {}", fetched.stderr);
        assert!(fetched.stdout.len() == BYTES && sha256(&fetched.stdout) == self.hash, "{host}: it differs");
        let began = Instant::now();
        let upload = ["--header", "Expect:", "--upload-file", self.content.to_str().unwrap(), &url];
        let sent = self.world.curl(&[&proxy[..], &upload].concat());
        assert!(sent.code == Some(0) && sent.text() == self.hash, "{host}: {sent:?}");
        [fetching, began.elapsed()]
    }
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// Runs `work` where there is no /dev/net/tun.
fn without_tun(work: impl FnOnce() + Send) {
    mounts::run_separate(|| mounts::empty("/dev/net"), work);
}

fn content_crosses_the_tunnel(gateway: Gateway) {
    let [v4, v6] = BEHIND;
    // A family by address, and the other by name; the other way round over the other link.
    for ((link, spec), (by_address, behind_name)) in LINKS.into_iter().zip([(v4, v6), (v6, v4)]) {
        let Some(mut site) = Site::new(gateway, spec) else { return };
        names::serve_as(&site.world, "10.77.0.1", behind_name.parse::<IpAddr>().unwrap());
        let kernel = {
            let process = site.proxy("kernel");
            let times = site.transfer(&bracketed(by_address));
            process.stop();
            times
        };
        without_tun(|| {
            let process = site.proxy("auto");
            assert_eq!(site.world.processes(), ["weft"], "another process takes part");
            let own = site.transfer(&bracketed(by_address));
            let by_name = site.transfer(NAME);
            for (place, what) in ["fetch", "send"].into_iter().enumerate() {
                let [kernel, own, by_name] = [kernel, own, by_name].map(|times| times[place].as_secs_f64());
                eprintln!(
                    "{gateway:?}, {link}, {what} 50 MB: kernel {kernel:.2} s, own {own:.2} s (speed {:.2}), by name \
                     {by_name:.2} s",
                    kernel / own
                );
            }
            process.stop();
        });
        assert!(site.world.processes().is_empty());
    }
}

#[test]
fn without_namespaces_and_tun_content_crosses_the_tunnel_to_a_weft() {
    content_crosses_the_tunnel(Gateway::Weft);
}

#[test]
fn without_namespaces_and_tun_content_crosses_the_tunnel_to_wireguard_go() {
    content_crosses_the_tunnel(Gateway::WireguardGo);
}

#[test]
fn the_kernels_stack_is_refused_where_namespaces_are_and_names_the_other() {
    let Some(world) = World::on("kernel") else { return };
    let mut command = world.proxy_command(&world.file(""), &["--socks5", "1080"]);
    forbid_namespaces(&mut command);
    let ended: Ended = command.output().unwrap().into();
    assert!(
        ended.code == Some(77)
            && ended.stderr.contains("`weft exec --with-proxy` and `weft proxy --stack own`"),
        "{ended:?}"
    );
    assert!(world.processes().is_empty());
}

#[test]
fn a_tunnel_of_its_own_stack_is_asked_and_taken_down_as_any_other() {
    let Some(world) = World::on("own") else { return };
    let file = world.file("");
    let command = world.in_session(world.proxy_command(&file, &["--socks5", "1080"]));
    let mut process = Process::start(&world.client, command).unwrap();
    process.wait_for_line("serving");
    let status = world.weft_in_session(&["status", "office", "--json", "--sample", "0"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let interface = &status["interfaces"][0];
    assert_eq!((&interface["tun"]["backing"], &interface["mtu"]), (&"own".into(), &1420.into()));
    assert_eq!(interface["addresses"], serde_json::json!(["10.77.0.2/24", "fd77::2/64"]));
    assert!(interface.get("connections").is_none(), "{interface}");
    let listener = world.gateway.run(|| TcpListener::bind("203.0.113.1:81")).unwrap();
    let client = world.client.run(|| TcpStream::connect("127.0.0.1:1080")).unwrap();
    // SOCKS5 without a password, to an address.
    (&client).write_all(&[5, 1, 0, 5, 1, 0, 1, 203, 0, 113, 1, 0, 81]).unwrap();
    let (server, from) = within("the connection arrives", move || listener.accept()).unwrap();
    (&server).write_all(b"hello").unwrap();
    (&client).read_exact(&mut [0; 2 + 10 + 5]).unwrap();
    let status = world.weft_in_session(&["status", "office", "--json", "--sample", "0"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let connections = status["interfaces"][0]["connections"].as_array().unwrap();
    let [connection] = &connections[..] else { panic!("{connections:?}") };
    assert_eq!(connection["local"], from.to_string());
    assert_eq!((&connection["remote"], &connection["state"]), (&"203.0.113.1:81".into(), &"ESTAB".into()));
    assert_eq!(connection["received_bytes"], 5);
    assert!(
        connection["rtt_us"].as_u64() > Some(0) && connection["mss"].as_u64() > Some(1000),
        "{connection}"
    );
    let shown = world.weft_in_session(&["status", "office", "-v", "--sample", "0"]);
    assert!(shown.text().contains("203.0.113.1:81"), "{shown:?}");
    let glance = world.weft_in_session(&["status", "office", "--sample", "0"]);
    assert!(glance.text().contains("1 connection"), "{glance:?}");
    drop((client, server));
    // A second command of the file would take the session from the first one.
    let second = world.in_session(world.proxy_command(&file, &["--socks5", "1081"])).output().unwrap();
    let second = Ended::from(second);
    let told = format!("(process {}) has the key", process.pid());
    assert!(second.code == Some(1) && second.stderr.contains(&told), "{second:?}");
    assert_eq!(world.weft_in_session(&["down", "office"]).code, Some(0));
    assert!(process.wait().success());
    until("nothing of the user is left", || world.processes().is_empty());
}

#[test]
fn the_key_of_a_command_that_cannot_be_asked_yet_is_refused_until_that_has_ended() {
    let Some(mut world) = World::on("own") else { return };
    let file = world.file("");
    let text = std::fs::read_to_string(&file).unwrap();
    // It looks for the name all the time, and cannot be asked meanwhile.
    let waiting = world.write("home.conf", &text.replace("192.0.2.2:", "no-such.invalid:"));
    for stack in ["own", "kernel"] {
        world.stack = stack;
        let start = |file: &PathBuf| {
            let mut command = world.in_session(world.proxy_command(file, &["--socks5", "1080"]));
            command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "infinity");
            Process::start(&world.client, command).unwrap()
        };
        let mut first = start(&waiting);
        first.wait_for_line("trying again in");
        let mut second = start(&file);
        assert_eq!(second.wait().code(), Some(1), "{}", second.log());
        let pid = if stack == "own" { first.pid() } else { world.tunnel() };
        let told = format!("interface home (process {pid}) has the key of");
        assert!(second.log().contains(&told), "{pid}: {}", second.log());
        // Of a process that was killed nothing keeps the key.
        first.signal(Signal::SIGKILL);
        first.wait();
        until("nothing of the user is left", || world.processes().is_empty());
        let next = start(&file);
        next.wait_for_line("serving");
        next.stop();
        until("nothing of the user is left", || world.processes().is_empty());
    }
}

#[test]
fn a_reload_with_another_key_claims_that_and_gives_the_earlier_one_back() {
    let Some(mut world) = World::on("own") else { return };
    for stack in ["own", "kernel"] {
        world.stack = stack;
        let file = world.file("");
        let start = |file: &PathBuf, port: &str| {
            let command = world.in_session(world.proxy_command(file, &["--socks5", port]));
            Process::start(&world.client, command).unwrap()
        };
        let first = start(&file, "1080");
        first.wait_for_line("serving");
        let text = std::fs::read_to_string(&file).unwrap();
        let earlier = world.write("home.conf", &text);
        let key = PrivateKey::generate().unwrap();
        let line = |line: &str| match line.strip_prefix("PrivateKey") {
            Some(_) => format!("PrivateKey = {}\n", *key.to_base64()),
            None => format!("{line}\n"),
        };
        world.write("office.conf", &text.lines().map(line).collect::<String>());
        let reloaded = world.weft_in_session(&["reload", file.to_str().unwrap()]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        let public = key.public_key();
        let claim: String = public.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let claims = world.directory.path().join("session/weft/keys-of-interfaces");
        let claims = std::fs::read_dir(claims).unwrap();
        let claimed: Vec<_> = claims.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(claimed, [claim]);
        let second = start(&earlier, "1081");
        second.wait_for_line("serving");
        first.stop();
        second.stop();
        until("nothing of the user is left", || world.processes().is_empty());
    }
}

#[test]
fn the_end_of_a_proxy_resets_its_connections_in_the_tunnel() {
    let Some(world) = World::on("own") else { return };
    let at: SocketAddr = SocketAddr::new(BEHIND[0].parse().unwrap(), 7000);
    let listener = world.gateway.run(|| TcpListener::bind(at)).unwrap();
    let process = world.proxy(&world.file(""), &["--forward", &format!("8081={at}")]);
    let mut client = world.client.run(|| TcpStream::connect("127.0.0.1:8081")).unwrap();
    let (mut server, _) = within("the connection arrives", move || listener.accept()).unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    process.stop();
    let ended = within("the connection ends", move || server.read(&mut [0]));
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn what_is_for_the_other_stack_or_out_of_range_is_refused() {
    let Some(mut world) = World::on("own") else { return };
    let file = world.file("");
    for (stack, option, value, told) in [
        ("own", "--congestion", "cubic", "needs --stack kernel"),
        ("kernel", "--memory-limit", "64", "needs --stack own"),
        ("own", "--memory-limit", "15", "15 is not in 16.."),
        ("own", "--memory-limit", "4294967296", "is not in 16.."),
    ] {
        world.stack = stack;
        let ended = world.proxy_command(&file, &["--socks5", "1080", option, value]).output();
        let ended = Ended::from(ended.unwrap());
        assert!(ended.code == Some(2) && ended.stderr.contains(told), "{option} {value}: {ended:?}");
    }
}
