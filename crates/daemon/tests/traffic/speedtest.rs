//! `weft speedtest` over emulated links: what limits the rate on purpose is what it tells.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weft_lab::cpu_group::CpuGroup;
use weft_lab::emulator::{LinkSpec, Queue};
use weft_lab::{PATIENCE, here, link, wait_until};

use crate::support::{Conf, End, Ends, Family, NAME, Running, alone, answers, undisturbed};

/// The port of the responder.
const PORT: u16 = 9587;
/// Limits that other programs on this machine may be.
const OF_BUSY_MACHINES: [&str; 4] = ["sender_cpu", "receiver_cpu", "packet_thread", "application"];
const ATTEMPTS: usize = 4;

/// Two daemons, of which B answers speed tests.
struct Bed {
    ends: Ends,
    a: Running,
    b: Running,
    conf_b: Conf,
}

impl Bed {
    fn over(link: &LinkSpec, change: impl FnOnce(&mut Conf, &mut Conf)) -> Option<Self> {
        Self::between(Ends::joined(1500, Some(link))?, change)
    }

    fn between(ends: Ends, change: impl FnOnce(&mut Conf, &mut Conf)) -> Option<Self> {
        let (mut conf_a, mut conf_b) = Conf::pair(Family::V4);
        conf_b.settings = vec!["SpeedTest = on"];
        change(&mut conf_a, &mut conf_b);
        let a = Running::up(&ends.a, &conf_a, &[]);
        let b = Running::up(&ends.b, &conf_b, &[]);
        for family in [Family::V4, Family::V6] {
            assert!(answers(&ends.a, End::B.inner(family)));
        }
        Some(Self { ends, a, b, conf_b })
    }

    /// Runs `weft speedtest` at A.
    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.ends.a.command(env!("CARGO_BIN_EXE_weft"));
        command.arg("speedtest").args(arguments);
        command.env_remove("RUST_LOG").env("WEFT_RUNTIME_DIR", self.a.directory());
        command
    }

    /// Runs a test of this direction, and returns what it says.
    #[track_caller]
    fn test(&self, direction: &str, arguments: &[&str]) -> Value {
        let target = End::B.inner(Family::V4).to_string();
        let always = [NAME, &target, "--direction", direction, "--json"];
        let output = self.run(&[&always, arguments].concat());
        assert!(output.status.success(), "{output:?}");
        let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["tests"][0].take()
    }

    /// Runs a test of this direction, and asserts what limits it.
    #[track_caller]
    fn assert_limit(&self, direction: &str, cause: &str) -> Option<Value> {
        self.assert_limit_within(direction, cause, "4s")
    }

    /// Other programs that keep the processors busy are a limit too, which the test tells: then it is
    /// repeated. Returns `None` if they do not leave off, which is said.
    #[track_caller]
    fn assert_limit_within(&self, direction: &str, cause: &str, time: &str) -> Option<Value> {
        for _ in 0..ATTEMPTS {
            // That of RFC 5681, which every kernel has, whatever the machine's own is.
            let test = self.test(direction, &["-t", time, "--congestion", "reno"]);
            let main = test["limits"][0]["cause"].as_str();
            if main == Some(cause) || !main.is_some_and(|main| OF_BUSY_MACHINES.contains(&main)) {
                assert_main(&test, cause);
                return Some(test);
            }
            let busy = busy_processors();
            assert!(busy > 0.3, "{cause} is not told on a quiet machine: {}", test["limits"]);
            eprintln!("other programs use {busy:.1} processors, and the test tells {main:?}");
        }
        here::not_run("other programs use the processors, and speed tests tell that");
        None
    }

    /// Runs a test upwards while `stop` is called again and again with its process.
    #[track_caller]
    fn test_of_stopped(&self, arguments: &[&str], stop: impl Fn(u32)) -> Value {
        let target = End::B.inner(Family::V4).to_string();
        let always = [NAME, &target, "--direction", "up", "--json", "--congestion", "reno"];
        let mut command = self.command(&[&always, arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let read = std::thread::spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).unwrap();
            text
        });
        while child.try_wait().unwrap().is_none() {
            stop(child.id());
        }
        // Its messages fit into the pipe.
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut report: Value = serde_json::from_slice(&read.join().unwrap()).unwrap();
        report["tests"][0].take()
    }

    #[track_caller]
    fn assert_refused(&self, arguments: &[&str], code: i32, message: &str) {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(message), "{output:?}");
    }

    /// Says something else than `weft speedtest` to the responder, and returns the line that it answers.
    fn say(&self, text: &str) -> (TcpStream, String) {
        let mut stream = self.ends.a.run(|| TcpStream::connect(responder())).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (stream, line)
    }
}

#[track_caller]
fn assert_main(test: &Value, cause: &str) {
    let (rate, limits) = (&test["bits_per_second"], &test["limits"]);
    eprintln!("{}: {rate} bit/s, {limits}", test["direction"]);
    let [here, there] = ["here", "there"].map(|end| &test[end][15]);
    assert_eq!(limits[0]["cause"], cause, "{rate} bit/s, {limits}: {here:#}, {there:#}");
    assert!(limits[0]["share"].as_f64().unwrap() > 0.5, "{limits}");
    assert!(!test["advice"].as_str().unwrap().is_empty());
}

fn signal(process: u32, signal: Signal) {
    // It may have ended.
    let _ = kill(Pid::from_raw(process.try_into().unwrap()), signal);
}

/// Returns the threads of a process.
fn threads(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Lets a process run on this processor alone.
fn pin_process(process: u32, processor: usize) {
    let mut processors = CpuSet::new();
    processors.set(processor).unwrap();
    for thread in threads(process) {
        sched_setaffinity(Pid::from_raw(thread.try_into().unwrap()), &processors).unwrap();
    }
}

/// Limits the packet thread of a daemon.
fn limit_packet_thread(daemon: &Running, group: &CpuGroup) {
    let process = daemon.pid();
    let name = |thread: &u32| std::fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).unwrap();
    let thread = threads(process).into_iter().find(|thread| name(thread) == "weft-packets\n");
    group.limit(process, thread.unwrap()).unwrap();
}

/// Returns how many processors are at work, over half a second.
fn busy_processors() -> f64 {
    let busy_and_idle = || {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let times: Vec<f64> = stat.lines().next().unwrap().split_whitespace().flat_map(str::parse).collect();
        let idle = times[3] + times[4];
        [times.iter().take(8).sum::<f64>() - idle, idle]
    };
    let before = busy_and_idle();
    std::thread::sleep(Duration::from_millis(500));
    let after = busy_and_idle();
    let [busy, idle] = [after[0] - before[0], after[1] - before[1]];
    busy / (busy + idle) * std::thread::available_parallelism().unwrap().get() as f64
}

/// A program that keeps one processor busy.
struct Hog(Child);

impl Hog {
    fn on(processor: usize) -> Self {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        pin_process(child.id(), processor);
        Self(child)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn responder() -> SocketAddr {
    SocketAddr::new(End::B.inner(Family::V4), PORT)
}

/// A round trip of 20 ms, without a limit of the rate.
fn far() -> LinkSpec {
    LinkSpec { delay: Duration::from_millis(10), ..LinkSpec::default() }
}

#[test]
fn a_slow_link_is_the_limit_in_both_directions() {
    let _alone = alone();
    let link = LinkSpec { rate: Some(20_000_000), queue: Queue::BandwidthDelayProduct, ..far() };
    let Some(bed) = Bed::over(&link, |_, _| {}) else { return };
    for direction in ["up", "down"] {
        let Some(test) = bed.assert_limit(direction, "link") else { return };
        let rate = test["bits_per_second"].as_u64().unwrap();
        assert!((5_000_000..20_000_000).contains(&rate), "{rate}");
        assert!(test["min_rtt_us"].as_u64().unwrap() >= 20_000);
        // Both ends have told, ten times a second.
        for end in ["here", "there"] {
            assert!(test[end].as_array().unwrap().len() > 30, "{}", test[end]);
        }
    }
}

#[test]
fn loss_outside_is_told_and_counted() {
    let _alone = alone();
    // With this loss and this round trip TCP is slow enough for a busy machine.
    let link = LinkSpec { loss: 0.02, delay: Duration::from_millis(40), ..LinkSpec::default() };
    let Some(bed) = Bed::over(&link, |_, _| {}) else { return };
    let Some(test) = bed.assert_limit("up", "loss_outside") else { return };
    let share = test["outside"]["lost_share"].as_f64().unwrap();
    assert!((0.01..0.04).contains(&share), "{share}");
    assert!(test["events"]["sack_recoveries"].as_u64().unwrap() > 0, "{}", test["events"]);
}

#[test]
fn messages_lost_and_displaced_outside_are_counted_exactly() {
    let _alone = alone();
    let link = LinkSpec {
        rate: Some(20_000_000),
        loss: 0.005,
        reorder: 0.01,
        reorder_by: Duration::from_millis(4),
        ..far()
    };
    let Some(bed) = Bed::over(&link, |_, _| {}) else { return };
    let emulator = bed.ends.emulator.as_ref().unwrap();
    let before = emulator.counters()[0];
    let test = bed.test("up", &["-t", "3s"]);
    let after = emulator.counters()[0].since(&before);
    let outside = |name: &str| test["outside"][name].as_u64().unwrap();
    // A loss is seen by what follows it: the segments of a last super-packet are not in them.
    let (lost, on_link) = (outside("lost"), after.lost + after.dropped);
    let is_exact = (on_link.saturating_sub(64)..=on_link + 2).contains(&lost);
    assert!(lost > 5 && is_exact, "{lost} told, {on_link} lost: {}", test["outside"]);
    let displaced = outside("displaced");
    assert!(displaced > 5 && displaced <= after.reordered, "{displaced} told, {} displaced", after.reordered);
}

#[test]
fn datagrams_that_the_link_loses_are_counted_in_both_directions() {
    let _alone = alone();
    let Some(bed) = Bed::over(&LinkSpec { loss: 0.02, ..far() }, |_, _| {}) else { return };
    for (way, direction) in ["up", "down"].into_iter().enumerate() {
        let emulator = bed.ends.emulator.as_ref().unwrap();
        let before = emulator.counters()[way];
        let test = bed.test(direction, &["-t", "2s", "--udp", "8Mbit"]);
        let on_link = emulator.counters()[way].since(&before).lost;
        let count = |name: &str| test["datagrams"][name].as_u64().unwrap();
        let lost = count("expected") - count("received");
        // Handshakes, samples and what is lost at the end are on the link, too.
        assert!(lost > 5 && lost <= on_link && on_link - lost < 10, "{direction}: {lost}, {on_link}: {test}");
        assert_eq!(count("displaced"), 0);
        // 8 Mbit/s are 730 datagrams of 1372 bytes a second.
        assert!((1_000..=1_500).contains(&count("sent")), "{}", test["datagrams"]);
        let outside = test["outside"]["lost"].as_u64().unwrap();
        assert!(outside.abs_diff(lost) < 10, "{outside} of WireGuard, {lost} of the test");
        assert_eq!(test["limits"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn slow_start_is_told() {
    let _alone = alone();
    // Ten segments become four megabytes, which the buffers hold, after nine round trips.
    let link = LinkSpec { delay: Duration::from_millis(150), ..LinkSpec::default() };
    let Some(bed) = Bed::over(&link, |_, _| {}) else { return };
    bed.assert_limit_within("up", "slow_start", "2s");
}

#[test]
fn a_test_that_is_kept_from_sending_is_told() {
    let _alone = alone();
    let Some(bed) = Bed::over(&far(), |_, _| {}) else { return };
    // What its buffer holds is sent soon, also by a busy machine.
    bed.ends.a.set_sysctl("net/ipv4/tcp_wmem", "4096 65536 262144").unwrap();
    let test = bed.test_of_stopped(&["-t", "4s"], |test| {
        signal(test, Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(400));
        signal(test, Signal::SIGCONT);
        // A busy machine has to let it run within this time, more often than not.
        std::thread::sleep(Duration::from_millis(50));
    });
    assert_main(&test, "application");
}

#[test]
fn drops_in_the_queue_before_the_daemon_are_told() {
    let _alone = alone();
    let Some(bed) = Bed::over(&far(), |_, _| {}) else { return };
    // A burst of a window does not fit.
    link::set_tx_queue_len(&bed.ends.a, NAME, 2).unwrap();
    bed.assert_limit("up", "kernel_queue");
    assert!(bed.a.status("0")["tun"]["queue_overflows"].as_u64().unwrap() > 0);
}

#[test]
fn the_processors_of_an_end_are_told_though_those_of_the_other_are_free() {
    let _alone = alone();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        here::not_run("the ends need a processor each");
        return;
    }
    let busy = busy_processors();
    if busy > 0.3 {
        here::not_run(&format!("other programs use {busy:.1} processors: the ends need one each"));
        return;
    }
    let Some(ends) = Ends::new(1500) else { return };
    let Some(bed) = Bed::between(ends, |_, _| {}) else { return };
    for (end, daemon) in [(0, &bed.a), (1, &bed.b)] {
        pin_process(daemon.pid(), end);
    }
    for (end, cause) in ["sender_cpu", "receiver_cpu"].into_iter().enumerate() {
        // Other programs take half of its processor.
        let _hogs = [Hog::on(end), Hog::on(end)];
        bed.assert_limit("up", cause);
    }
}

#[test]
fn a_packet_thread_that_does_not_keep_up_is_told_at_either_end() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    // A tenth of one processor; the other threads have all that they need.
    let group = match CpuGroup::new(0.1) {
        Ok(group) => group,
        Err(error) => return here::not_run(&format!("cannot limit a thread: {error}")),
    };
    let Some(bed) = Bed::between(ends, |_, _| {}) else { return };
    limit_packet_thread(&bed.a, &group);
    // It is that of the sender, then that of the receiver.
    for direction in ["up", "down"] {
        let Some(test) = bed.assert_limit(direction, "packet_thread") else { return };
        assert!(test["advice"].as_str().unwrap().contains("packet thread"));
    }
    assert!(group.throttled().unwrap() > 0);
}

#[test]
fn a_small_receive_buffer_is_told() {
    let _alone = alone();
    let Some(bed) = Bed::over(&far(), |_, _| {}) else { return };
    bed.ends.b.set_sysctl("net/ipv4/tcp_rmem", "4096 65536 65536").unwrap();
    let Some(test) = bed.assert_limit("up", "receive_window") else { return };
    assert!(test["advice"].as_str().unwrap().contains("net.ipv4.tcp_rmem"));
}

#[test]
fn a_small_send_buffer_is_told() {
    let _alone = alone();
    let Some(bed) = Bed::over(&far(), |_, _| {}) else { return };
    bed.ends.b.set_sysctl("net/ipv4/tcp_wmem", "4096 65536 65536").unwrap();
    let Some(test) = bed.assert_limit("down", "send_buffer") else { return };
    assert!(test["advice"].as_str().unwrap().contains("net.ipv4.tcp_wmem"));
}

#[test]
fn the_rate_limit_of_a_peer_is_told_wherever_it_is() {
    let _alone = alone();
    let limits = |a: &mut Conf, b: &mut Conf| {
        a.peers[0].settings = vec!["RateToPeer = 10Mbit"];
        b.peers[0].settings = vec!["RateToPeer = 12Mbit"];
    };
    let Some(bed) = Bed::over(&far(), limits) else { return };
    // That of this end, and that of the peer.
    bed.assert_limit("up", "rate_limit");
    bed.assert_limit("down", "rate_limit");
}

#[test]
fn a_person_reads_a_table_and_several_streams_share_the_link() {
    let _undisturbed = undisturbed();
    let link = LinkSpec { rate: Some(50_000_000), queue: Queue::BandwidthDelayProduct, ..far() };
    let Some(bed) = Bed::over(&link, |_, _| {}) else { return };
    let key = bed.conf_b.private_key.public_key().to_string();
    // The interface and the address are found by the key of the peer.
    let output = bed.run(&[&key, "-t", "2s", "--streams", "4", "--congestion", "reno"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    eprintln!("{text}");
    for part in ["weft0: to ", "weft0: from ", "4 streams", "0–1 s", "1–2 s", "Mbit/s received", "limited by"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let test = bed.test("down", &["-t", "1s", "--streams", "32"]);
    assert_eq!(test["there"][5]["tcp"]["streams"], 32);
}

#[test]
fn a_plot_and_a_capture_of_the_test_are_written() {
    let _undisturbed = undisturbed();
    let link = LinkSpec { rate: Some(20_000_000), queue: Queue::BandwidthDelayProduct, ..far() };
    let Some(bed) = Bed::over(&link, |_, _| {}) else { return };
    let path = |name: &str| bed.a.directory().join(name);
    let (plot, pcap) = (path("test.svg"), path("test.pcapng"));
    let [plot_text, pcap_text] = [&plot, &pcap].map(|path| path.to_str().unwrap());
    for file in [&plot, &pcap] {
        std::fs::write(file, "earlier").unwrap();
    }
    let stays = |file| assert_eq!(std::fs::read_to_string(file).unwrap(), "earlier");
    let no_other_is_left = || {
        let unfinished = std::fs::read_dir(bed.a.directory()).unwrap().flatten();
        let mut unfinished = unfinished.filter(|entry| entry.file_name().to_string_lossy().ends_with(".new"));
        assert!(unfinished.next().is_none());
    };
    bed.assert_refused(&["10.77.0.1", "--plot", plot_text, "--pcap", pcap_text], 1, "this machine");
    [&plot, &pcap].into_iter().for_each(stays);
    no_other_is_left();
    // The capture is of use without the end of the test.
    let mut interrupted =
        bed.command(&[NAME, "10.77.0.2", "-t", "60s", "--plot", plot_text, "--pcap", pcap_text]);
    let mut interrupted = interrupted.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Another test is turned away until a second after the start of one that was broken off: by then there is
    // a row of the first second below the head.
    let lines = BufReader::new(interrupted.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())));
    [&plot, &pcap].into_iter().for_each(stays);
    kill(Pid::from_raw(i32::try_from(interrupted.id()).unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(interrupted.wait().unwrap().code(), Some(130));
    stays(&plot);
    assert_ne!(std::fs::read(&pcap).unwrap(), b"earlier");
    no_other_is_left();
    let test =
        bed.test("up", &["-t", "2s", "--congestion", "reno", "--plot", plot_text, "--pcap", pcap_text]);
    let svg = std::fs::read_to_string(&plot).unwrap();
    // One test: reno leaves slow start by a loss, as the link's queue is full.
    for part in
        ["weft0: to ", "congestion window", "receive window", "in flight", "round trip", "end of slow start"]
    {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    // Each packet is there inside the tunnel and outside, by its first bytes only.
    let bytes = std::fs::metadata(&pcap).unwrap().len();
    let received = test["there"].as_array().unwrap().last().unwrap()["received"].as_u64().unwrap();
    let packets = 2 * received / 1368;
    assert!((packets * 100..packets * 500).contains(&bytes), "{bytes} bytes for {packets} packets");

    let missing = path("none/test.svg");
    bed.assert_refused(&[NAME, "10.77.0.2", "--plot", missing.to_str().unwrap()], 1, "cannot write");
}

#[test]
fn a_responder_answers_peers_alone_one_at_a_time_and_only_when_it_is_on() {
    let _undisturbed = undisturbed();
    let Some(bed) = Bed::over(&LinkSpec::default(), |_, b| b.settings.clear()) else { return };
    let inner = End::B.inner(Family::V4).to_string();
    let short = [inner.as_str(), "--direction", "down", "-t", "1s"];
    bed.assert_refused(&short, 1, "add `# weft: SpeedTest = on` to [Interface]");
    bed.assert_refused(&["weft9", &inner], 1, "weft9 is not running under weft");
    bed.assert_refused(&["nobody"], 1, "weft0: no peer has the key or the name nobody");
    bed.assert_refused(&["10.77.0.1"], 1, "10.77.0.1 is an address of this machine");

    let mut on = bed.conf_b.clone();
    on.settings = vec!["SpeedTest = on"];
    assert_eq!(bed.b.reload(&on, &[]), ["allow speed tests of peers"]);
    assert!(bed.run(&short).status.success());
    let v6 = End::B.inner(Family::V6).to_string();
    assert!(bed.run(&[&v6, "-t", "1s"]).status.success());
    bed.assert_refused(&[&inner, "--congestion", "nonsense"], 1, "cannot use congestion control `nonsense`");
    let threads = bed.b.status("0")["threads"].to_string();
    assert!(threads.contains("weft-speedtest"), "{threads}");
    // Outside of the tunnel there is no responder.
    let outside = SocketAddr::new(End::B.outer(Family::V4), PORT);
    let error = bed.ends.a.run(|| TcpStream::connect_timeout(&outside, PATIENCE).unwrap_err());
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    // Nor is there one for the users of its machine, who reach the address of the interface through `lo`.
    let local = bed.ends.b.run(|| TcpStream::connect_timeout(&responder(), Duration::from_secs(1)));
    assert!(local.is_err(), "{local:?}");

    // Nonsense and strange tokens get no answer, long tests a refusal, and the responder goes on.
    for text in ["nonsense\n", "{\"data\":{\"token\":\"0\"}}\n", &" ".repeat(100_000)] {
        assert_eq!(
            bed.ends.a.run(|| {
                let mut stream = TcpStream::connect(responder()).unwrap();
                let _reset = stream.write_all(text.as_bytes());
                stream.read(&mut [0; 64]).unwrap_or_default()
            }),
            0,
            "{text:.20}"
        );
    }
    let request = |milliseconds: u64, streams: u64| {
        format!(
            "{{\"test\":{{\"direction\":\"up\",\"milliseconds\":{milliseconds},\"streams\":{streams}}}}}\n"
        )
    };
    for (milliseconds, streams) in [(60_001, 1), (0, 1), (1000, 0), (1000, 33)] {
        assert!(bed.say(&request(milliseconds, streams)).1.contains("too_much"));
    }
    for (rate, bytes) in [(u64::MAX, 1000), (100_000_000_001, 1000), (0, 1000), (1000, 7), (1000, 65_535)] {
        assert!(bed.say(&datagrams(rate, bytes)).1.contains("out_of_bounds"), "{rate} {bytes}");
    }
    // One test at a time.
    let mut long = bed.command(&[&inner, "-t", "60s"]).stdout(Stdio::piped()).spawn().unwrap();
    let rows = BufReader::new(long.stdout.take().unwrap()).lines();
    assert_eq!(rows.take(3).filter_map(Result::ok).count(), 3, "the heading, the header and a row");
    bed.assert_refused(&short, 1, "another speed test is running there");
    long.kill().unwrap();
    long.wait().unwrap();
    // A client that never opens its connections keeps the place for a moment only.
    wait_until("the place is free", || bed.run(&short).status.success().then_some(()));
    let (_silent, line) = bed.say(&request(1000, 1));
    assert!(line.contains("accepted"), "{line}");
    wait_until("the place is free again", || bed.run(&short).status.success().then_some(()));

    assert_eq!(bed.b.reload(&bed.conf_b, &[]), ["refuse speed tests of peers"]);
    bed.assert_refused(&short, 1, "add `# weft: SpeedTest = on` to [Interface]");
    let Bed { a, b, .. } = bed;
    a.stop();
    b.stop();
}

/// The request for a minute of datagrams from the responder.
fn datagrams(bits_per_second: u64, bytes: u16) -> String {
    format!(
        "{{\"test\":{{\"direction\":\"down\",\"milliseconds\":60000,\"streams\":1,\"udp\":{{\"bits_per_second\":\
         {bits_per_second},\"bytes\":{bytes},\"port\":9}}}}}}\n"
    )
}

#[test]
fn a_responder_that_sends_as_fast_as_a_peer_may_ask_ends_when_it_is_told_to() {
    let _undisturbed = undisturbed();
    let Some(bed) = Bed::over(&LinkSpec::default(), |_, _| {}) else { return };
    let mut off = bed.conf_b.clone();
    off.settings.clear();
    for _ in 0..2 {
        let (test, line) = bed.say(&datagrams(100_000_000_000, 8));
        assert!(line.contains("accepted"), "{line}");
        assert_eq!(bed.b.reload(&off, &[]), ["refuse speed tests of peers"]);
        assert_eq!(bed.b.reload(&bed.conf_b, &[]), ["allow speed tests of peers"]);
        drop(test);
    }
    let (_test, line) = bed.say(&datagrams(100_000_000_000, 8));
    assert!(line.contains("accepted"), "{line}");
    let Bed { a, b, .. } = bed;
    b.stop();
    a.stop();
}
