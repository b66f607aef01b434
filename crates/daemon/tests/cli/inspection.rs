//! `weft top`, `status`, `save`, `down` and `doctor`, without a running interface.

#[cfg(unix)]
use crate::support::{Ended, weft};
use crate::support::{file, run};

#[test]
#[cfg(unix)]
fn status_of_nothing_is_a_failure_that_names_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let named = ["status", "top", "down", "save"].map(|command| [command, "wg0"]);
    let all = [&["status"][..], &["status", "--json"], &["top"]].into_iter();
    for arguments in all.chain(named.iter().map(|arguments| &arguments[..])) {
        let output = weft(arguments).env("WEFT_RUNTIME_DIR", directory.path()).output().unwrap();
        let ended = Ended::from(output);
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{arguments:?}");
        assert!(ended.stderr.contains(directory.path().to_str().unwrap()), "{}", ended.stderr);
        assert!(ended.stderr.contains("running under weft"), "{arguments:?}: {}", ended.stderr);
    }
    assert_eq!(run(&["status", "no name"], "").code, 2);
    assert_eq!(run(&["status", "--sample", "x"], "").code, 2);
}

#[test]
fn doctor_refuses_a_wrong_configuration_with_its_lines() {
    let (_directory, path) = file("wg0.conf", b"[Interface]\nMtu=1\n");
    let ended = run(&["doctor", path.to_str().unwrap()], "");
    assert_eq!(ended.code, 78);
    assert!(ended.stderr.contains("wg0.conf:2: MTU"), "{}", ended.stderr);
}

#[test]
fn doctor_of_what_is_not_there_fails_as_check_does() {
    let name = "weftnosuch";
    let [doctor, check] = ["doctor", "check"].map(|command| run(&[command, name], ""));
    assert_eq!((doctor.code, doctor.stdout.as_str()), (78, ""), "{}", doctor.stderr);
    assert_eq!(doctor.stderr, check.stderr);
    assert!(doctor.stderr.contains("give the path of a file"), "{}", doctor.stderr);
}

#[test]
fn doctor_prints_findings_for_people_and_for_scripts() {
    let people = run(&["doctor"], "");
    assert!([0, 1].contains(&people.code), "{}", people.stderr);
    assert!(!people.stdout.contains('\u{1b}'), "{}", people.stdout);
    let scripts = run(&["doctor", "--json"], "");
    let report: serde_json::Value = serde_json::from_str(&scripts.stdout).unwrap();
    let problems = report["problems"].as_u64().unwrap();
    assert_eq!(scripts.code, i32::from(problems > 0));
    assert_eq!(people.stdout.lines().filter(|line| line.starts_with("problem")).count() as u64, problems);
}

#[test]
fn doctor_says_what_a_start_encrypts_with() {
    let fastest = weft_aead::Cipher::detect().name();
    for (value, level, says) in [
        (None, "ok", fastest),
        (Some("portable"), "note", "because WEFT_CIPHER says so"),
        (Some("rot13"), "problem", "rot13"),
    ] {
        // As some parents leave SIGCHLD: the self-test is a child.
        let mut env = std::process::Command::new("env");
        env.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_weft"), "doctor", "--json"]);
        env.env_remove("WEFT_CIPHER").envs(value.map(|value| ("WEFT_CIPHER", value)));
        let report: serde_json::Value = serde_json::from_slice(&env.output().unwrap().stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["check"] == "cipher").unwrap();
        assert_eq!(finding["level"], level, "{finding}");
        assert!(finding["says"].as_str().unwrap().contains(says), "{finding}");
    }
}
