//! Stops that are no restart, and restarts that come to nothing.

use nix::sys::signal::Signal;
use weft_lab::service_manager::Doing;

use crate::world::{NAME, World, file_of, file_of_a};

fn up() -> Option<(World, Vec<String>)> {
    let mut world = World::new()?;
    let before = world.picture_without_device();
    world.write(&file_of(1, "", "AllowedIPs = 0.0.0.0/0"));
    world.start();
    assert!(world.ip("-4 rule").contains("fwmark"), "a full tunnel has rules");
    Some((world, before))
}

#[test]
fn a_stop_leaves_nothing_behind() {
    let Some((mut world, before)) = up() else { return };
    world.stop();
    // The store is still open: what it had is gone all the same.
    assert!(!world.has_device());
    assert_eq!(world.manager.shared.names(), [""; 0]);
    assert_eq!(world.picture_without_device(), before);
}

#[test]
fn an_end_that_no_service_manager_asked_for_leaves_nothing_behind() {
    let Some((mut world, before)) = up() else { return };
    world.weft_ok(&["down", NAME]);
    assert!(world.wait().success());
    assert!(!world.has_device());
    assert_eq!(world.picture_without_device(), before);
    assert_eq!(world.manager.shared.names(), [""; 0]);

    world.start();
    world.manager.set(Doing::Restart);
    // Ctrl-C is no restart, whatever the service manager is about to do.
    world.signal(Signal::SIGINT);
    assert!(world.wait().success());
    assert!(!world.has_device());
    assert_eq!(world.picture_without_device(), before);
}

#[test]
fn a_restart_that_becomes_a_stop_is_cleaned_up() {
    let Some((mut world, before)) = up() else { return };
    world.manager.set(Doing::Restart);
    world.signal(Signal::SIGTERM);
    assert!(world.wait().success());
    assert!(world.has_device() && world.ip("-4 rule").contains("fwmark"), "left to the next one");
    // `systemctl stop` before the clean-up runs.
    world.manager.set(Doing::Stop);
    world.stop_post();
    world.empty_the_store();
    assert_eq!(world.picture_without_device(), before);
}

#[test]
fn a_start_that_fails_after_a_restart_is_cleaned_up() {
    let Some((mut world, before)) = up() else { return };
    world.stop_for_restart();
    world.write("[Interface]\nAddres = 10.0.0.1/24\n");
    world.spawn();
    assert_eq!(world.wait().code(), Some(78), "{}", world.log());
    // ExecStopPost= of a run that left nothing behind.
    world.stop_post();
    world.empty_the_store();
    assert_eq!(world.picture_without_device(), before);

    // With the file mended it is an ordinary start.
    world.write(&file_of_a());
    world.start();
    assert!(world.has_device());
}

#[test]
fn without_a_bus_a_restart_is_an_ordinary_stop_and_start() {
    let Some(mut world) = World::new() else { return };
    let before = world.picture_without_device();
    world.manager.forget_bus();
    world.write(&file_of_a());
    world.start();
    world.manager.set(Doing::Restart);
    world.signal(Signal::SIGTERM);
    assert!(world.wait().success());
    assert!(world.log().contains("a restart would interrupt the interface"), "{}", world.log());
    assert!(!world.has_device());
    assert_eq!(world.picture_without_device(), before);
}
