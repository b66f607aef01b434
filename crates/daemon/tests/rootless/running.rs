//! What other commands see of a tunnel without root.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;

use rustix::termios::{Winsize, tcsetwinsize};
use weft_lab::{Process, mounts, terminal, until};

use crate::support::{Ended, World};

#[test]
fn status_reload_and_down_find_the_tunnel_of_the_user() {
    let Some(world) = World::new() else { return };
    let file = world.file("MTU = 1400");
    let script =
        "trap 'echo told; exit 6' HUP; ping -c 1 -W 60 10.77.0.1 && echo ready; while :; do sleep 0.05; done";
    let metrics = world.directory.path().join("session/metrics.sock");
    let metrics = format!("unix:{}", metrics.display());
    let command = world.exec(&file, &["--metrics", &metrics], &["sh", "-c", script]);
    let mut weft = Process::start(&world.client, world.in_session(command)).unwrap();
    weft.wait_for_line("ready");

    let status = world.weft_in_session(&["status", "office", "--json", "--sample", "0"]);
    let report: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let report = &report["interfaces"][0];
    assert_eq!(
        (report["interface"].as_str(), report["mtu"].as_u64()),
        (Some("office"), Some(1400)),
        "{status:?}"
    );
    assert_eq!(report["routes"].as_array().unwrap().len(), 2, "{report}");
    assert!(report["peers"][0]["tx_bytes"].as_u64() > Some(0), "{report}");
    beside_an_interface_of_root(|| {
        let listed = world.weft_in_session(&["status"]);
        assert!(listed.code == Some(0) && listed.text().contains("office  up"), "{listed:?}");
        assert!(listed.stderr.contains("warning: not allowed to talk to roots"), "{listed:?}");
        let tested = world.weft_in_session(&["speedtest", "10.77.0.1"]);
        let advice = "`weft exec FILE -- weft speedtest office 10.77.0.1`";
        assert!(tested.code == Some(1) && tested.stderr.contains(advice), "{tested:?}");
    });

    let page = world
        .in_session(world.as_user("curl", &["-sS", "--unix-socket"]))
        .args([metrics.strip_prefix("unix:").unwrap(), "http://localhost/metrics"])
        .output();
    let page: Ended = page.unwrap().into();
    assert!(page.text().contains("wireguard_sent_bytes_total{interface=\"office\""), "{page:?}");

    world.file("MTU = 1300");
    let reloaded = world.weft_in_session(&["reload", file.to_str().unwrap()]);
    assert!(reloaded.code == Some(0) && reloaded.text().contains("1300"), "{reloaded:?}");
    assert!(weft.is_running());

    let down = world.weft_in_session(&["down", "office"]);
    assert_eq!(down.code, Some(0), "{down:?}");
    assert_eq!(weft.wait().code(), Some(6), "{}", weft.log());
    assert!(weft.log().contains("told"), "{}", weft.log());
    let none = world.weft_in_session(&["status", "office"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    until("no process of the user is left", || world.processes().is_empty());
    assert_eq!(world.left_in_session(), [""; 0]);
    beside_an_interface_of_root(|| {
        let listed = world.weft_in_session(&["status"]);
        assert!(listed.code == Some(77) && listed.stderr.contains("error: not allowed"), "{listed:?}");
    });
}

#[test]
fn capture_and_top_find_the_tunnel_of_the_user() {
    let Some(world) = World::new() else { return };
    let file = world.file("DNS = 10.77.0.1");
    let weft = world.exec(&file, &[], &["sh", "-c", "echo ready; sleep 600"]);
    let weft = Process::start(&world.client, world.in_session(weft)).unwrap();
    weft.wait_for_line("ready");

    let arguments =
        ["capture", "office", "--stage", "inner", "--count", "2", "--write", "session/office.pcapng"];
    let mut capture = world.in_session(world.weft(&arguments)).spawn().unwrap();
    let ping =
        || world.in_session(world.exec(&file, &[], &["ping", "-c", "1", "-W", "60", "10.77.0.1"])).output();
    until("two packets are captured", || {
        assert!(ping().unwrap().status.success());
        capture.try_wait().unwrap().is_some()
    });
    assert!(capture.wait().unwrap().success());
    let captured = std::fs::read(world.directory.path().join("session/office.pcapng")).unwrap();
    // The section header block of pcapng, and an echo request's addresses.
    assert_eq!(captured[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(captured.windows(8).any(|bytes| bytes == [10, 77, 0, 2, 10, 77, 0, 1]));

    let peer = world.gateway_key();
    let mut command = world.in_session(world.weft(&["top", "--interval", "0.1"]));
    let (ours, end) = terminal::open().unwrap();
    tcsetwinsize(&end, Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    terminal::attach(&mut command, &end).unwrap();
    let mut top = command.env("TERM", "xterm-256color").spawn().unwrap();
    drop((command, end));
    let mut keys = ours.try_clone().unwrap();
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    // The terminal ends with an error when top does.
    while let Ok(count @ 1..) = (&ours).read(&mut bytes) {
        shown.extend(&bytes[..count]);
        if String::from_utf8_lossy(&shown).contains(&peer[..10]) {
            keys.write_all(b"q").unwrap();
        }
        assert!(shown.len() < 1 << 20, "{}", String::from_utf8_lossy(&shown));
    }
    assert!(top.wait().unwrap().success(), "{}", String::from_utf8_lossy(&shown));
}

/// Runs with an interface of root in the runtime directory of the machine, which an ordinary user may not
/// ask.
fn beside_an_interface_of_root(work: impl FnOnce() + Send) {
    let prepare = || {
        mounts::empty("/run")?;
        std::fs::create_dir_all("/run/weft/roots")?;
        std::fs::set_permissions("/run/weft/roots", PermissionsExt::from_mode(0o700))?;
        std::os::unix::net::UnixListener::bind("/run/weft/roots/control.sock").map(drop)
    };
    mounts::run_separate(prepare, work);
}

#[test]
fn a_key_that_a_running_interface_has_is_refused() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    let weft = world.exec(&file, &[], &["sh", "-c", "echo ready; sleep 60"]);
    let weft = Process::start(&world.client, world.in_session(weft)).unwrap();
    weft.wait_for_line("ready");
    let other = world.write("home.conf", &std::fs::read_to_string(&file).unwrap());
    let second = world.in_session(world.exec(&other, &[], &["true"])).output().unwrap();
    let second = Ended::from(second);
    assert_eq!(second.code, Some(125), "{second:?}");
    let told = format!("interface office (process {}) has the key of", world.tunnel());
    assert!(second.stderr.contains(&told) && second.stderr.contains("weft down office"), "{second:?}");
}

#[test]
fn a_reload_tells_that_commands_keep_the_name_servers_of_the_start() {
    let Some(world) = World::new() else { return };
    let file = world.file("DNS = 10.77.0.1");
    let weft = world.exec(&file, &[], &["sh", "-c", "echo ready; sleep 60"]);
    let weft = Process::start(&world.client, world.in_session(weft)).unwrap();
    weft.wait_for_line("ready");
    let told = "DNS: what is in the file now counts from the next start of office";
    for (server, differs) in [("10.77.0.1", false), ("10.77.0.3", true), ("10.77.0.3", true)] {
        world.file(&format!("DNS = {server}"));
        let reloaded = world.weft_in_session(&["reload", file.to_str().unwrap()]);
        assert_eq!((reloaded.code, reloaded.stderr.contains(told)), (Some(0), differs), "{reloaded:?}");
    }
}
