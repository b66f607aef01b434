//! Which cipher a process says that it uses, and how it ends where the processor loses its instructions.

use nix::sys::signal::Signal;
use serde_json::Value;
use weft_aead::Cipher;

use crate::support::{ADDRESS, End, NAME, two_ends};

const VARIABLE: &str = "WEFT_CIPHER";

impl End {
    /// What `weft status` says that it uses.
    fn cipher(&self) -> String {
        let status = self.weft(&["status", NAME, "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        status["interfaces"][0]["cipher"].as_str().unwrap().to_owned()
    }
}

#[test]
fn the_chosen_cipher_is_shown_and_encrypts() {
    let Some((a, b)) = two_ends() else { return };
    let fastest = Cipher::detect().name();
    for (value, name) in [("", fastest), ("aws-lc", "aws-lc"), ("portable", "portable")] {
        let running =
            a.up_with(&(a.conf("") + &End::peer(&b, "")), &["--metrics", ADDRESS], &[(VARIABLE, value)]);
        let other = b.up(&(b.conf("") + &End::peer(&a, "")), &[]);
        a.reach(&b);
        assert_eq!(a.cipher(), name, "{value:?}");
        assert_eq!(
            a.get("/metrics").sample(&format!(r#"weft_cipher_info{{interface="{NAME}",cipher="{name}"}}"#)),
            1.0
        );
        running.stop();
        other.stop();
    }
}

#[test]
fn an_unknown_cipher_ends_the_start() {
    let Some((a, _)) = two_ends() else { return };
    a.write(&a.conf(""));
    let output = a.weft(&["up", a.file().to_str().unwrap()]).env(VARIABLE, "rot13").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("WEFT_CIPHER") && text.contains("rot13") && text.contains("avx512"), "{text}");
}

/// As on a host without AVX-512, to which a virtual machine was moved.
#[test]
fn an_illegal_instruction_ends_the_process_with_what_to_do() {
    if Cipher::detect() != Cipher::Avx512 {
        return weft_lab::here::not_run("this processor has no AVX-512 with IFMA");
    }
    let Some((a, _)) = two_ends() else { return };
    let mut running = a.up(&a.conf(""), &[]);
    running.signal(Signal::SIGILL);
    // A failure, after which a service manager starts it again.
    assert_eq!(running.wait().code(), Some(1));
    let log = running.log();
    assert!(log.contains("SIGILL") && log.contains("restart of weft"), "{log}");
}
