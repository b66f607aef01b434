//! Programs that weft runs and that do not come to their end.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use weft_lab::{here, until};

use crate::support::{End, NAME, Network, peer};

/// Puts a program in place of another. It notes each of its calls in `calls`, hangs while there is a file
/// `hangs`, and fails while there are lines in `fails`, each for one call.
fn put_in_place(network: &Network, program: &str) {
    let place = network.directory.path();
    let text = format!(
        "#!/bin/sh\necho {program} >> {0}/calls\n[ ! -e {0}/hangs ] || exec sleep 1000\n\
         [ ! -s {0}/fails ] || {{ sed -i 1d {0}/fails; exit 1; }}\n\
         PATH=/usr/sbin:/sbin:/usr/bin:/bin exec {program} \"$@\"\n",
        place.display()
    );
    fs::write(place.join(program), text).unwrap();
    fs::set_permissions(place.join(program), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs weft with the programs that are in place.
fn with_programs(network: &Network, arguments: &[&str]) -> std::process::Command {
    let path = format!("{}:{}", network.directory.path().display(), std::env::var("PATH").unwrap());
    let mut command = network.weft(arguments);
    command.env("PATH", path);
    command
}

#[test]
fn a_kill_switch_that_cannot_be_restored_is_tried_again_soon() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    put_in_place(&network, "nft");
    let text = End::new(1).interface("# weft: KillSwitch = on")
        + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
    let file = network.file("weft0.conf", &text);
    let _daemon = network.start(with_programs(&network, &["up", file.to_str().unwrap()]));
    let fails = network.directory.path().join("fails");
    fs::write(&fails, "1\n2\n3\n").unwrap();
    assert!(network.client.command("nft").args(["flush", "ruleset"]).status().unwrap().success());
    // Three pauses of a minute would be longer than this waits.
    until("the kill switch is back", || {
        let tables = network.client.command("nft").args(["list", "tables"]).output().unwrap();
        String::from_utf8_lossy(&tables.stdout).contains("weft-weft0")
    });
    assert_eq!(fs::read_to_string(&fails).unwrap(), "");
}

#[test]
fn a_program_that_hangs_is_run_once_at_an_end_and_told_once() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let before = network.picture();
    put_in_place(&network, "nft");
    let place = network.directory.path();
    let weft = |arguments: &[&str]| with_programs(&network, arguments);
    let peer = peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
    let text = End::new(1).interface("# weft: KillSwitch = on\nPreDown = false\nPostDown = false") + &peer;
    let file = network.file("weft0.conf", &text);
    let daemon = network.start(weft(&["up", file.to_str().unwrap()]));
    let calls = || fs::read_to_string(place.join("calls")).unwrap_or_default().lines().count();
    fs::write(place.join("hangs"), "").unwrap();
    // By the daemon, by a command after the daemon has ended, and by a command alone.
    let started = calls();
    let down = || -> crate::support::Ended { weft(&["down", NAME]).output().unwrap().into() };
    let ended = down();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let told = |text: &str| ended.stderr.matches(text).count();
    assert_eq!(["nft did not end", "PreDown: ", "PostDown: "].map(told), [1; 3], "{ended:?}");
    assert!(calls() <= started + 2, "{} calls", calls() - started);
    drop(daemon);
    let started = calls();
    let ended = down();
    assert_eq!((ended.code, ended.stderr.matches("nft did not end").count()), (Some(1), 1), "{ended:?}");
    assert_eq!(calls(), started + 1);
    // Nothing else is left, and this once it ends.
    fs::remove_file(place.join("hangs")).unwrap();
    let ended = down();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    network.assert_as(&before);
}
