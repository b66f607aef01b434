//! Commands that run until they are ended, in a terminal that goes away while SIGHUP is ignored, as under
//! nohup(1).

use std::process::Command;

use nix::sys::signal::Signal;
use weft_lab::{here, until};

use crate::support::{Conf, End, Ends, Family, NAME, Pty, Running, alone, answers, ignore_hang_up, weft};

#[test]
fn top_ends_with_its_terminal() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf, _) = Conf::pair(Family::V4);
    let running = Running::up(&ends.a, &conf, &[]);
    for signal in [None, Some(Signal::SIGTERM), Some(Signal::SIGINT), Some(Signal::SIGHUP)] {
        for is_ignored in [true, false] {
            let mut command = weft(running.directory(), &["top", NAME, "--interval", "0.1"]);
            if is_ignored {
                ignore_hang_up(&mut command);
            }
            let mut top = Pty::spawn(command, 100, 30);
            top.wait_for("51820", 0);
            top.hang_up();
            if let Some(signal) = signal {
                top.signal(signal);
            }
            assert_eq!(top.wait().code(), Some(0), "{signal:?}, SIGHUP ignored: {is_ignored}");
        }
    }
    running.stop();
}

#[test]
fn a_capture_into_a_file_outlives_its_terminal_and_ends_when_it_is_told_to() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let (a, b) = (Running::up(&ends.a, &conf_a, &[]), Running::up(&ends.b, &conf_b, &[]));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let file = a.directory().join(format!("{signal}.pcapng"));
        let written = || file.metadata().map_or(0, |file| file.len());
        let mut command = weft(a.directory(), &["capture", NAME, "-w", file.to_str().unwrap()]);
        ignore_hang_up(&mut command);
        let mut capture = Pty::spawn(command, 100, 30);
        until("the file begins", || written() > 0);
        capture.hang_up();
        let before = written();
        assert!(answers(&ends.a, End::B.inner(Family::V4)));
        until("it goes on", || written() > before);
        capture.signal(signal);
        assert_eq!(capture.wait().code(), Some(0));
    }
    a.stop();
    b.stop();
}

#[test]
fn the_demo_ends_with_its_terminal() {
    if !here::tun_permitted() {
        return;
    }
    let _alone = alone();
    for arguments in [&["demo", "--secs", "3000"][..], &["demo", "--secs", "3000", "--json"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(arguments).env_remove("RUST_LOG");
        ignore_hang_up(&mut command);
        let mut demo = Pty::spawn(command, 100, 30);
        demo.wait_for("1s", 0);
        demo.hang_up();
        assert_eq!(demo.wait().code(), Some(1), "{arguments:?}");
    }
}
