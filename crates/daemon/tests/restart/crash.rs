//! A daemon that ends without a word.

use nix::sys::signal::Signal;
use weft_lab::until;

use crate::world::{World, file_of_a, file_of_b, public};

#[test]
fn a_killed_daemon_comes_back_with_the_same_device_and_port_and_streams_go_on() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let (there, back) = (world.stream(1), world.stream(2));
    world.weft_ok(&["set", "weft0", "peer", &public(5).to_string(), "allowed-ips", "10.5.0.0/16"]);
    let before = world.picture();
    let index = world.ip("-o link show weft0").split(':').next().unwrap().to_owned();
    // The change is written down a moment later.
    until("the state is written", || world.left().contains("10.5.0.0/16"));
    let initiations = world.initiations();
    world.signal(Signal::SIGKILL);
    world.wait();
    world.stop_post();
    assert!(world.has_device(), "the store keeps it");
    assert!(!world.ip("-4 route show table all").contains("10.77.0.2"), "routes are taken back");
    world.start();
    there.end();
    back.end();
    assert_eq!(world.picture(), before);
    assert_eq!(world.ip("-o link show weft0").split(':').next().unwrap(), index);
    initiations.assert_one();
    assert!(world.weft_ok(&["showconf", "weft0"]).contains("10.5.0.0/16"));
    world.stop();
    assert!(!world.has_device());
}

#[test]
fn a_crash_without_a_clean_up_is_gone_on_from_as_well() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let stream = world.stream(2);
    let before = world.picture();
    until("the handshake is written down", || world.left().contains("last_handshake"));
    let initiations = world.initiations();
    world.signal(Signal::SIGKILL);
    world.wait();
    world.start();
    assert!(world.log().contains("continuing with the interface"), "{}", world.log());
    stream.end();
    assert_eq!(world.picture(), before);
    initiations.assert_one();
}
