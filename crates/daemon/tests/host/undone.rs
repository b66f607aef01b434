//! What other programs undo while an interface is up, and weft restores.

use std::os::fd::AsRawFd as _;

use weft_lab::{Namespace, here, until};

use crate::full_tunnel::{V4, with_tunnel};
use crate::support::{End, NAME, Network, ip, ip_json, peer, seen_from};

const SAFE: &str = "# weft: KillSwitch = on\n# weft: MssClamp = on";

fn run(namespace: &Namespace, command: &str) {
    let mut words = command.split_whitespace();
    let status = namespace.command(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Undoes something of a full tunnel with these commands at the client, and waits until everything is as it
/// was.
fn restored_after(commands: &[&str]) {
    with_tunnel(V4, "0.0.0.0/0, ::/0, 203.0.113.9", SAFE, |network| {
        let up = network.picture();
        for command in commands {
            run(&network.client, command);
        }
        up.assert_restored(&network.client);
        goes_through_the_tunnel(network);
    });
}

fn goes_through_the_tunnel(network: &Network) {
    assert_eq!(seen_from(network, ip("198.51.100.1")), ip("10.77.0.1"));
    assert_eq!(seen_from(network, ip("2001:db8:aa::1")), ip("fd77::1"));
}

#[test]
fn a_firewall_that_starts_again_does_not_end_the_kill_switch() {
    if here::installed(&["nft"]) {
        restored_after(&["nft flush ruleset"]);
        restored_after(&["nft delete table inet weft-weft0", "nft delete table ip wg-quick-weft0"]);
    }
}

#[test]
fn a_kill_switch_outlives_a_command_that_loads_a_firewall() {
    if !here::installed(&["nft"]) {
        return;
    }
    with_tunnel(V4, "0.0.0.0/0", "# weft: KillSwitch = on\nPostUp = nft flush ruleset", |network| {
        until("the kill switch is there again", || network.picture().has("weft-weft0"));
    });
}

#[test]
fn rules_that_another_program_removes_come_back() {
    restored_after(&[
        "ip -4 rule del not fwmark 51820 table 51820",
        "ip -6 rule del table main suppress_prefixlength 0",
    ]);
    restored_after(&["ip -4 route flush table 51820", "ip -6 route flush table 51820"]);
}

#[test]
fn a_device_that_was_set_down_has_its_addresses_and_routes_again_when_it_is_up() {
    restored_after(&["ip link set weft0 down", "ip link set weft0 up"]);
}

#[test]
fn a_route_that_was_removed_by_hand_stays_away() {
    with_tunnel(V4, "0.0.0.0/0, ::/0, 203.0.113.9", SAFE, |network| {
        let up = network.picture();
        run(&network.client, &format!("ip route del 203.0.113.9 dev {NAME}"));
        let changed = network.picture();
        assert_ne!(up, changed);
        run(&network.client, "ip -4 rule del not fwmark 51820 table 51820");
        changed.assert_restored(&network.client);
    });
}

#[test]
fn a_device_with_the_index_of_one_that_has_left_gets_no_routes() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0");
    let file = network.file("weft0.conf", &text);
    let client = network.start(network.weft(&["--log", "debug", "up", file.to_str().unwrap()]));
    let index = ip_json(&network.client, &["link", "show", "dev", NAME])[0]["ifindex"].to_string();
    let elsewhere = format!("/proc/{}/fd/{}", std::process::id(), network.server.as_raw_fd());
    run(&network.client, &format!("ip link set {NAME} netns {elsewhere}"));
    run(&network.client, &format!("ip link add other index {index} type veth peer name end"));
    run(&network.client, "ip link set other up");
    run(&network.client, "ip -4 rule del not fwmark 51820 table 51820");
    client.wait_for_line("rules_removed: true");
    // The control thread answers when it has handled that.
    let _refused = network.run(&["reload", "--dry-run", file.to_str().unwrap()]);
    let now = network.picture();
    assert!(!now.has("\"table\":\"51820\""), "{now:#?}");
    client.stop();
}
