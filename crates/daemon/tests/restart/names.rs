//! Name servers of the interface, and names of its peers, while it is started again.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::Signal;
use weft_lab::service_manager::Doing;
use weft_lab::{link, until};

use crate::name_server::{Records, serve, set};
use crate::world::{World, file_of, file_of_b, inner, key};

const BEFORE: &str = "nameserver 198.51.100.53\noptions timeout:1\n";

fn file(dns: &str) -> String {
    file_of(1, dns, "Endpoint = 192.0.2.2:51820")
}

/// The two ends, of which A has a separate /etc, where only weft sets name servers.
fn up() -> Option<World> {
    let mut world = World::with_empty(&["/etc", "/var/lib"])?;
    world.inside(|| fs::write("/etc/resolv.conf", BEFORE)).unwrap();
    world.start_both(&file("DNS = 192.0.2.53, corp.example"), &file_of_b());
    assert!(servers(&world).eq(["192.0.2.53"]), "{}", text(&world));
    Some(world)
}

fn text(world: &World) -> String {
    world.inside(|| fs::read_to_string("/etc/resolv.conf")).unwrap()
}

fn servers(world: &World) -> impl Iterator<Item = String> {
    let text = text(world);
    let lines = text.lines().filter_map(|line| line.strip_prefix("nameserver ").map(str::to_owned));
    lines.collect::<Vec<_>>().into_iter()
}

#[test]
fn name_servers_stay_through_a_restart_and_go_with_a_stop() {
    let Some(mut world) = up() else { return };
    let in_force = text(&world);
    for _ in 0..2 {
        world.stop_for_restart();
        assert_eq!(text(&world), in_force, "the interface is down, and names are looked up as before");
        world.start();
        assert_eq!(text(&world), in_force);
    }
    world.stop();
    assert_eq!(text(&world), BEFORE);
}

#[test]
fn other_name_servers_in_the_file_take_the_place_of_those_before() {
    let Some(mut world) = up() else { return };
    world.write(&file("DNS = 192.0.2.54"));
    world.restart();
    assert!(servers(&world).eq(["192.0.2.54"]), "{}", text(&world));
    assert!(!text(&world).contains("corp.example"), "{}", text(&world));
    world.write(&file(""));
    world.restart();
    assert_eq!(text(&world), BEFORE);
    world.write(&file("DNS = 192.0.2.55"));
    world.restart();
    assert!(servers(&world).eq(["192.0.2.55"]), "{}", text(&world));
    world.stop();
    assert_eq!(text(&world), BEFORE);
}

#[test]
fn name_servers_go_when_a_restart_becomes_a_stop() {
    let Some(mut world) = up() else { return };
    world.manager.set(Doing::Restart);
    world.signal(Signal::SIGTERM);
    assert!(world.wait().success());
    assert!(servers(&world).eq(["192.0.2.53"]), "{}", text(&world));
    world.manager.set(Doing::Stop);
    world.stop_post();
    assert_eq!(text(&world), BEFORE);
}

#[test]
fn what_another_interface_takes_back_meanwhile_is_set_again() {
    let Some(mut world) = up() else { return };
    world.stop_for_restart();
    // A start repairs what daemons have left that are gone, and this one is.
    let text_of_other = format!("[Interface]\nPrivateKey = {}\n", *key(3).to_base64());
    let path = world.directory.path().join("weft1.conf");
    fs::write(&path, text_of_other).unwrap();
    let mut command = world.command(env!("CARGO_BIN_EXE_weft"));
    world.manager.environment(&mut command);
    command.arg("up").arg(&path).stderr(Stdio::null());
    let mut other = world.a.start(command).unwrap();
    let is_up = || world.weft(&["status", "weft1", "--sample", "0"]).status.success();
    until("the other interface is up", is_up);
    assert_eq!(text(&world), BEFORE);
    world.start();
    assert!(servers(&world).eq(["192.0.2.53"]), "{}", text(&world));
    world.stop();
    assert_eq!(text(&world), BEFORE);
    world.weft_ok(&["down", "weft1"]);
    assert!(other.wait().unwrap().success());
}

#[test]
fn a_peer_whose_name_is_found_through_the_tunnel_alone_is_spoken_to_where_it_was() {
    let Some(mut world) = World::with_empty(&["/etc"]) else { return };
    let resolv_conf = format!("nameserver {}\noptions timeout:1 attempts:1\n", inner(2));
    world.inside(|| fs::write("/etc/resolv.conf", resolv_conf)).unwrap();
    world.inside(|| fs::write("/etc/nsswitch.conf", "hosts: dns\n")).unwrap();
    let file = |endpoint| file_of(1, "", &format!("AllowedIPs = 0.0.0.0/0\nEndpoint = {endpoint}:51820"));
    world.start_both(&file("192.0.2.2"), &file_of_b());
    link::add_address(&world.b, "eth0", "192.0.2.3/24".parse().unwrap()).unwrap();
    let records = Records::default();
    set(&records, &[3]);
    world.b.run(|| serve((inner(2), 53), &records));
    world.stream(1).end();

    world.write(&file("vpn.weft.example"));
    world.restart();
    // Nothing asks for the tunnel before its end is known again but the look-up.
    let at = |address: &str| world.status()["peers"][0]["endpoint"] == address;
    until("the name is found through the tunnel", || at("192.0.2.3:51820"));
    world.stream(1).end();
}

/// What stands between a look-up by the system and a name server outside: lines of `[Interface]` and of the
/// peer. The server in the tunnel never answers.
const IN_THE_WAY: [(&str, &str, &str); 5] = [
    ("nothing", "", ""),
    ("name servers in the tunnel", "DNS = 10.77.0.2", ""),
    ("a default route and name servers in the tunnel", "DNS = 10.77.0.2", "AllowedIPs = 0.0.0.0/0"),
    ("a kill switch", "DNS = 10.77.0.2\n# weft: KillSwitch = on", "AllowedIPs = 0.0.0.0/0"),
    ("a route to the name server, without a mark", "", "AllowedIPs = 203.0.113.0/24"),
];

/// A name server behind B, which weft at A reaches without the tunnel.
const OUTSIDE: &str = "203.0.113.53";

fn with_a_name(interface: &str, peer: &str) -> Option<(World, Records)> {
    let mut world = World::with_empty(&["/etc", "/var/lib"])?;
    let resolv_conf = format!("nameserver {OUTSIDE}\noptions timeout:1 attempts:1\n");
    world.inside(|| fs::write("/etc/resolv.conf", resolv_conf)).unwrap();
    world.inside(|| fs::write("/etc/nsswitch.conf", "hosts: dns\n")).unwrap();
    link::add_address(&world.b, "eth0", format!("{OUTSIDE}/32").parse().unwrap()).unwrap();
    link::add_address(&world.b, "eth0", "192.0.2.3/24".parse().unwrap()).unwrap();
    link::add_route(&world.a, "0.0.0.0/0".parse().unwrap(), "192.0.2.2".parse().unwrap()).unwrap();
    let records = Records::default();
    set(&records, &[2]);
    world.b.run(|| serve((OUTSIDE, 53), &records));
    world.start_both(&file_with_name(interface, peer, "vpn"), &file_of_b());
    Some((world, records))
}

fn file_with_name(interface: &str, peer: &str, host: &str) -> String {
    file_of(1, interface, &format!("{peer}\nEndpoint = {host}.weft.example:51820"))
}

#[test]
fn a_name_is_looked_up_past_the_tunnel_that_it_is_for() {
    for (what, interface, peer) in IN_THE_WAY {
        let Some((mut world, records)) = with_a_name(interface, peer) else { return };
        let is_at = |world: &World, address: &str| world.status()["peers"][0]["endpoint"] == address;
        assert!(is_at(&world, "192.0.2.2:51820"), "{what}");
        // Another network: the name is looked up again.
        set(&records, &[3]);
        link::add_address(&world.a, "eth0", "192.0.2.9/24".parse().unwrap()).unwrap();
        until("the name is followed", || is_at(&world, "192.0.2.3:51820"));
        // A name that the file did not have is looked up by the restart.
        set(&records, &[4]);
        world.write(&file_with_name(interface, peer, "gw"));
        world.restart();
        assert!(is_at(&world, "192.0.2.4:51820"), "{what}: {}", world.status());
        world.stop();
    }
}

#[test]
fn a_name_is_looked_up_behind_the_kill_switch_that_a_crash_has_left() {
    let (_, interface, peer) = IN_THE_WAY[3];
    let Some((mut world, records)) = with_a_name(interface, peer) else { return };
    world.signal(Signal::SIGKILL);
    world.wait();
    world.empty_the_store();
    set(&records, &[3]);
    world.start();
    let endpoint = world.status()["peers"][0]["endpoint"].clone();
    assert_eq!(endpoint, "192.0.2.3:51820");
    world.stop();
}
