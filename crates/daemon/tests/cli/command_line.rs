//! The command line, its help, and a standard output that cannot be written.

#[cfg(target_os = "linux")]
use std::process::Command;
#[cfg(unix)]
use std::process::Stdio;

use crate::support::run;
#[cfg(unix)]
use crate::support::weft;
#[cfg(target_os = "linux")]
use crate::support::{Ended, KEY, file};

#[test]
fn a_wrong_command_line_ends_with_2_and_help_with_0() {
    for arguments in [
        &[][..],
        &["chekc"],
        &["list"],
        &["restart"],
        &["connect", "wg0"],
        &["./wg0.conf"],
        &["up"],
        &["check"],
        &["check", "a", "b"],
        &["check", ""],
        &["check", "."],
        &["down", "all"],
        &["up", "wg0", "--tun-threads", "65"],
        &["up", "wg0", "--tun-threads", "many"],
        &["up", "wg0", "--packet-threads", "0"],
        &["run", "wg0", "--packet-threads", "65"],
        &["demo", "--packet-threads", "-1"],
        &["demo", "--secs", "0"],
        &["genkey", "extra"],
        &["--log-format", "xml", "genkey"],
        &["--log", "weft=loud", "genkey"],
        &["--log", "debgu", "genkey"],
    ] {
        let ended = run(arguments, "");
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}: {}", ended.stderr);
    }
    if weft_udp::MAX_SHARDS > 1 {
        let ended = run(&["up", "wg0", "--packet-threads", "0"], "");
        assert!(ended.stderr.contains("write a number from 1 to 64, or `auto`"), "{}", ended.stderr);
    }
    for arguments in [&["--help"][..], &["up", "--help"], &["check", "-h"], &["help", "demo"], &["--version"]]
    {
        assert_eq!(run(arguments, "").code, 0, "{arguments:?}");
    }
    let level = run(&["--log", "debgu", "genkey"], "").stderr;
    assert!(level.contains("`debgu` is no level, did you mean `debug`?"), "{level}");
    #[cfg(target_os = "linux")]
    {
        let tip = run(&["peer", "add", "phone", "lo"], "").stderr;
        assert!(tip.contains("`weft peer add phone --to lo`"), "{tip}");
    }
    let help = run(&["--help"], "").stdout;
    assert!(help.contains("Examples:") && help.contains("78  the configuration is wrong"), "{help}");
    assert!(!run(&["up", "--help"], "").stdout.contains("no-offload"));
}

#[test]
#[cfg(unix)]
fn a_reader_that_went_away_is_no_failure() {
    let mut child = weft(&["genkey"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.len()), (Some(0), 0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_result_that_cannot_be_written_is_an_error() {
    let text = format!("[Interface]\nPrivateKey = {KEY}\n");
    let (directory, _) = file("wg0.conf", text.as_bytes());
    let results =
        ["genkey", "pubkey < key", "check ./wg0.conf", "check ./wg0.conf --json", "completions bash"];
    for command in results.into_iter().chain(["--help", "help up", "peer add -h", "--version"]) {
        for (to, code) in [(">&-", 1), ("> /dev/full", 1), ("> /dev/null", 0), ("1<> /dev/null", 0)] {
            let script = format!("echo {KEY} > key; exec {} {command} {to}", env!("CARGO_BIN_EXE_weft"));
            let mut shell = Command::new("sh");
            let ended = Ended::from(shell.args(["-c", &script]).current_dir(&directory).output().unwrap());
            assert_eq!(ended.code, code, "{command} {to}: {}", ended.stderr);
            let told = ended.stderr.contains("error: cannot write to standard output: ");
            assert_eq!(told, code == 1, "{command} {to}: {}", ended.stderr);
        }
    }
}
