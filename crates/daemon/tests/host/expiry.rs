//! Peers that end at their time: `# weft: Expires`.

use std::time::{Duration, SystemTime};

use weft_config::Expiry;
use weft_lab::wait_until;

use crate::support::{End, NAME, Network};

/// A moment in this many seconds.
fn in_seconds(seconds: u64) -> String {
    // A command takes whole hours: one hour from an hour ago.
    let now = SystemTime::now() + Duration::from_secs(seconds);
    Expiry::of_command("1h", now - Duration::from_secs(3600)).unwrap().to_string()
}

#[test]
fn a_peer_ends_at_its_time_and_what_was_set_at_run_time_stays() {
    let Some(network) = Network::new() else { return };
    let guest = End::new(4).public().to_string();
    let text = |expires: &str| {
        let interface = End::new(1).interface("ListenPort = 51820");
        format!(
            "{interface}[Peer]\n# friendly_name = guest\n# weft: Expires = {expires}\nPublicKey = {guest}\nAllowedIPs = \
             10.99.0.0/24\n"
        )
    };
    let file = network.file("weft0.conf", &text("2999-12-31"));
    let daemon = network.up(&file);
    let run = |arguments: &[&str]| {
        let ended = network.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    };
    let peers = || run(&["show", NAME, "peers"]);
    let has_route = || {
        let output = network.client.command("ip").args(["route", "show", "10.99.0.0/24"]).output().unwrap();
        !output.stdout.is_empty()
    };
    let status = || run(&["status", NAME, "--json", "--sample", "0"]);
    assert!(peers().contains(&guest) && has_route());
    assert!(status().contains("\"expires\": \"2999-12-31T23:59:59Z\""), "{}", status());
    assert!(run(&["status", NAME, "guest", "--sample", "0"]).contains("2999-12-31T23:59:59Z"));

    std::fs::write(&file, text(&in_seconds(3))).unwrap();
    run(&["reload", NAME]);
    let added = End::new(3).public().to_string();
    let add = || run(&["set", NAME, "peer", &added, "allowed-ips", "10.77.0.3/32"]);
    add();
    wait_until("the end of the peer", || (!peers().contains(&guest)).then_some(()));
    wait_until("the end of its route", || (!has_route()).then_some(()));
    assert!(peers().contains(&added), "what wg(8) has set is undone");
    let report = status();
    assert!(report.contains("\"expired_peers\"") && report.contains("ended at"), "{report}");
    let alone = run(&["status", NAME, "guest", "--sample", "0"]);
    assert!(alone.contains("ended at") && alone.contains("`weft peer extend guest 30d`"), "{alone}");
    let shown = network.run(&["show", NAME, "guest"]);
    assert!(
        shown.code == Some(1) && shown.stderr.contains("guest has ended; `weft peer extend"),
        "{shown:?}"
    );
    // Nor does a file that is applied again let it in, and what does is told.
    run(&["syncconf", NAME, file.to_str().unwrap()]);
    let stripped = network.file("stripped", &run(&["strip", file.to_str().unwrap()]));
    run(&["addconf", NAME, stripped.to_str().unwrap()]);
    assert!(!peers().contains(&guest), "a peer that has ended is let in again");
    run(&["set", NAME, "peer", &guest]);
    assert!(status().contains("has let it in again"), "{}", status());
    run(&["set", NAME, "peer", &guest, "remove"]);
    add();
    // Its absence is no change that `weft save` or `weft peer` finds.
    run(&["save", NAME]);
    assert!(std::fs::read_to_string(&file).unwrap().contains(&guest));
    assert!(run(&["peer", "list"]).contains("ended"));
    run(&["peer", "extend", "guest", "30d"]);
    assert!(peers().contains(&guest) && peers().contains(&added) && has_route());
    daemon.stop();
}
