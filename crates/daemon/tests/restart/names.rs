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
