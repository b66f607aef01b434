//! `weft up`: its commands talk to the interface that they belong to, and wg(8) changes it afterwards.

use std::path::Path;

use nix::sys::signal::Signal;
use weft_lab::wait_until;

use crate::support::{Daemon, Machine, NAME, key, public_key};

fn up(machine: &Machine, file: &str) -> Daemon {
    let mut command = machine.command("weft");
    command.args(["up", file]);
    Daemon::spawn(machine, command)
}

#[track_caller]
fn wait_for(file: &Path, daemon: &Daemon) -> String {
    wait_until("a command of the configuration", || {
        let text = std::fs::read_to_string(file).ok();
        text.filter(|text| text.ends_with('\n')).or_else(|| {
            assert!(!daemon.log().contains("error:"), "{}", daemon.log());
            None
        })
    })
}

#[test]
fn a_command_sets_the_key_and_another_one_reads_what_is() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = ["before", "after"].map(|name| directory.path().join(name));
    let secret = machine.file("key", &key(1).to_base64());
    let text = format!(
        "[Interface]\nListenPort = 4568\nAddress = 10.9.0.1/24\n\
         PreUp = wg show %i listen-port > {}\n\
         PostUp = wg set %i private-key {secret}\n\
         PostUp = wg show %i dump > {}\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 10.20.0.0/16\n",
        before.display(),
        after.display(),
        public_key(2)
    );
    let file = machine.file(&format!("{NAME}.conf"), &text);
    let mut daemon = up(&machine, &file);
    assert_eq!(wait_for(&before, &daemon), "4568\n");
    let dump = wait_for(&after, &daemon);
    assert!(dump.contains(&public_key(1).to_string()) && dump.contains("10.20.0.0/16"), "{dump}");

    // The commands are through, and it still is at wg's disposal.
    machine.wg(&format!("set {NAME} peer {} persistent-keepalive 25", public_key(2)));
    assert!(machine.wg(&format!("show {NAME} persistent-keepalive")).contains("25"));
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(!machine.has_socket(NAME) && !machine.has_link(NAME));
}

#[test]
fn without_a_key_and_a_command_that_could_set_it_nothing_begins() {
    let Some(machine) = Machine::new(&[]) else { return };
    let file = machine.file(&format!("{NAME}.conf"), "[Interface]\nListenPort = 4568\n");
    let output = machine.output("weft", &["up", &file]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("PrivateKey"), "{stderr}");
}

#[test]
fn removing_the_socket_takes_the_interface_down() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let text = format!("[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n", *key(1).to_base64());
    let file = machine.file(&format!("{NAME}.conf"), &text);
    let mut daemon = up(&machine, &file);
    daemon.wait_until_ready(&machine);
    machine.run("rm", &[&format!("/run/wireguard/{NAME}.sock")]);
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(!machine.has_link(NAME));
}

#[test]
fn a_peer_is_changed_by_its_name_in_the_file() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let peer = |number, name| {
        let key = public_key(number);
        format!("[Peer]\n# friendly_name = {name}\nPublicKey = {key}\nAllowedIPs = 10.9.0.{number}/32\n")
    };
    let peers = [peer(2, "laptop"), peer(3, "phone"), peer(4, "phone")].concat();
    let text = format!("[Interface]\nPrivateKey = {}\n{peers}", *key(1).to_base64());
    let file = machine.file(&format!("{NAME}.conf"), &text);
    let daemon = up(&machine, &file);
    daemon.wait_until_ready(&machine);
    machine.run("weft", &["set", NAME, "peer", "laptop", "persistent-keepalive", "25"]);
    assert!(
        machine.wg(&format!("show {NAME} persistent-keepalive")).contains(&format!("{}\t25", public_key(2)))
    );
    let before = machine.wg(&format!("show {NAME} dump"));
    for (name, told) in [
        ("laptpo", "wg0: no peer has the key or the name laptpo; similar names are laptop".to_owned()),
        (
            "phone",
            format!("wg0: several peers are called phone; give the public key of one: {}", public_key(3)),
        ),
    ] {
        // The first peer is not removed either.
        let words = ["set", NAME, "peer", "laptop", "remove", "peer", name, "remove"];
        let output = machine.output("weft", &words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(&told), "{said}");
    }
    assert_eq!(machine.wg(&format!("show {NAME} dump")), before);
    machine.run(
        "weft",
        &["set", &file, "peer", "laptop", "remove", "peer", &public_key(3).to_string()[..10], "remove"],
    );
    assert_eq!(machine.wg(&format!("show {NAME} peers")), format!("{}\n", public_key(4)));
}

#[test]
fn down_removes_the_socket_that_a_killed_daemon_left() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let text = format!("[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n", *key(1).to_base64());
    let file = machine.file(&format!("{NAME}.conf"), &text);
    // Of `weft up`, which writes down what is to be taken back, and of `weft NAME`, which leaves nothing
    // else.
    for starts in [up as fn(&Machine, &str) -> Daemon, |machine, _| Daemon::start(machine)] {
        let mut daemon = starts(&machine, &file);
        daemon.wait_until_ready(&machine);
        daemon.signal(Signal::SIGKILL);
        daemon.wait();
        assert!(machine.has_socket(NAME));
        machine.run("weft", &["down", NAME]);
        assert!(!machine.has_socket(NAME));
        let again = machine.output("weft", &["down", NAME]);
        assert_eq!(again.status.code(), Some(1), "{again:?}");
    }
}
