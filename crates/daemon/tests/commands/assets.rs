//! What packages bring beside the program.

use crate::programs::{Ended, WEFT, command, weft};

#[test]
fn every_shell_gets_a_script_that_asks_weft() {
    for (shell, part) in [
        ("bash", "complete -o nospace"),
        ("zsh", "#compdef weft"),
        ("fish", "complete --keep-order --exclusive --command weft"),
        ("powershell", "Register-ArgumentCompleter"),
        ("elvish", "edit:completion"),
    ] {
        let script = weft(&["completions", shell]).output();
        assert!(script.contains(part) && script.contains("WEFT_COMPLETE"), "{shell}: {script}");
        let mut asked = command(WEFT, &["--", "weft", "sync"]);
        asked.env("WEFT_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1");
        let answer = Ended::from(asked.output().unwrap()).output();
        assert!(answer.starts_with("syncconf"), "{shell}: {answer}");
    }
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("man1");
    assert_eq!(weft(&["man", "--out", out.to_str().unwrap()]).output(), "");
    for name in
        ["weft", "weft-up", "weft-show", "weft-set", "weft-syncconf", "weft-genkey", "weft-service-install"]
    {
        let page = std::fs::read_to_string(out.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH ") && page.contains("NAME"), "{name}: {page}");
    }
    assert!(!out.join("weft-man.1").exists(), "a hidden command has no page");
    let set = std::fs::read_to_string(out.join("weft-set.1")).unwrap();
    assert!(set.contains("allowed\\-ips LIST"), "{set}");
    let page = weft(&["man"]).output();
    for part in [".TH weft 1", "wg syncconf NAME", "/etc/wireguard/NAME.conf", "weft.conf(5)"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let keys = std::fs::read_to_string(out.join("weft.conf.5")).unwrap();
    for part in [".TH weft.conf 5", "\\fBListenPort\\fR = 51820", "# weft: \\fBExpires\\fR = 2030\\-12\\-31"]
    {
        assert!(keys.contains(part), "{part}: {keys}");
    }
}
