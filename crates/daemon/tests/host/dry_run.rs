//! `--dry-run` tells what would be done, and does nothing.

use crate::support::{End, Network, peer};

#[test]
fn a_dry_run_tells_every_step_and_does_none() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let marker = network.directory.path().join("marker");
    let lines = format!("PreUp = touch {0}\nPostUp = touch {0}\nDNS = 192.0.2.53", marker.display());
    let text = End::new(1).interface(&lines)
        + &peer(End::new(2).public(), "Endpoint = 203.0.113.1:1\nAllowedIPs = 0.0.0.0/0, 10.88.0.0/16");
    let file = network.file("weft0.conf", &text);
    let ended = network.run(&["up", "--dry-run", file.to_str().unwrap()]);
    assert!(ended.code == Some(0) && ended.stderr.contains("all of IPv6 goes past it"), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| !line.starts_with("run ")).collect();
    let expected = [
        "create device weft0",
        "configure keys, port and peers of weft0 with mark 0xca6c",
        "add address 10.77.0.1/24 dev weft0",
        "add address fd77::1/64 dev weft0",
        "set mtu 1420 dev weft0",
        "set up dev weft0",
        "set dns 192.0.2.53 dev weft0",
        "add route 10.88.0.0/16 dev weft0 table main",
        "set sysctl net.ipv4.conf.all.src_valid_mark=1",
        "add route 0.0.0.0/0 dev weft0 table 51820",
        "add ip rule table main suppress_prefixlength 0 priority 32764",
        "add ip rule not fwmark 0xca6c table 51820 priority 32765",
        "add firewall full tunnel of IPv4 with mark 0xca6c dev weft0",
    ];
    assert_eq!(lines, expected);
    assert_eq!(network.picture(), before);
    assert!(!marker.exists());
    assert_eq!(network.left(), [""; 0]);
    let down = network.run(&["down", "--dry-run", "weft0"]);
    assert_eq!(down.code, Some(1), "{down:?}");

    // As check notes it.
    let text = End::new(1).interface("").replace("Address = ", "# Address = ")
        + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16");
    let file = network.file("weft0.conf", &text);
    let ended = network.run(&["up", "--dry-run", file.to_str().unwrap()]);
    assert!(ended.code == Some(0) && ended.stderr.contains("Address: [Interface] has none"), "{ended:?}");
}
