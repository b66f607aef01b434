//! What may be in the store beside what the daemon before left there.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use weft_lab::service_manager::Doing;
use weft_lab::until;

use crate::world::{World, file_of_a, file_of_b, public};

#[test]
fn what_does_not_fit_is_given_up_and_the_rest_is_used() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let stream = world.stream(2);
    let before = world.picture();
    world.stop_for_restart();
    let kept = world.manager.shared.names();
    assert!(kept.iter().eq([&world.state_name()].into_iter().chain(&world.kept_names())), "{kept:?}");
    let udp = || -> OwnedFd { world.a.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().into() };
    world.manager.put("tun-weft0-98", udp());
    world.manager.put("tun-weft0-x", udp());
    world.manager.put("tun-other-0", world.manager.get("tun-weft0-0").unwrap());
    world.manager.put("udp4-other", udp());
    world.manager.put("tun-weft0-99", std::fs::File::open("/dev/null").unwrap().into());
    world.start();
    let log = world.log();
    for name in ["tun-weft0-98", "tun-weft0-x", "tun-other-0", "udp4-other", "tun-weft0-99"] {
        assert!(log.contains(&format!("kept as {name} is of no use")), "{name}:\n{log}");
    }
    assert_eq!(world.manager.shared.names(), kept, "nothing else is left in the store");
    assert_eq!(world.picture(), before);
    stream.end();
}

#[test]
fn a_state_that_is_not_understood_makes_it_start_from_the_file() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let stream = world.stream(1);
    let before = world.picture();
    for garbage in [&b"{\"version\":99}"[..], b"", b"no state at all"] {
        world.stop_for_restart();
        // Replaced by a file that any user could have written.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(garbage).unwrap();
        world.manager.forget("state-weft0");
        world.manager.put("state-weft0", file.into());
        world.start();
        assert!(world.log().contains("kept as state-weft0 is of no use"), "{}", world.log());
        assert_eq!(world.picture(), before, "the device goes on all the same");
        stream.goes_on();
    }
    stream.end();
}

#[test]
fn a_device_that_is_gone_is_made_again() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let stream = world.stream(1);
    world.stop_for_restart();
    world.ip("link del weft0");
    world.start();
    assert!(world.log().contains("kept as tun-weft0-0 is of no use"), "{}", world.log());
    stream.end();
    // Or another device has its name.
    world.stop_for_restart();
    world.ip("link set weft0 name weft1");
    world.start();
    assert!(world.log().contains("it belongs to interface weft1"), "{}", world.log());
    let queues = world.kept_names().iter().filter(|name| name.starts_with("tun-")).count();
    assert_eq!(world.queues(), queues as u64);
}

#[test]
fn a_device_that_is_deleted_while_it_runs_costs_no_more_than_the_device() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    world.stream(1).end();
    world.weft_ok(&["set", "weft0", "peer", &public(5).to_string(), "allowed-ips", "10.5.0.0/16"]);
    until("the change is written down", || world.left().contains("10.5.0.0/16"));
    world.ip("link del weft0");
    assert!(!world.wait().success(), "so that it is started again");
    world.stop_post();
    world.start();
    assert!(world.weft_ok(&["showconf", "weft0"]).contains("10.5.0.0/16"));
    world.stream(2).end();
    world.stop();
    assert!(!world.has_device());
}

#[test]
fn a_store_without_room_makes_a_restart_an_ordinary_stop() {
    let Some(mut world) = World::new() else { return };
    let before = world.picture_without_device();
    world.manager.set_room(2);
    world.write(&file_of_a());
    world.spawn();
    world.wait_for_log("raise FileDescriptorStoreMax=");
    until("half of it is given up", || world.manager.shared.names().is_empty());
    world.manager.set(Doing::Restart);
    world.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(world.wait().success());
    assert!(world.log().contains("raise FileDescriptorStoreMax="), "{}", world.log());
    assert!(!world.has_device(), "all is taken back");
    assert_eq!(world.picture_without_device(), before);
    world.stop_post();
}

#[test]
fn a_service_manager_that_was_slow_once_keeps_the_interface_all_the_same() {
    let Some(mut world) = World::new() else { return };
    world.manager.be_slow();
    world.start_both(&file_of_a(), &file_of_b());
    world.wait_for_log("the service manager has not answered yet");
    world.manager.catch_up();
    let stream = world.stream(1);
    let before = world.picture();
    world.restart();
    assert_eq!(world.picture(), before);
    stream.end();
}
