//! Programs in C that use the library, over a plain TUN in a network namespace.
//!
//! ```text
//!   program: mob0 10.88.0.2                       10.88.0.1 weft0: the peer, echo on port 7
//!            eth0 10.66.0.2 ────────────────────── 10.66.0.1 eth0
//!            datagrams without the mark are unreachable
//!            route to 10.99.0.0/24: hold0, where a slow queue keeps packets from 10.88.0.1
//! ```

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::SockRef;
use weft::interface::{Inherited, Interface, Options};
use weft_lab::counters::Counters;
use weft_lab::flood::{Contents, Flood, Junk, Kind, ObservedMessage, Sources};
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, PATIENCE, here, until};
use weft_tunnel::{PrivateKey, PublicKey};
use weft_uapi::{Control as _, Request, RequestParser, Step};
use weft_udp::UdpConfig;

const PORT: u16 = 51820;

/// Compiles a program against the static library.
fn compile(name: &str, folder: &Path) -> PathBuf {
    // Cargo puts the library that a test needs beside the test.
    let built = std::env::current_exe().unwrap().with_file_name("libweft_ffi.a");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(name);
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/c").join(name).with_extension("c"))
        .arg(built)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[track_caller]
fn assert_success(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    out
}

/// Returns the command line of a program under valgrind.
fn under_valgrind(program: &Path) -> Vec<std::ffi::OsString> {
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"];
    let valgrind =
        valgrind.into_iter().chain(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
    let known = concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/c/valgrind.supp");
    valgrind.chain([known]).map(Into::into).chain([program.into()]).collect()
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A weft peer in its namespace, and the text of the program that talks to it.
struct Scene {
    program: Namespace,
    text: String,
    /// The key of the program, and that of its peer.
    keys: (PrivateKey, PublicKey),
    key: PublicKey,
    _peer: Interface,
    peer: Namespace,
}

fn scene() -> Scene {
    let (program, namespace) = (Namespace::new("program").unwrap(), Namespace::new("peer").unwrap());
    let options = LinkOptions {
        addresses_a: vec!["10.66.0.2/24".parse().unwrap()],
        addresses_b: vec!["10.66.0.1/24".parse().unwrap()],
        ..LinkOptions::default()
    };
    link::join(&program, &namespace, &options).unwrap();
    for interface in ["all", "default", "eth0"] {
        program.set_sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0").unwrap();
    }
    for rule in ["pref 9 fwmark 0x77 lookup main", "pref 10 to 10.66.0.0/24 unreachable"] {
        let rule = ["rule", "add"].into_iter().chain(rule.split(' '));
        assert_success(&program.command("ip").args(rule).output().unwrap());
    }

    let [own, other] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let open = || {
        let udp = UdpConfig { port: PORT, ..UdpConfig::default() };
        let mut peer =
            Interface::open("weft0", Inherited::default(), udp, &Options::default(), None, || ()).unwrap();
        peer.run(1280, Vec::new()).unwrap();
        peer
    };
    let peer = namespace.run(open);
    let text = format!(
        "set=1\nprivate_key={}\npublic_key={}\npersistent_keepalive_interval=1\nallowed_ip=10.88.0.2/32\n\
         allowed_ip=10.99.0.0/24\n",
        hex(other.as_bytes()),
        hex(own.public_key().as_bytes())
    );
    let mut parser = RequestParser::new(|_| None);
    for line in text.lines().chain([""]) {
        if let Step::Complete(Request::Set(change)) = parser.line(line.as_bytes()) {
            peer.controller().set(change).unwrap();
        }
    }
    link::add_address(&namespace, "weft0", "10.88.0.1/24".parse().unwrap()).unwrap();
    link::set_up(&namespace, "weft0").unwrap();
    let echo = || {
        let socket = UdpSocket::bind("10.88.0.1:7").unwrap();
        let mut buffer = [0; 2048];
        // Until the process ends.
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    };
    let _until_the_end = namespace.spawn("echo", echo).unwrap();
    let text = format!(
        "set=1\nprivate_key={}\npublic_key={}\nendpoint=10.66.0.1:{PORT}\nallowed_ip=0.0.0.0/0\n",
        hex(own.as_bytes()),
        hex(other.public_key().as_bytes())
    );
    let keys = (own.clone(), other.public_key());
    Scene { program, text, keys, key: own.public_key(), _peer: peer, peer: namespace }
}

#[test]
fn a_program_carries_a_tunnel_a_hundred_times_and_nothing_is_left() {
    if !here::tun_permitted() || !here::installed(&["cc", "ip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (program, scene) = (compile("tunnel", folder.path()), scene());
    let output = scene.program.command(&program).arg("100").arg(&scene.text).output().unwrap();
    let said = assert_success(&output);
    let peak: u64 = said.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
    assert!(said.starts_with("100 rounds") && peak < 50 << 10, "{said}");
}

#[test]
fn a_program_that_carries_a_tunnel_leaks_no_memory_and_reads_none_that_is_not_its_own() {
    if !here::tun_permitted() || !here::installed(&["cc", "ip", "valgrind"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (program, scene) = (compile("tunnel", folder.path()), scene());
    let command = under_valgrind(&program);
    // scripts/test-platforms wants a hundred, which take longer.
    let rounds = std::env::var("WEFT_TEST_VALGRIND_ROUNDS").unwrap_or_else(|_| "3".to_owned());
    let output =
        scene.program.command(&command[0]).args(&command[1..]).arg(&rounds).arg(&scene.text).output();
    let said = assert_success(&output.unwrap());
    assert!(said.starts_with(&format!("{rounds} rounds")), "{said}");
}

#[test]
fn a_program_without_a_tun_has_the_connections_of_a_tunnel() {
    if !here::tun_permitted() || !here::installed(&["cc", "ip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (program, scene) = (compile("embedded", folder.path()), scene());
    let listener = scene.peer.run(|| TcpListener::bind("10.88.0.1:7").unwrap());
    let whole = scene.peer.run(|| TcpListener::bind("10.88.0.1:8").unwrap());
    let echo = move || {
        while let Ok((mut connection, _)) = listener.accept() {
            let mut back = connection.try_clone().unwrap();
            if std::io::copy(&mut connection, &mut back).is_err() {
                continue;
            }
            let _ = back.shutdown(Shutdown::Write);
            let client = TcpStream::connect("10.88.0.2:80").unwrap();
            (&client).read_exact(&mut [0; 5]).unwrap();
            SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        }
    };
    // Until the process ends.
    let _until_the_end = scene.peer.spawn("stream echo", echo).unwrap();
    let arrived = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&arrived);
    let take = move || {
        while let Ok((mut connection, _)) = whole.accept() {
            if std::io::copy(&mut connection, &mut std::io::sink()).is_ok_and(|bytes| bytes == 1 << 20) {
                count.fetch_add(1, Relaxed);
            }
        }
    };
    let _too = scene.peer.spawn("sink", take).unwrap();
    let (own, other) = scene.keys;
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.88.0.2/24\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 10.88.0.0/24\nEndpoint = 10.66.0.1:{PORT}\n",
        *own.to_base64(),
        other
    );
    // The scene takes datagrams without a mark for those of a program that has not protected its sockets.
    assert_success(&scene.program.command("ip").args(["rule", "del", "pref", "10"]).output().unwrap());
    let mut command = scene.program.command(&program);
    assert_eq!(assert_success(&command.arg(&text).output().unwrap()), "done\n");
    until("everything has arrived", || arrived.load(Relaxed) == 1);
    if here::installed(&["valgrind"]) {
        let command = under_valgrind(&program);
        let output = scene.program.command(&command[0]).args(&command[1..]).arg(&text).output();
        assert_eq!(assert_success(&output.unwrap()), "done\n");
    }
}

#[test]
fn what_a_program_does_wrong_is_refused_with_a_line_and_changes_nothing() {
    if !here::tun_permitted() || !here::installed(&["cc", "ip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (program, namespace) = (compile("refusals", folder.path()), Namespace::new("program").unwrap());
    assert_success(&namespace.command(&program).output().unwrap());
    if here::installed(&["valgrind"]) {
        let command = under_valgrind(&program);
        assert_success(&namespace.command(&command[0]).args(&command[1..]).output().unwrap());
    }
}

/// The port of a program under attack.
const TARGET: u16 = 51821;
/// Peers that do not answer, and the packets that wait for each of them in vain.
const SILENT: usize = 400;
const WAITING: u64 = 128;
/// The bytes of a packet or of a datagram, and how many are sent in each way: more than the largest limit
/// together.
const BYTES: usize = 1200;
const MANY: u64 = (64 << 20) / BYTES as u64;

/// Sends from the namespace until `has_arrived`.
fn send_until(
    namespace: &Namespace,
    mut to: impl Iterator<Item = SocketAddr>,
    segment: Option<libc::c_int>,
    payload: &[u8],
    mut has_arrived: impl FnMut() -> bool,
) {
    let socket = namespace.bind_udp("0.0.0.0:0");
    if let Some(segment) = segment {
        let len = size_of_val(&segment) as libc::socklen_t;
        // SAFETY: the kernel reads `len` bytes of `segment`, which lives until after the call.
        let status = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const segment).cast(),
                len,
            )
        };
        assert_eq!(status, 0);
    }
    until("everything has arrived", || {
        for to in to.by_ref().take(256) {
            // The device may have no room.
            let _ = socket.send_to(payload, to);
        }
        has_arrived()
    });
}

/// Runs a program with this limit through all that takes memory, one after the other, and returns what it
/// took.
fn endure(limit: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let (path, scene) = (compile("tunnel", folder.path()), scene());
    let Scene { program: namespace, peer, .. } = &scene;
    let ip = |namespace: &Namespace, line: &str| {
        assert_success(&namespace.command("ip").args(line.split(' ')).output().unwrap());
    };
    let mut text = scene.text.replacen("set=1\n", &format!("set=1\nlisten_port={TARGET}\n"), 1);
    for number in 0..SILENT {
        let key = hex(PrivateKey::generate().unwrap().public_key().as_bytes());
        let (high, low) = (number / 256, number % 256);
        text += &format!("public_key={key}\nendpoint=10.66.0.9:9\nallowed_ip=10.90.{high}.{low}/32\n");
    }
    let mut command = namespace.command(&path);
    command.args([&limit.to_string(), &text, &(256 << 10).to_string()]);
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    // The cookie replies leave.
    ip(namespace, "route add 10.70.0.0/16 via 10.66.0.1 dev eth0 onlink");
    let target = SocketAddr::from(([10, 66, 0, 2], TARGET));
    let received = || Counters::read(namespace).unwrap().protocol("UdpInDatagrams");
    for kind in
        [Kind::Junk(Junk::Mixed), Kind::WithMac1(Contents::Random), Kind::WithMac1(Contents::UnknownKey)]
    {
        let sources = Sources::addresses([10, 70, 0, 1].into(), 4096);
        let flood = Flood { kind, target, key: scene.key, sources, per_second: 50_000, time: PATIENCE };
        let before = received();
        let flood = flood.start(peer, "eth0", namespace, "eth0").unwrap();
        until("a flood was sent and read", || flood.so_far().datagrams >= MANY && received() > before + 1000);
        flood.end().unwrap();
    }

    // Forged data of the session, which costs as much as genuine data, in super-packets that the kernel does
    // not split.
    let seen = ObservedMessage::on_path(namespace, "eth0", target, PATIENCE).unwrap();
    let mut forged = vec![0; 48 * BYTES];
    for datagram in forged.chunks_mut(BYTES) {
        datagram[..8].copy_from_slice(&[[4, 0, 0, 0], seen.receiver_index.to_le_bytes()].concat());
        datagram[14] = 1;
    }
    let to = std::iter::repeat(target);
    let before = Counters::read(namespace).unwrap();
    let since = || Counters::read(namespace).unwrap().since(&before);
    send_until(peer, to, Some(BYTES as libc::c_int), &forged, || {
        since().interface("eth0").rx_bytes >= MANY * BYTES as u64
    });

    // Packets for peers that do not answer.
    ip(namespace, "route add 10.90.0.0/16 dev mob0");
    let silent =
        (0..SILENT).cycle().map(|number| SocketAddr::from(([10, 90, (number / 256) as u8, number as u8], 9)));
    send_until(namespace, silent, None, &[0; BYTES], || {
        since().interface("mob0").tx_packets >= SILENT as u64 * WAITING
    });

    // A transfer of packets that stay in the kernel and, as long as they do, count as the packets of the TUN.
    ip(namespace, "link add hold0 type veth peer name hold1");
    for end in ["hold0", "hold1"] {
        link::set_up(namespace, end).unwrap();
    }
    let is_held = [
        "qdisc add dev hold0 root tbf rate 8bit burst 2kb limit 64mb",
        "qdisc add dev mob0 ingress",
        "filter add dev mob0 parent ffff: protocol ip u32 match ip dst 10.99.0.0/24 action mirred egress redirect dev hold0",
    ]
    .iter()
    .all(|line| namespace.command("tc").args(line.split(' ')).output().unwrap().status.success());
    if !is_held {
        here::not_run("a full TUN: tc(8) needs sch_tbf, sch_ingress, cls_u32 and act_mirred");
    }
    ip(peer, "route add 10.99.0.0/24 dev weft0");
    let held = std::iter::repeat(SocketAddr::from(([10, 99, 0, 1], 9)));
    let before = Counters::read(namespace).unwrap();
    let since = || Counters::read(namespace).unwrap().since(&before);
    send_until(peer, held, None, &[0; BYTES], || since().interface("eth0").rx_bytes >= MANY * BYTES as u64);
    let taken = since().interface("mob0").rx_packets;
    assert!(!is_held || taken < 1000, "the TUN was full: it took {taken} packets");
    ip(namespace, "link delete hold0");

    drop(program.stdin.take());
    line.clear();
    output.read_to_string(&mut line).unwrap();
    assert!(program.wait().unwrap().success(), "{line}");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_program_takes_no_more_memory_than_its_limit_whatever_is_sent_to_it_and_through_it() {
    if !here::tun_permitted() || !here::installed(&["cc", "ip", "tc"]) {
        return;
    }
    for limit in [50 << 20, weft_ffi::MIN_MEMORY_LIMIT] {
        let took = endure(limit);
        assert!(took < limit, "{took} bytes of {limit}");
    }
}
