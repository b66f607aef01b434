//! What packages bring beside the program.

use std::process::Command;

use weft_lab::here;

use crate::programs::weft;

#[test]
fn every_shell_gets_a_script_that_knows_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = weft(&["completions", shell]).output();
        for word in ["syncconf", "tun-threads"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_understands_its_script() {
    if !here::installed(&["bash"]) {
        return;
    }
    let complete = |line: &str| {
        let script = weft(&["completions", "bash"]).output();
        let words: Vec<&str> = line.split(' ').collect();
        let test = format!(
            "{script}\nCOMP_WORDS=({line}); COMP_CWORD={}; _weft weft '{}' ''; echo \"${{COMPREPLY[@]}}\"",
            words.len() - 1,
            words[words.len() - 1],
        );
        let output = Command::new("bash").args(["--norc", "-c", &test]).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("weft sync"), "syncconf");
    assert_eq!(complete("weft show wg0 latest"), "latest-handshakes");
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
    assert!(weft(&["man"]).output().contains(".TH weft 1"));
}
