//! Many routes: those of a router, and those of peers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use weft_lab::Process;

use crate::support::{End, NAME, Network, ip_json, peer};

const ROUTES: u32 = 250_000;
const PREFIX: &str = "198.51.100.0/24";
/// The kernel's answer is read in parts of up to 4 MiB, which take some 30 MiB. All routes take twice as
/// much.
const ALLOWED_KIB: u64 = 48 << 10;
/// What one daemon may have more than another with the same configuration.
const NOISE_KIB: u64 = 4 << 10;

#[test]
fn a_router_with_many_routes_needs_no_memory_for_them() {
    let Some(network) = Network::new() else { return };
    let end = End::new(1);
    // Whether the route to the peer is there already has to be found out.
    let pre_up = format!("PreUp = ip link set %i up; ip route add {PREFIX} dev %i\n");
    let peer = peer(End::new(2).public(), &format!("AllowedIPs = {PREFIX}"));
    let write = |mtu: &str| network.file("weft0.conf", &(end.interface(&format!("{pre_up}{mtu}")) + &peer));
    // The most memory of a start without an MTU, and of one with an MTU and a reload.
    let peaks = || {
        let without_mtu = peak(network.up(&write("")));
        let daemon = network.up(&write("MTU = 1400"));
        let reload = network.run(&["reload", write("MTU = 1380").to_str().unwrap()]);
        assert_eq!(reload.code, Some(0), "{reload:?}");
        (without_mtu, peak(daemon))
    };
    let usual = peaks();
    let mut routes = String::new();
    for host in 0..ROUTES {
        let [_, a, b, c] = host.to_be_bytes();
        writeln!(routes, "route add 11.{a}.{b}.{c}/32 via 192.0.2.2").unwrap();
    }
    let batch = network.file("routes", &routes);
    assert!(network.client.command("ip").arg("-batch").arg(batch).status().unwrap().success());
    let with_routes = peaks();
    // The MTU comes from the default route, which is found among all routes.
    assert!(with_routes.0 < usual.0 + ALLOWED_KIB, "{usual:?} KiB, {with_routes:?} with {ROUTES} routes");
    assert!(with_routes.1 < usual.1 + NOISE_KIB, "{usual:?} KiB, {with_routes:?} with {ROUTES} routes");
}

/// Ends a daemon. Returns the most memory that it had, in KiB.
fn peak(daemon: Process) -> u64 {
    let peak = daemon.peak_memory_kib().unwrap();
    daemon.stop();
    peak
}

/// A change that compares each prefix with each other one takes longer than the command waits. Copies of all
/// changes take some 80 MiB.
#[test]
fn a_reload_replaces_twenty_thousand_prefixes_by_others_without_copies_of_them() {
    let Some(network) = Network::new() else { return };
    let (end, other) = (End::new(1), End::new(2));
    let prefixes = |net: u8| -> BTreeSet<String> {
        (0..20_000_u16).map(u16::to_be_bytes).map(|[a, b]| format!("{net}.1.{a}.{b}")).collect()
    };
    let text = |net: u8| {
        let prefixes: Vec<String> = prefixes(net).into_iter().collect();
        end.interface("") + &peer(other.public(), &format!("AllowedIPs = {}", prefixes.join(", ")))
    };
    let routed = || -> BTreeSet<String> {
        let routes = ip_json(&network.client, &["-4", "route", "show", "dev", NAME, "proto", "static"]);
        let of = |route: &Value| route["dst"].as_str().unwrap().to_owned();
        routes.iter().map(of).collect()
    };
    let file = network.file("weft0.conf", &text(11));
    let daemon = network.up(&file);
    assert_eq!(routed(), prefixes(11));
    let usual = daemon.peak_memory_kib().unwrap();
    network.file("weft0.conf", &text(12));
    let reload = network.run(&["reload", file.to_str().unwrap()]);
    assert_eq!(reload.code, Some(0), "{}", reload.stderr);
    assert_eq!(routed(), prefixes(12));
    let with_reload = peak(daemon);
    assert!(with_reload < usual + ALLOWED_KIB, "{usual} KiB, {with_reload} after the reload");
}
