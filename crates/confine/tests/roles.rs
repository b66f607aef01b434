//! What a thread of each role can no longer do. Each action runs in a process that it may end.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use weft_confine::{Role, support, thread};

const ACTION: &str = "WEFT_TEST_ACTION";

/// Runs the actions of this file's child processes, which select this test by its name.
#[test]
fn child() {
    let Ok(action) = std::env::var(ACTION) else { return };
    let (role, action) = action.split_once('/').unwrap();
    let role = match role {
        "packets" => Role::Packets,
        "tun" => Role::Tun,
        "service" => Role::Service,
        "member" => Role::Member,
        "names" => Role::Names,
        _ => panic!("{role}"),
    };
    weft_confine::enable();
    let action = action.to_owned();
    let body = move || {
        thread(role);
        act(&action);
    };
    let _panicked = std::thread::Builder::new().name("weft-confined".to_owned()).spawn(body).unwrap().join();
    println!("the process goes on");
}

fn act(action: &str) {
    match action {
        "leave the namespace" => {
            // SAFETY: the call never begins.
            unsafe { libc::unshare(libc::CLONE_NEWNS) };
        }
        "run a program" => println!("run: {:?}", Command::new("true").status().map(|status| status.code())),
        "open a netlink socket" => println!("socket: {}", socket(libc::AF_NETLINK, libc::SOCK_RAW)),
        "open a packet socket" => drop(socket(libc::AF_PACKET, libc::SOCK_RAW)),
        "open a UDP socket" => drop(UdpSocket::bind("127.0.0.1:0").unwrap()),
        "listen" => drop(TcpListener::bind("127.0.0.1:0").unwrap()),
        "change an interface" => {
            let socket = socket(libc::AF_INET, libc::SOCK_DGRAM);
            // SAFETY: the call never begins.
            unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, std::ptr::null_mut::<u8>()) };
        }
        "change the firewall" => {
            let socket = socket(libc::AF_INET, libc::SOCK_DGRAM);
            // SAFETY: the call never begins.
            unsafe { libc::setsockopt(socket, libc::IPPROTO_IP, 64, std::ptr::null(), 0) };
        }
        "make memory executable" => {
            // SAFETY: the call never begins.
            unsafe { libc::mprotect(std::ptr::null_mut(), 4096, libc::PROT_EXEC) };
        }
        "write a file" => {
            let file =
                OpenOptions::new().append(true).open(std::env::current_exe().unwrap().with_extension("d"));
            println!("written: {:?}", file.map(|_| ()).map_err(|error| error.kind()));
        }
        "read a file" => {
            println!("read: {:?}", std::fs::read("/etc/hostname").map(|_| ()).map_err(|error| error.kind()));
        }
        "read drops" => println!("drops: {:?}", std::fs::read_to_string("/proc/thread-self/net/dev").is_ok()),
        "start a thread" => std::thread::spawn(|| println!("started")).join().unwrap(),
        "panic" => panic!("on purpose"),
        "work" => {
            // Memory of every size, a lock, a clock, its log, another thread's work.
            let blocks: Vec<Vec<u8>> = (0..24).map(|bits| vec![1; 1 << bits]).collect();
            std::io::stderr().write_all(b"its log\n").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(blocks.iter().all(|block| block[0] == 1));
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
            let of = |line: &str| status.lines().find(|text| text.starts_with(line)).map(str::to_owned);
            println!("{:?}, {:?}", of("CapPrm"), of("NoNewPrivs"));
        }
        _ => panic!("{action}"),
    }
}

fn socket(family: libc::c_int, kind: libc::c_int) -> libc::c_int {
    // SAFETY: nothing is passed but numbers.
    unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) }
}

fn run(action: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(ACTION, action).env("RUST_BACKTRACE", "1").output().unwrap()
}

/// Whether the filter of system calls can be tested here; says so if not.
fn filters() -> bool {
    if !support().system_calls {
        weft_lab::here::not_run("this kernel or processor cannot filter system calls");
    }
    support().system_calls
}

#[track_caller]
fn assert_refused(action: &str, system_call: &str) {
    let output = run(action);
    let text = String::from_utf8_lossy(&output.stderr);
    let message = format!("weft: thread weft-confined made the system call {system_call} (");
    assert!(text.contains(&message), "{action}: {output:?}");
    assert_eq!(output.status.code(), Some(1), "{action}: {output:?}");
}

#[track_caller]
fn assert_allowed(action: &str) -> String {
    let output = run(action);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("the process goes on"), "{action}: {output:?}");
    text + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_refused_system_call_ends_the_process_and_is_named() {
    if !filters() {
        return;
    }
    for (action, system_call) in [
        ("packets/listen", "socket"),
        ("packets/write a file", "openat"),
        ("packets/open a netlink socket", "socket"),
        ("packets/open a packet socket", "socket"),
        ("packets/change an interface", "ioctl"),
        ("packets/change the firewall", "setsockopt"),
        ("packets/make memory executable", "mprotect"),
        ("tun/open a UDP socket", "socket"),
        ("tun/make memory executable", "mprotect"),
        ("member/open a UDP socket", "socket"),
        ("member/make memory executable", "mprotect"),
        ("member/leave the namespace", "unshare"),
        ("service/write a file", "openat"),
        ("service/open a netlink socket", "socket"),
        ("service/change an interface", "ioctl"),
        ("names/change an interface", "ioctl"),
        ("service/leave the namespace", "unshare"),
        ("names/leave the namespace", "unshare"),
    ] {
        assert_refused(action, system_call);
    }
    // The C library blocks signals meanwhile, so the kernel itself ends the process, without the message.
    for action in ["packets/start a thread", "tun/start a thread", "member/start a thread"] {
        assert_eq!(run(action).status.signal(), Some(libc::SIGSYS), "{action}");
    }
}

#[test]
fn every_role_can_work_and_panic() {
    for role in ["packets", "tun", "service", "member", "names"] {
        assert!(assert_allowed(&format!("{role}/work")).contains("its log"));
        assert!(assert_allowed(&format!("{role}/panic")).contains("on purpose"));
    }
    for role in ["service", "names"] {
        // The child that would become the program ends instead.
        let output = run(&format!("{role}/run a program"));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("run: Ok(Some(0))"), "{output:?}");
    }
    assert!(assert_allowed("packets/read drops").contains("drops: true"));
    assert_allowed("packets/open a UDP socket");
    assert_allowed("service/listen");
    assert!(assert_allowed("service/start a thread").contains("started"));
    assert!(
        assert_allowed("service/read a file").contains("read: Ok")
            || !std::fs::exists("/etc/hostname").unwrap()
    );
}

#[test]
fn no_role_but_packets_keeps_a_capability() {
    for role in ["tun", "service", "member", "names"] {
        let text = assert_allowed(&format!("{role}/work"));
        // Threads of these two cannot open the file.
        let cannot_tell = ["tun", "member"].contains(&role) && text.contains("None");
        let is_none = text.contains("CapPrm:\\t0000000000000000") || cannot_tell;
        assert!(is_none, "{role}: {text}");
    }
}

#[test]
fn files_are_only_read_where_they_are_needed() {
    if !support().files {
        weft_lab::here::not_run("this kernel cannot restrict files");
        return;
    }
    assert!(assert_allowed("names/write a file").contains("written: Err(PermissionDenied)"));
    assert!(assert_allowed("names/read a file").contains("read: Ok"));
    assert!(assert_allowed("packets/read a file").contains("read: Err(PermissionDenied)"));
    // Looking names up goes on without.
    assert!(assert_allowed("names/open a netlink socket").contains("socket: -1"));
}
