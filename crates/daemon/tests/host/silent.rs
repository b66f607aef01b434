//! A device sends nothing that no program asked for, as a device of the kernel's WireGuard does not.

use weft_lab::Namespace;

use crate::support::{End, NAME, Network, Picture, ip_json, peer};

/// Checks that the device is as the kernel makes those of its WireGuard (drivers/net/wireguard/device.c).
#[track_caller]
fn assert_silent(namespace: &Namespace) {
    let link = &ip_json(namespace, &["-d", "-s", "link", "show", "dev", NAME])[0];
    let mut flags: Vec<&str> =
        link["flags"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    flags.sort_unstable();
    assert_eq!(flags, ["LOWER_UP", "NOARP", "POINTOPOINT", "UP"], "{link:#}");
    assert_eq!(link["inet6_addr_gen_mode"], "none", "{link:#}");
    assert_eq!(link["stats64"]["tx"]["packets"], 0, "{link:#}");
    let addresses = ip_json(namespace, &["address", "show", "dev", NAME])[0]["addr_info"].to_string();
    assert!(!addresses.contains("fe80"), "{addresses}");
}

#[test]
fn the_kernel_sends_nothing_by_itself() {
    let Some(network) = Network::new() else { return };
    // A router takes part in another multicast group.
    network.client.set_sysctl("net/ipv6/conf/default/forwarding", "1").unwrap();
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 10.77.0.2, fd77::2");
    let daemon = network.up(&network.file("weft0.conf", &text));
    assert_silent(&network.client);
    for state in ["down", "up"] {
        let done = network.client.command("ip").args(["link", "set", NAME, state]).status().unwrap();
        assert!(done.success());
    }
    // Its IPv6 addresses are there, and the kernel has done what it does for them.
    let _settled = Picture::of(&network.client);
    assert_silent(&network.client);
    daemon.stop();
}
