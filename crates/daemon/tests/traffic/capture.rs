//! `weft capture` on tunnels that carry traffic, its files read by tshark.

use std::io::{self, PipeReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_lab::traffic::Amount;
use weft_lab::{here, until, wait_until};

use crate::support::{Conf, End, Ends, Family, NAME, Running, alone, answers, undisturbed, weft};

/// A running `weft capture`. Dropping it kills it.
struct Capturing {
    child: Child,
}

impl Capturing {
    fn start(running: &Running, arguments: &[&str]) -> Self {
        let mut command = weft(running.directory(), &["capture"]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap() }
    }

    /// Into a file, and seeing packets already.
    fn into_file(running: &Running, file: &Path, arguments: &[&str]) -> Self {
        let capturing = Self::start(running, &[&["-w", file.to_str().unwrap()], arguments].concat());
        wait_until("the file begins", || file.metadata().ok().filter(|file| file.len() > 0));
        capturing
    }

    fn interrupt(&self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGINT).unwrap();
    }

    /// Waits for its end, and gives what it said last.
    fn end(mut self) -> String {
        let status = wait_until("the capture to end", || self.child.try_wait().unwrap());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends up, and a place for files.
struct World {
    a: Running,
    b: Running,
    key_of_b: String,
    /// Dropped after the daemons that run in it.
    ends: Ends,
}

impl World {
    fn new(outer: Family) -> Option<Self> {
        let ends = Ends::new(1500)?;
        let (conf_a, conf_b) = Conf::pair(outer);
        let (a, b) = (Running::up(&ends.a, &conf_a, &[]), Running::up(&ends.b, &conf_b, &[]));
        Some(Self { a, b, key_of_b: conf_b.private_key.public_key().to_string(), ends })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.a.directory().join(name)
    }

    /// Sends an amount from A to B over one TCP connection.
    fn stream(&self, bytes: u64) {
        assert_eq!(self.ends.transfer(End::A, Family::V4, 1, Amount::Count(bytes)).finish(), bytes);
    }

    fn stop(self) {
        self.a.stop();
        self.b.stop();
    }
}

/// Whether tshark is there; where it is not, says so.
fn has_tshark() -> bool {
    let has = Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        here::not_run("tshark is not installed");
    }
    has
}

/// What tshark makes of a file: these fields of the packets that the filter lets through, a line each.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file).args(["-Y", filter, "-T", "fields", "-E", "separator=|"]);
    for checked in ["ip", "udp", "tcp"] {
        command.args(["-o", &format!("{checked}.check_checksum:TRUE")]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success() && !stderr.contains("cut short"), "{stderr}");
    String::from_utf8(stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_byte_or_the_end_of_its_direction_ends_a_capture() {
    let Some(world) = World::new(Family::V4) else { return };
    let ends: [fn(&mut UnixStream) -> io::Result<()>; 2] =
        [|stream| stream.write_all(b"\n"), |stream| stream.shutdown(Shutdown::Write)];
    for end in ends {
        let mut stream = UnixStream::connect(world.a.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"{\"version\":1,\"request\":\"capture\"}\n").unwrap();
        let mut begin = [0];
        stream.read_exact(&mut begin).unwrap();
        end(&mut stream).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        let answer = b"\"version\":1,\"ok\":{}}\n";
        assert!(rest.starts_with(answer) && rest.len() > answer.len(), "{}", String::from_utf8_lossy(&rest));
    }
    world.stop();
}

#[test]
fn a_capture_opens_in_tshark_with_every_packet_inside_and_outside() {
    if !has_tshark() {
        return;
    }
    for outer in [Family::V4, Family::V6] {
        let Some(world) = World::new(outer) else { return };
        let file = world.file("all.pcapng");
        let capturing = Capturing::into_file(&world.a, &file, &[NAME]);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // A SYN and its refusal each; a datagram and the ICMP error that answers it.
        for _ in 0..5 {
            assert!(answers(&world.ends.a, End::B.inner(Family::V4)));
        }
        let to = SocketAddr::new(End::B.inner(Family::V4), 1);
        let refused = world.ends.a.run(|| {
            let socket = UdpSocket::bind((End::A.inner(Family::V4), 0)).unwrap();
            socket.connect(to).unwrap();
            socket.send(b"odd").unwrap();
            socket.recv(&mut [0; 8])
        });
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        capturing.interrupt();
        let said = capturing.end();
        assert!(said.starts_with("weft0: ") && said.contains(", 0 dropped by the capture\n"), "{said}");
        let frames = tshark(&file, "frame", &["frame.number"]).len();
        assert!(said.contains(&format!(" {frames} packets captured")), "{said}");

        let outbound = format!("outbound, peer {}", world.key_of_b);
        let inbound = format!("inbound, peer {}", world.key_of_b);
        let count = |filter: &str| tshark(&file, filter, &["frame.number"]).len();
        let seen = |filter: &str| {
            let fields = ["frame.interface_name", "frame.packet_flags_direction", "frame.comment"];
            let mut seen = tshark(&file, filter, &fields);
            seen.sort();
            seen.dedup();
            seen
        };
        // On a busy machine TCP repeats what is not answered within a second.
        let connections = |filter: &str| {
            let numbers = tshark(&file, filter, &["tcp.stream"]);
            numbers.into_iter().collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((connections("tcp.flags.syn == 1"), connections("tcp.flags.reset == 1")), (5, 5));
        assert_eq!((count("udp.dstport == 1 && !icmp"), count("icmp.code == 3")), (1, 1));
        let directions = |direction: &str| match direction {
            "in" => ["1", "0x00000001", "0x01"],
            _ => ["2", "0x00000002", "0x02"],
        };
        let is_seen_as = |filter: &str, interface: &str, direction: &str, comment: &str| {
            let seen = seen(filter);
            let fits = |line: &String| {
                directions(direction).iter().any(|flag| *line == format!("{interface}|{flag}|{comment}"))
            };
            assert!(seen.len() == 1 && seen.iter().all(fits), "{filter}: {seen:?}");
        };
        is_seen_as("tcp.flags.syn == 1", NAME, "out", &outbound);
        is_seen_as("tcp.flags.reset == 1", NAME, "in", &inbound);
        is_seen_as("wg.type == 1", "weft0-outer", "out", &outbound);
        is_seen_as("wg.type == 2", "weft0-outer", "in", &inbound);
        // Everything outside is WireGuard between the two, and as many of its packets carry data as there are
        // inside.
        // An initiation without an answer is repeated after 5 s.
        let begun: Vec<f64> = tshark(&file, "wg.type == 1", &["frame.time_relative"])
            .iter()
            .map(|seconds| seconds.parse().unwrap())
            .collect();
        assert!(begun.windows(2).all(|times| times[1] - times[0] > 4.9), "{begun:?}");
        assert!((1..=begun.len()).contains(&count("wg.type == 2")), "{begun:?}");
        assert_eq!(count("frame.interface_name == \"weft0-outer\" && !wg"), 0);
        let with_data = "wg.type == 4 && udp.length > 40";
        assert_eq!(
            count(with_data),
            count("frame.interface_name == \"weft0\" && frame.comment contains \"peer\"")
        );
        let field = if outer == Family::V4 { "ip.src" } else { "ipv6.src" };
        let mut sources = tshark(&file, "wg.type == 4", &[field, "udp.srcport"]);
        sources.sort();
        sources.dedup();
        assert_eq!(sources, [End::A, End::B].map(|end| format!("{}|51820", end.outer(outer))));
        let bad = "ip.checksum.status == 0 || udp.checksum.status == 0 || tcp.checksum.status == 0 || _ws.malformed";
        assert_eq!(seen(bad), [""; 0]);
        world.stop();
    }
}

#[test]
fn super_packets_are_captured_as_the_wire_sees_them_and_a_limit_ends_it() {
    if !has_tshark() {
        return;
    }
    if !weft_tun::SUPER_PACKETS {
        return here::not_run("with super-packets: a TUN takes none in this build");
    }
    let _alone = alone();
    let Some(world) = World::new(Family::V4) else { return };
    let file = world.file("some.pcapng");
    let arguments = ["--stage", "inner", "--peer", &world.key_of_b, "--count", "500", "--snaplen", "100"];
    let capturing = Capturing::into_file(&world.a, &file, &[&[NAME], &arguments[..]].concat());
    world.stream(8 << 20);
    assert!(capturing.end().starts_with("weft0: 500 packets captured, "));
    let lengths = tshark(&file, "frame", &["frame.len", "frame.cap_len", "ip.len"]);
    assert_eq!(lengths.len(), 500);
    let mut full = 0;
    for line in lengths {
        let numbers: Vec<usize> = line.split('|').map(|number| number.parse().unwrap()).collect();
        let [len, kept, ip_len] = numbers[..] else { panic!("{line}") };
        assert!(len <= 1420 && kept == len.min(100) && ip_len == len, "{line}");
        full += usize::from(len == 1420);
    }
    assert!(full > 100, "{full}");
    world.stop();
}

#[test]
fn a_reader_that_does_not_read_loses_packets_of_the_capture_and_none_of_the_tunnel() {
    let _alone = alone();
    let Some(world) = World::new(Family::V4) else { return };
    let mut capturing = Capturing::start(&world.a, &[NAME, "-w", "-"]);
    let mut stdout = capturing.child.stdout.take().unwrap();
    let mut begun = [0; 4];
    stdout.read_exact(&mut begun).unwrap();
    assert_eq!(begun, [0x0a, 0x0d, 0x0d, 0x0a]);
    // Much more than the pipe, the socket and the capture hold.
    world.stream(64 << 20);
    assert!(answers(&world.ends.a, End::B.inner(Family::V4)));
    capturing.interrupt();
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).map(|_| rest).unwrap()
    });
    let said = capturing.end();
    let file = [begun.to_vec(), rest.join().unwrap()].concat();
    let blocks = blocks(&file);
    let packets = blocks.iter().filter(|(kind, _)| *kind == 6).count() as u64;
    let statistics = || blocks.iter().filter(|(kind, _)| *kind == 5).map(|(_, block)| statistics(block));
    let (seen, dropped) = statistics().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    assert!(dropped > 0 && packets > 0, "{dropped} of {packets}: {said}");
    assert_eq!(packets + dropped, seen, "each packet is in the file or counted: {said}");
    assert!(
        said.contains(&format!("{packets} packets captured, {dropped} dropped by the capture (")),
        "{said}"
    );
    assert_eq!(
        blocks.iter().rev().take_while(|(kind, _)| *kind == 5).count(),
        2,
        "the last word of both interfaces"
    );
    world.stop();
}

/// A capture that waits because its output is not read.
fn stuck(world: &World, arguments: &[&str]) -> (Capturing, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = weft(world.a.directory(), &["capture", NAME, "-w", "-"]);
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let capturing = Capturing { child: command.spawn().unwrap() };
    drop(command);
    let unread = || {
        let mut count = 0;
        // SAFETY: the kernel writes one number to where it is told.
        assert_eq!(unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &raw mut count) }, 0);
        count
    };
    until("the file begins", || unread() > 0);
    until("the pipe is full", || {
        let before = unread();
        world.stream(1 << 20);
        unread() == before
    });
    (capturing, reader)
}

#[test]
fn a_capture_whose_reader_stands_still_ends_when_it_is_told_to() {
    let _undisturbed = undisturbed();
    let Some(world) = World::new(Family::V4) else { return };
    let (interrupted, _reader) = stuck(&world, &[]);
    interrupted.interrupt();
    let said = interrupted.end();
    assert!(said.contains(" packets captured") && said.contains("did not receive all of them"), "{said}");
    // By itself. On a busy machine it may end before the pipe is full.
    let said = ["5", "30", "120"].into_iter().find_map(|seconds| {
        let (mut timed, _reader) = stuck(&world, &["--seconds", seconds]);
        let stood_still = timed.child.try_wait().unwrap().is_none();
        let said = timed.end();
        stood_still.then_some(said)
    });
    let said = said.expect("a capture that stands still before its time is over");
    assert!(said.contains("did not receive all of them"), "{said}");
    world.stop();
}

#[test]
fn a_capture_whose_reader_is_gone_ends_though_there_is_nothing_to_write() {
    let Some(world) = World::new(Family::V4) else { return };
    // Nothing passes of this peer.
    let mut capturing = Capturing::start(&world.a, &[NAME, "-w", "-", "--peer", &world.key_of_b]);
    let mut stdout = capturing.child.stdout.take().unwrap();
    // The head of the file, and both interfaces.
    for _ in 0..3 {
        let mut begun = [0; 8];
        stdout.read_exact(&mut begun).unwrap();
        let len = u32::from_le_bytes(*begun.last_chunk().unwrap()) as usize;
        stdout.read_exact(&mut vec![0; len - begun.len()]).unwrap();
    }
    drop(stdout);
    assert!(capturing.end().contains(" 0 packets captured"));
    world.stop();
}

/// The type and the bytes of each block of a pcapng file, which must be whole.
fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
        let len = word(4) as usize;
        blocks.push((word(0), &file[..len]));
        assert_eq!(word(len - 4) as usize, len);
        file = &file[len..];
    }
    blocks
}

/// The options isb_ifrecv and isb_ifdrop, where weft writes them: behind two times of twelve bytes.
fn statistics(block: &[u8]) -> (u64, u64) {
    let value = |at: usize, code: u8| {
        let option = &block[at..];
        assert_eq!(option[..4], [code, 0, 8, 0]);
        u64::from_le_bytes(*option[4..].first_chunk().unwrap())
    };
    (value(20 + 2 * 12, 4), value(20 + 3 * 12, 5))
}

#[test]
fn a_capture_ends_whole_when_its_interface_does() {
    let Some(world) = World::new(Family::V4) else { return };
    let file = world.file("end.pcapng");
    let capturing = Capturing::into_file(&world.a, &file, &[]);
    assert!(answers(&world.ends.a, End::B.inner(Family::V4)));
    let World { a, b, ends: _ends, .. } = world;
    let _stopped = a.stop();
    let said = capturing.end();
    assert!(said.ends_with("; the interface went down\n"), "{said}");
    let file = std::fs::read(&file).unwrap();
    let kinds: Vec<u32> = blocks(&file).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds[..3], [0x0a0d_0d0a, 1, 1]);
    assert!(kinds[3..].iter().filter(|kind| **kind == 6).count() >= 6, "{kinds:?}");
    b.stop();
}

#[test]
fn what_cannot_be_captured_is_said_and_no_file_is_touched() {
    let Some(world) = World::new(Family::V4) else { return };
    let file = world.file("precious");
    std::fs::write(&file, "precious").unwrap();
    let path = file.to_str().unwrap();
    for (arguments, code, says) in [
        (&[NAME, "-w", path, "--peer", "nobody"][..], 1, "no peer has the key or the name nobody"),
        (&["weft7", "-w", path], 1, "weft7 is not running"),
        (&[NAME, "-w", "/nowhere/at/all"], 1, "cannot write /nowhere/at/all: "),
        (&[NAME, "-w", path, "--stage", "middle"], 2, "inner, outer"),
        (&[NAME, "-w", path, "--snaplen", "3"], 2, "64..=65535"),
        (&[NAME], 2, "--write <FILE>"),
    ] {
        let output = world.a.weft(&[&["capture"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    // Each has its own memory, so there is a limit, and room again when one has ended.
    let files: Vec<PathBuf> = (0..5).map(|number| world.file(&format!("{number}.pcapng"))).collect();
    let mut running: Vec<Capturing> =
        files[..4].iter().map(|file| Capturing::into_file(&world.a, file, &[NAME])).collect();
    let fifth = ["capture", NAME, "-w", files[4].to_str().unwrap(), "--seconds", "1"];
    let output = world.a.weft(&fifth);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("too many captures"), "{output:?}");
    let ended = running.pop().unwrap();
    ended.interrupt();
    ended.end();
    until("there is room again", || world.a.weft(&fifth).status.success());
    drop(running);
    world.stop();
}
