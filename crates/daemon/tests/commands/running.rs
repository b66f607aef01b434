//! The commands on running daemons: what they say and do is so.
//!
//! ```text
//!   wga :1001 ── 127.0.0.1 ── :1002 wgb     the same implementation twice, in one namespace
//! ```

use weft_lab::{Namespace, until};

use crate::daemon::{self, IMPLEMENTATIONS, can_run};
use crate::programs::{weft, weft_reads, wg};
use crate::sandbox;

const SPARE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn new_key() -> (String, String) {
    let private = weft(&["genkey"]).output();
    let public = weft_reads(&["pubkey"], &private).output();
    (private.trim().to_owned(), public.trim().to_owned())
}

fn show(interface: &str, field: &str) -> String {
    weft(&["show", interface, field]).output()
}

/// The columns that no traffic changes, sorted: wireguard-go gives its peers in another order each time.
fn configured(dump: &str) -> Vec<String> {
    let columns = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let fixed =
            columns.iter().enumerate().filter(|(index, _)| columns.len() == 4 || !(4..7).contains(index));
        fixed.map(|(_, column)| *column).collect::<Vec<_>>().join(" ")
    };
    let mut lines: Vec<String> = dump.lines().map(columns).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_session_survives_every_change_beside_it() {
    if !can_run() {
        return;
    }
    for program in IMPLEMENTATIONS {
        sandbox::run(|| change_beside_a_session(program));
    }
}

fn change_beside_a_session(program: &str) {
    let namespace = Namespace::new("one").unwrap();
    let _daemons = ["wga", "wgb"].map(|name| daemon::start(program, &namespace, name));
    let ((key_a, public_a), (key_b, public_b)) = (new_key(), new_key());
    let conf = |key: &str, port: u16, peer: &str| {
        format!(
            "[Interface]\nPrivateKey={key}\nListenPort={port}\n[Peer]\nPublicKey={peer}\nAllowedIPs=10.0.0.0/24\n"
        )
    };
    // Only one of them begins, so that there is one handshake.
    let conf_a = conf(&key_a, 1001, &public_b) + "Endpoint=127.0.0.1:1002\nPersistentKeepalive=1\n";
    weft_reads(&["setconf", "wgb", "-"], &conf(&key_b, 1002, &public_a)).output();
    weft_reads(&["setconf", "wga", "/dev/stdin"], &conf_a).output();
    let is_done = || !show("wga", "latest-handshakes").trim_end().ends_with("\t0");
    until("a handshake", is_done);
    let before = show("wga", "latest-handshakes");
    let sent = || -> u64 {
        let transfer = show("wga", "transfer");
        let ours = transfer.lines().find(|line| line.starts_with(&public_b)).unwrap().to_owned();
        ours.rsplit('\t').next().unwrap().parse().unwrap()
    };
    let at_least = sent();

    // Another peer comes, changes and goes; the session is not touched.
    let spare = format!("[Peer]\nPublicKey={SPARE}\nAllowedIPs=10.1.0.0/16\n");
    weft_reads(&["syncconf", "wga", "-"], &format!("{conf_a}{spare}")).output();
    assert_eq!(show("wga", "peers").lines().count(), 2);
    weft(&["set", "wga", "peer", SPARE, "persistent-keepalive", "9", "allowed-ips", "10.2.0.0/16,fd00::/8"])
        .output();
    let dump = show("wga", "dump");
    assert_eq!(configured(&dump), configured(&wg(&["show", "wga", "dump"]).output()));
    let line = dump.lines().find(|line| line.starts_with(SPARE)).unwrap();
    assert!(line.ends_with("\t9") && line.contains("\t10.2.0.0/16,fd00::/8\t"), "{line}");
    // The wireguard-go of some systems is older than allowed-ips with signs.
    if program != "wireguard-go" {
        let signs = "+10.3.0.0/16,-10.2.0.0/16";
        weft(&["set", "wga", "peer", SPARE, "allowed-ips", signs]).output();
        let prefixes = show("wga", "allowed-ips");
        assert!(prefixes.contains(&format!("{SPARE}\tfd00::/8 10.3.0.0/16\n")), "{prefixes}");
    }
    weft_reads(&["addconf", "wga", "-"], &spare).output();
    let spare_ips = show("wga", "allowed-ips");
    assert!(spare_ips.contains(&format!("{SPARE}\t10.1.0.0/16\n")), "{spare_ips}");
    weft_reads(&["syncconf", "wga", "-"], &format!("{conf_a}# friendly_name = b\n")).output();
    assert_eq!(show("wga", "peers"), format!("{public_b}\n"));
    assert_eq!(show("wga", "latest-handshakes"), before, "there is a new session");
    assert!(sent() >= at_least, "the counters were reset");

    // What showconf prints makes the interface what it is.
    let shown = weft(&["showconf", "wga"]).output();
    assert_eq!(shown, wg(&["showconf", "wga"]).output());
    weft_reads(&["setconf", "wgb", "-"], "").output();
    assert_eq!(show("wgb", "private-key"), "(none)\n");
    weft_reads(&["setconf", "wga", "-"], &shown).output();
    assert_eq!(weft(&["showconf", "wga"]).output(), shown);
}
