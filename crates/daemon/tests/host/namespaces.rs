//! Two network namespaces that have /run in common, as those of `ip netns`: an interface of one is not taken
//! for that of the other.

use nix::sys::signal::Signal;
use weft_lab::{Namespace, here};

use crate::support::{End, Network, peer};

fn file(network: &Network) -> std::path::PathBuf {
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 10.88.0.0/16");
    network.file("weft0.conf", &text)
}

/// `weft` in another namespace; gives its exit code, and what it wrote to stderr.
fn run_in(network: &Network, namespace: &Namespace, arguments: &[&str]) -> (Option<i32>, String) {
    let output = network.weft_beside(namespace, arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_interface_that_runs_in_another_namespace_is_not_ended_nor_changed_nor_replaced() {
    let Some(network) = Network::new() else { return };
    let other = Namespace::new("other").unwrap();
    let file = file(&network);
    let path = file.to_str().unwrap();
    let daemon = network.up(&file);
    let before = network.picture();
    for arguments in [&["down", "weft0"] as &[&str], &["up", path], &["reload", path]] {
        let (code, said) = run_in(&network, &other, arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        let told = format!("weft0 runs in another network namespace (weft, process {})", daemon.pid());
        assert!(said.contains(&told), "{arguments:?}: {said}");
        assert_eq!(network.picture(), before, "{arguments:?}");
    }
    assert!(daemon.is_running());
}

#[test]
fn what_a_crash_left_in_another_namespace_stays_until_it_is_undone_there() {
    let Some(network) = Network::new() else { return };
    let other = Namespace::new("other").unwrap();
    let file = file(&network);
    let clean = network.picture();
    let mut crashed = network.up(&file);
    crashed.signal(Signal::SIGKILL);
    crashed.wait();
    let left = network.picture();
    // The namespace is there as long as a process is in it.
    let mut process = network.client.command("sleep").arg("600").spawn().unwrap();
    let (code, said) = run_in(&network, &other, &["down", "weft0"]);
    let told =
        said.contains("is not running under weft in this network namespace") && said.contains("record.json");
    assert!(code == Some(1) && told, "{code:?} {said}");
    let daemon = network.up_beside(&other, &file);
    assert_eq!(network.picture(), left);
    // The name is in use, and what was left here is undone.
    network.down();
    assert_eq!(network.picture(), clean);
    let (code, said) = run_in(&network, &other, &["down", "weft0"]);
    assert_eq!(code, Some(0), "{said}");
    drop(daemon);
    network.assert_as(&clean);
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_record_of_a_namespace_that_is_gone_is_removed() {
    let Some(network) = Network::new() else { return };
    let other = Namespace::new("other").unwrap();
    let file = file(&network);
    let mut crashed = network.up_beside(&other, &file);
    crashed.signal(Signal::SIGKILL);
    crashed.wait();
    drop(other);
    network.down();
    assert_eq!(network.left(), [""; 0]);
}

#[test]
fn what_a_crash_left_without_a_record_is_undone_beside_an_interface_elsewhere() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nft"]) {
        return;
    }
    let other = Namespace::new("other").unwrap();
    let clean = network.picture();
    let text =
        End::new(1).interface("# weft: KillSwitch = on") + &peer(End::new(2).public(), "AllowedIPs = ::/0");
    let mut crashed = network.up(&network.file("weft0.conf", &text));
    crashed.signal(Signal::SIGKILL);
    crashed.wait();
    std::fs::remove_dir_all(network.records().join("weft0")).unwrap();
    let daemon = network.up_beside(&other, &file(&network));
    network.down();
    assert_eq!(network.picture(), clean);
    assert!(daemon.is_running());
}
