//! Clients that do not behave, beside wg(8), which goes on.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use weft::lab::PATIENCE;

use crate::support::{Daemon, Machine, NAME, key, public_key, socket_of};

fn connect(machine: &Machine) -> UnixStream {
    let stream = machine.inside(|| UnixStream::connect(socket_of(NAME))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn wg_is_served_whatever_others_send() {
    let Some(machine) = Machine::new("wg_is_served_whatever_others_send", &["wg"]) else { return };
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

#[test]
fn several_commands_go_over_one_connection() {
    let Some(machine) = Machine::new("several_commands_go_over_one_connection", &["wg"]) else { return };
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
