//! What is refused changes nothing, and wg(8) says why.

use weft_lab::wait_until_ok;

use crate::support::{Daemon, Machine, NAME, key, public_key};

#[test]
fn a_port_that_is_taken_is_refused_and_all_stays() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let _daemon = Daemon::start(&machine);
    let file = machine.file("key", &key(1).to_base64());
    machine.wg(&format!("set {NAME} private-key {file} listen-port 4567 peer {}", public_key(2)));
    let before = machine.wg(&format!("show {NAME} dump"));
    let taken = machine.namespace.bind_udp("0.0.0.0:4568");
    let other = machine.file("other", &key(3).to_base64());
    let error = machine.wg_fails(&format!(
        "set {NAME} private-key {other} listen-port 4568 fwmark 7 peer {} remove peer {}",
        public_key(2),
        public_key(4)
    ));
    assert!(error.contains("Address already in use"), "{error}");
    assert_eq!(machine.wg(&format!("show {NAME} dump")), before);
    // IPv6 counts as well.
    drop(taken);
    let taken = machine.namespace.bind_udp("[::]:4568");
    let error = machine.wg_fails(&format!("set {NAME} listen-port 4568"));
    assert!(error.contains("Address already in use"), "{error}");
    assert_eq!(machine.wg(&format!("show {NAME} dump")), before);
    drop(taken);
    // A child that another test has forked and that is not yet `wg` or the like holds it a moment longer.
    wait_until_ok(|| {
        let output = machine.output("wg", &["set", NAME, "listen-port", "4568"]);
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    });
    assert_eq!(machine.wg(&format!("show {NAME} listen-port")), "4568\n");
}

#[test]
fn a_second_daemon_leaves_the_first_alone() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let daemon = Daemon::start(&machine);
    let output = machine.output("weft", &[NAME]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{error}");
    let says = format!("interface wg0 is up already (weft runs as process {})", daemon.pid());
    assert!(error.contains(&says), "{error}");
    assert!(daemon.is_running());
    assert_eq!(machine.wg("show interfaces"), format!("{NAME}\n"));
}

#[test]
fn a_name_that_no_interface_may_have_is_an_error_of_use() {
    let Some(machine) = Machine::new(&[]) else { return };
    for name in ["sixteen-letters!", "a/b", "a b", ".."] {
        let output = machine.output("weft", &["run", name]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("is not the name of an interface"), "{error}");
    }
    // A device that exists already, without a daemon.
    machine.run("ip", &["link", "add", "dummy7", "type", "veth"]);
    let output = machine.output("weft", &["dummy7"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("interface dummy7 already exists"), "{error}");
    assert!(!machine.has_socket("dummy7"));
}
