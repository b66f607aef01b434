//! Clients that do not behave, beside wg(8), which goes on.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};
use weft_lab::PATIENCE;

use crate::support::{Daemon, Machine, NAME, key, public_key, socket_of};

fn connect(machine: &Machine) -> UnixStream {
    let stream = machine.inside(|| UnixStream::connect(socket_of(NAME))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn wg_is_served_whatever_others_send() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let daemon = Daemon::start(&machine);
    let file = machine.file("key", &key(1).to_base64());
    machine.wg(&format!("set {NAME} private-key {file} peer {}", public_key(2)));
    let before = machine.wg(&format!("show {NAME} dump"));
    let mut held = Vec::new();
    let endless = [b"set=1\nlisten_port=".as_slice(), &[b'1'; 300_000]].concat();
    for text in
        [b"".as_slice(), b"get=1\n", b"set=1\nlisten_port=1\n", b"set=1\nremove", &[0xff; 5000], &endless]
    {
        for _ in 0..8 {
            let mut stream = connect(&machine);
            // It may hang up in the middle.
            let _ = stream.write_all(text);
            held.push(stream);
        }
        assert_eq!(machine.wg(&format!("show {NAME} dump")), before);
    }
    drop(held);
    assert_eq!(machine.wg(&format!("show {NAME} dump")), before);
    assert!(daemon.is_running());
}

/// A client that does not end what it begins: it says nothing, sends `part` of a request, or asks `whole` and
/// is silent then.
fn slow_client(path: &Path, number: usize, part: &[u8], whole: &[u8]) -> UnixStream {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    // Bounds the connection too, when no client is accepted any more.
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
    let mut stream = UnixStream::from(socket);
    // It may have lost its place already.
    let _ = match number % 10 {
        0 => stream.write_all(part),
        1..5 => stream.write_all(whole),
        _ => Ok(()),
    };
    stream
}

/// Makes this thread another user's, with no more rights than that one has.
fn become_another_user() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: the system call takes numbers, and concerns the calling thread alone.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn tools_are_answered_beside_a_thousand_slow_clients() {
    let Some(machine) = Machine::new(&["wg", "timeout"]) else { return };
    let daemon = Daemon::start(&machine);
    let answered = || {
        for command in ["wg show wg0 dump", "weft status wg0 --sample 0"] {
            let words: Vec<&str> = ["60"].into_iter().chain(command.split(' ')).collect();
            machine.run("timeout", &words);
        }
    };
    let clients = |path: &Path, part: &[u8], whole: &[u8]| -> Vec<UnixStream> {
        (0..1000).map(|number| slow_client(path, number, part, whole)).collect()
    };
    let (uapi, control) = (socket_of(NAME), Path::new("/run/weft").join(NAME).join("control.sock"));
    let slow = machine.inside(|| clients(&uapi, b"get=1\n", b"get=1\n\n"));
    answered();
    drop(slow);
    let status = b"{\"version\":1,\"request\":\"status\"}\n";
    let slow = machine.inside(|| clients(&control, b"{", status));
    answered();
    drop(slow);
    let slow = machine.inside(|| {
        std::fs::set_permissions(&uapi, std::fs::Permissions::from_mode(0o666)).unwrap();
        become_another_user();
        clients(&uapi, b"get=1\n", b"get=1\n\n")
    });
    answered();
    drop(slow);
    assert!(daemon.is_running());
}

#[test]
fn several_commands_go_over_one_connection() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let _daemon = Daemon::start(&machine);
    let mut stream = connect(&machine);
    stream
        .write_all(b"set=1\nlisten_port=4567\n\nget=1\n\nset=1\nfwmark=x\n\nset=1\nfwmark\n\nget=1\n\n")
        .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let got = "listen_port=4567\nerrno=0\n\n";
    assert_eq!(
        answer,
        format!("errno=0\n\n{got}errno={}\n\nerrno={}\n\n{got}", -libc_einval(), -libc_eproto())
    );
}

fn libc_einval() -> i32 {
    nix::errno::Errno::EINVAL as i32
}

fn libc_eproto() -> i32 {
    nix::errno::Errno::EPROTO as i32
}
