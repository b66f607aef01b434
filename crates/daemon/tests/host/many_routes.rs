//! A router whose tables have many routes of others.

use std::fmt::Write as _;

use weft_lab::Process;

use crate::support::{End, Network};

const ROUTES: u32 = 250_000;
/// The kernel's answer is read in parts of up to 4 MiB, which take some 30 MiB. All routes take twice as
/// much.
const ALLOWED_KIB: u64 = 48 << 10;

#[test]
fn a_router_with_many_routes_needs_no_memory_for_them() {
    let Some(network) = Network::new() else { return };
    let end = End::new(1);
    let file = network.file("weft0.conf", &end.interface(""));
    let usual = peak(network.up(&file));
    let mut routes = String::new();
    for host in 0..ROUTES {
        let [_, a, b, c] = host.to_be_bytes();
        writeln!(routes, "route add 11.{a}.{b}.{c}/32 via 192.0.2.2").unwrap();
    }
    let batch = network.file("routes", &routes);
    assert!(network.client.command("ip").arg("-batch").arg(batch).status().unwrap().success());
    let daemon = network.up(&file);
    // A reload looks which routes are in force.
    std::fs::write(&file, end.interface("MTU = 1400")).unwrap();
    let reload = network.run(&["reload", file.to_str().unwrap()]);
    assert_eq!(reload.code, Some(0), "{reload:?}");
    let with_routes = peak(daemon);
    assert!(with_routes < usual + ALLOWED_KIB, "{usual} KiB, {with_routes} with {ROUTES} routes");
}

/// Ends a daemon. Returns the most memory that it had, in KiB.
fn peak(daemon: Process) -> u64 {
    let peak = daemon.peak_memory_kib().unwrap();
    daemon.stop();
    peak
}
