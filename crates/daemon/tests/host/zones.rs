//! Endpoints that are link-local: the zone is their way, and its link has the MTU.

use weft_lab::link::{self, LinkOptions};
use weft_lab::{wait_until, wait_until_ok};

use crate::support::{End, NAME, Network, ip_json, peer};

fn mtu_of(network: &Network) -> u64 {
    ip_json(&network.client, &["link", "show", NAME])[0]["mtu"].as_u64().unwrap()
}

#[test]
fn the_mtu_is_that_of_the_link_of_the_zone_for_the_start_and_for_what_tells_of_it() {
    let Some(network) = Network::new() else { return };
    let second =
        LinkOptions { name_a: "eth1".into(), name_b: "eth1".into(), mtu: 1400, ..LinkOptions::default() };
    link::join(&network.client, &network.server, &second).unwrap();
    let before = network.picture();
    // A full tunnel has rules that lead everything else into it.
    let full = "AllowedIPs = 0.0.0.0/0, ::/0, fe80::/10";
    for (zone, mtu, allowed_ips) in [
        ("eth0", 1500, "AllowedIPs = 10.88.0.0/16"),
        ("eth1", 1400, "AllowedIPs = 10.88.0.0/16"),
        ("eth0", 1500, full),
        ("eth1", 1400, full),
    ] {
        let case = format!("{zone} {allowed_ips}");
        let endpoint = format!("[fe80::9%{zone}]:51820");
        let lines = format!("{allowed_ips}\nEndpoint = {endpoint}");
        let text = End::new(1).interface("") + &peer(End::new(2).public(), &lines);
        let file = network.file("weft0.conf", &text);
        let path = file.to_str().unwrap();
        let says = format!("the route to {endpoint} carries {mtu} bytes");
        let told =
            |ended: crate::support::Ended| ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let doctor = told(network.run(&["doctor", path]));
        assert!(doctor.contains(&says), "{case}: {doctor}");
        let check = network.run(&["check", path]);
        assert!(check.code == Some(0) && !check.stderr.contains("fe80::9"), "{case}: {check:?}");
        let daemon = network.up(&file);
        assert_eq!(mtu_of(&network), mtu - 80, "{case}");
        wait_until_ok(|| {
            let doctor = told(network.run(&["doctor", NAME]));
            if doctor.contains(&says) && !doctor.contains("in circles") { Ok(()) } else { Err(doctor) }
        });
        let status: serde_json::Value =
            serde_json::from_str(&network.run(&["status", NAME, "--json"]).stdout).unwrap();
        let status = &status["interfaces"][0];
        assert_eq!(status["mtu"], mtu - 80, "{case}: {status}");
        let findings = status["findings"].to_string();
        assert!(!findings.contains("fe80::9"), "{case}: {findings}");
        // It follows its link, and that alone.
        for (link, outer, inner) in
            [("eth1", 1380, if zone == "eth1" { 1300 } else { 1420 }), ("eth1", 1400, mtu - 80)]
        {
            link::set_mtu(&network.client, link, outer).unwrap();
            wait_until("the MTU follows", || (mtu_of(&network) == inner).then_some(()));
        }
        daemon.stop();
        network.assert_as(&before);
    }
}
