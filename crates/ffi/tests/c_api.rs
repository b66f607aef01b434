//! Programs in C that use the library, over a plain TUN in a network namespace.
//!
//! ```text
//!   program: mob0 10.88.0.2                       10.88.0.1 weft0: the peer, echo on port 7
//!            eth0 10.66.0.2 ────────────────────── 10.66.0.1 eth0
//!            datagrams without the mark are unreachable
//! ```

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weft::interface::{Inherited, Interface, Options};
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, here};
use weft_tunnel::PrivateKey;
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
    _peer: Interface,
    _namespace: Namespace,
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
        peer.run(1280).unwrap();
        peer
    };
    let peer = namespace.run(open);
    let text = format!(
        "set=1\nprivate_key={}\npublic_key={}\nallowed_ip=10.88.0.2/32\n",
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
    Scene { program, text, _peer: peer, _namespace: namespace }
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
    let output = scene.program.command(&command[0]).args(&command[1..]).arg("3").arg(&scene.text).output();
    assert_success(&output.unwrap());
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
