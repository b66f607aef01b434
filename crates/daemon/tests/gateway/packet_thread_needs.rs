//! What packet threads need of the machine: a processor for each, descriptors, and queues of the TUN.

use std::path::Path;

use weft::up::{Daemon, Options};
use weft_config as config;
use weft_config::PacketThreads;
use weft_lab::mounts::separate_sockets;
use weft_lab::refusal::{Argument, Refusal};
use weft_lab::{Namespace, Process, here};
use weft_tunnel::PrivateKey;

use crate::machine::{alone, shared};
use crate::stopped_thread::thread_named;

#[test]
fn each_pinned_thread_has_a_processor_and_more_threads_than_processors_are_refused() {
    let _alone = alone();
    if !here::tun_permitted() || weft_udp::MAX_SHARDS == 1 {
        return;
    }
    let processors = processors_of("/proc/self/status".as_ref());
    let namespace = Namespace::new("gateway").unwrap();
    let key = PrivateKey::generate().unwrap();
    let text = format!("[Interface]\nPrivateKey = {}\n", key.to_base64().as_str());
    let config =
        config::parse(&text, std::path::Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config;
    let start = |threads: usize| {
        let packet_threads = PacketThreads::Fixed(u16::try_from(threads).unwrap().try_into().unwrap());
        let options = Options { packet_threads, pin: true, ..Options::default() };
        namespace.run(|| Daemon::start(&config, &[], &options, || ()))
    };
    let threads = processors.len().min(3);
    let daemon = start(threads).unwrap();
    for (number, processor) in processors.iter().enumerate().take(threads) {
        let name = if number == 0 { "weft-packets".to_owned() } else { format!("weft-packets-{number}") };
        assert_eq!(processors_of(&thread_named(&name).join("status")), [*processor], "{name}");
    }
    drop(daemon);
    let error = start(processors.len() + 1).map(drop).unwrap_err().to_string();
    assert!(error.contains(&format!("packet thread {}", processors.len())), "{error}");
    assert!(error.contains("leave --pin out"), "{error}");
    assert_eq!(processors_of("/proc/self/status".as_ref()), processors);
}

/// Returns the processors that a thread may use.
fn processors_of(status: &Path) -> Vec<usize> {
    let status = std::fs::read_to_string(status).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let numbers = list.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    numbers.collect()
}

/// A namespace, and a directory with `wg0.conf` of an interface without peers; `None` where several packet
/// threads are not possible.
fn without_peers() -> Option<(Namespace, tempfile::TempDir)> {
    if !here::tun_permitted() || weft_udp::MAX_SHARDS == 1 {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let key = PrivateKey::generate().unwrap();
    let text = format!("[Interface]\nPrivateKey = {}\n", key.to_base64().as_str());
    std::fs::write(directory.path().join("wg0.conf"), text).unwrap();
    Some((Namespace::new("gateway").unwrap(), directory))
}

#[test]
fn more_threads_than_the_limit_of_descriptors_allows_are_refused_in_one_line() {
    let _shared = shared();
    let Some((namespace, directory)) = without_peers() else { return };
    let file = directory.path().join("wg0.conf");
    let arguments = ["-c", "ulimit -n 300; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weft"), "up"];
    let mut command = namespace.command("sh");
    command.args(arguments).arg(&file).args(["--packet-threads", "64", "--log", "error"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("64 packet threads need") && stderr.contains("may open 300"), "{stderr}");
}

#[test]
fn a_kernel_with_fewer_queues_than_wanted_is_told_of_in_one_line_and_nothing_is_left() {
    let _shared = shared();
    let Some((namespace, directory)) = without_peers() else { return };
    let file = directory.path().join("wg0.conf");
    let up = |arguments: &str, descriptors| {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_weft"));
        command.arg("up").arg(&file).args(arguments.split(' '));
        separate_sockets(&mut command);
        let arguments = [(1, Argument::Is(libc::TUNSETIFF as i32)), (0, Argument::AtLeast(descriptors))];
        Refusal::new(libc::SYS_ioctl, &arguments, libc::E2BIG).apply_to(&mut command);
        command
    };
    // The queues have consecutive descriptors: from some number on there is none for more.
    let mut given = Vec::new();
    for descriptors in 3..40 {
        let output = up("--packet-threads 3 --log error", descriptors).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
        let links = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        assert!(!links.contains("wg0:"), "{links}");
        let Some((_, rest)) = stderr.split_once("the kernel gives interface wg0 ") else { continue };
        let (queues, advice) = rest.trim_end().split_once(" of 9 queues (").unwrap();
        given.push(queues.parse::<u32>().unwrap());
        let (_, advice) = advice.split_once("): ").unwrap();
        let options = advice.strip_suffix(" needs no more").unwrap();
        assert_eq!(options, format!("--packet-threads 1 --tun-threads {queues}"));
        if given == [1] || given.last() == Some(&8) {
            let process = Process::start(&namespace, up(options, descriptors)).unwrap();
            process.wait_for_line(" is up: port ");
        }
        if given.last() == Some(&8) {
            break;
        }
    }
    assert_eq!(given, (1..=8).collect::<Vec<_>>());
}
