//! What the threads of a running daemon may do, as the kernel has it and as `weft status` reports it.

use std::collections::BTreeMap;

use weft_confine::support;
use weft_lab::{here, until, wait_until};

use crate::support::{Daemon, Machine, NAME, key, public_key};

/// By name of a thread: its capabilities, and whether its system calls are filtered.
fn threads(machine: &Machine) -> BTreeMap<String, (Vec<String>, bool)> {
    // The control socket opens after that of wg(8).
    let output = wait_until("the control socket answers", || {
        let output = machine.output("weft", &["status", NAME, "--json", "--sample", "0"]);
        output.status.success().then_some(output.stdout)
    });
    let status: serde_json::Value = serde_json::from_slice(&output).unwrap();
    let threads = status["interfaces"][0]["threads"].as_array().unwrap();
    let of = |thread: &serde_json::Value| {
        let capabilities = thread["capabilities"].as_array().unwrap().iter();
        let capabilities = capabilities.map(|name| name.as_str().unwrap().to_owned()).collect();
        (
            thread["name"].as_str().unwrap().to_owned(),
            (capabilities, thread["is_filtered"].as_bool().unwrap()),
        )
    };
    threads.iter().map(of).collect()
}

fn assert_confined(machine: &Machine, expected: &[&str]) {
    if !support().system_calls {
        return here::not_run("this kernel or processor cannot filter system calls");
    }
    // wg(8) is answered before a start has ended.
    until("all threads have begun", || expected.iter().all(|name| threads(machine).contains_key(*name)));
    let threads = threads(machine);
    for name in expected {
        let (capabilities, is_filtered) = threads.get(*name).unwrap_or_else(|| panic!("{name}: {threads:?}"));
        assert!(is_filtered, "{name}: {threads:?}");
        if *name == "weft-packets" {
            let needed = ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"];
            assert!(capabilities.iter().all(|name| needed.contains(&&**name)), "{threads:?}");
        } else {
            assert!(capabilities.is_empty(), "{name}: {threads:?}");
        }
    }
    let (capabilities, is_filtered) = &threads["weft"];
    assert!(
        !is_filtered && capabilities.contains(&"CAP_NET_ADMIN".to_owned()),
        "the control thread: {threads:?}"
    );
}

#[test]
fn a_daemon_from_a_shell_is_confined() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let mut command = machine.command("weft");
    command.args(["-f", NAME, "--metrics", "127.0.0.1:9586"]);
    let daemon = Daemon::spawn(&machine, command);
    daemon.wait_until_ready(&machine);
    // Another port and a mark, by the confined threads.
    machine.wg(&format!("set {NAME} listen-port 4567 fwmark 7"));
    assert_confined(&machine, &["weft-packets", "weft-uapi", "weft-control", "weft-metrics"]);
    let text = machine.run("weft", &["status", "-v", NAME]);
    assert!(text.contains("weft-packets"), "{text}");
}

#[test]
fn the_threads_of_weft_up_are_confined() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    // A thread looks the name up again; a start does not wait for it beside a peer that may call.
    let peers = ["", "Endpoint = no-such-name.invalid:51821\n"];
    let peers =
        (2..).zip(peers).map(|(number, line)| format!("[Peer]\nPublicKey = {}\n{line}", public_key(number)));
    let peers: String = peers.collect();
    let text = format!("[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n{peers}", *key(1).to_base64());
    let file = machine.file(&format!("{NAME}.conf"), &text);
    let mut command = machine.command("weft");
    // Several packet threads have no threads of the TUN beside them.
    command.args(["up", &file, "--tun-threads", "1"]).env_remove("WEFT_PACKET_THREADS");
    let daemon = Daemon::spawn(&machine, command);
    daemon.wait_until_ready(&machine);
    let all = [
        "weft-packets",
        "weft-tun-r0",
        "weft-tun-w0",
        "weft-uapi",
        "weft-control",
        "weft-names",
        "weft-network",
    ];
    assert_confined(&machine, &all);
}

#[test]
fn confinement_can_be_left_out() {
    let Some(machine) = Machine::new(&["wg"]) else { return };
    let mut command = machine.command("weft");
    command.args(["-f", NAME]).env("WEFT_CONFINEMENT", "off");
    let daemon = Daemon::spawn(&machine, command);
    daemon.wait_until_ready(&machine);
    assert!(threads(&machine).values().all(|(_, is_filtered)| !is_filtered));
}
