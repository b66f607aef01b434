//! The command line, its help, and a standard output that cannot be written.

#[cfg(unix)]
use std::process::Stdio;

use crate::support::run;
#[cfg(unix)]
use crate::support::weft;

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
        &["up", "wg0", "--tun-threads", "65"],
        &["up", "wg0", "--tun-threads", "many"],
        &["up", "wg0", "--packet-threads", "0"],
        &["run", "wg0", "--packet-threads", "65"],
        &["demo", "--packet-threads", "-1"],
        &["demo", "--secs", "0"],
        &["genkey", "extra"],
        &["--log-format", "xml", "genkey"],
        &["--log", "weft=loud", "genkey"],
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
fn a_full_disk_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = weft(&["genkey"]).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8(ended.stderr).unwrap().starts_with("error: cannot write to standard output"));
}
