//! Words for a shell. What else reaches one, or a program with a language, is a name that needs no quotes:
//! an [`InterfaceName`](crate::InterfaceName) in the place of `%i`, in nftables and pf, in resolvconf(8) and
//! scutil(8), and a [`Domain`](crate::Domain) in resolv.conf(5).

use std::ffi::{OsStr, OsString};

/// Quotes a word for sh(1).
pub fn shell_word(word: &OsStr) -> OsString {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
        // Byte by byte: a path need not be UTF-8.
        let mut quoted = b"'".to_vec();
        for byte in word.as_bytes() {
            match byte {
                b'\'' => quoted.extend(br"'\''"),
                byte => quoted.push(*byte),
            }
        }
        quoted.push(b'\'');
        OsString::from_vec(quoted)
    }
    #[cfg(not(unix))]
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Hook, HookPhase, InterfaceName};

    /// Bytes that end a word, a string or a line of a shell, nftables, pf, scutil, resolv.conf or a log, or
    /// mean something in one of them.
    const HOSTILE: &str = " \t\n\r\0\x0b\x1b\x7f;|&$`'\"\\(){}<>*?[]#!~%@,/:^\u{85}\u{2028}é";

    #[test]
    fn no_name_ends_a_word_a_string_or_a_line() {
        for letter in HOSTILE.chars() {
            for place in ["{}", "{}a", "a{}", "a{}b", "a{}b.c"] {
                let text = place.replace("{}", &letter.to_string());
                assert!(text.parse::<InterfaceName>().is_err(), "{text:?}");
                assert!(text.parse::<Domain>().is_err(), "{text:?}");
            }
        }
        let hook = |command: &str| Hook {
            phase: HookPhase::PostUp,
            command: command.to_owned(),
            file: "wg0.conf".into(),
            line: 1,
        };
        let name: InterfaceName = "a_=+.-1".parse().unwrap();
        assert_eq!(hook("echo %i; echo '%i'").command_for(&name), "echo a_=+.-1; echo 'a_=+.-1'");
    }

    #[cfg(unix)]
    #[test]
    fn a_word_is_one_word_of_each_shell_whatever_is_in_it() {
        use std::os::unix::ffi::OsStrExt as _;
        use std::process::Command;

        for word in [
            &b""[..],
            b"plain",
            b"it's",
            b"''",
            b"-n",
            b"$(touch /nonexistent) `id` ${HOME} $HOME",
            b"a;b|c&d>e<f(g)",
            b"a\nb\tc\\n\\",
            b"\" * ? [a] ~ !! #",
            b"caf\xe9 \x1b]52;c;x\x07",
        ] {
            let mut script = OsString::from("printf '%s' ");
            script.push(shell_word(OsStr::from_bytes(word)));
            for shell in ["/bin/sh", "/bin/bash"].iter().filter(|shell| std::path::Path::new(shell).exists())
            {
                let output = Command::new(shell).arg("-c").arg(&script).output().unwrap();
                assert_eq!(output.stdout, word, "{shell}: {script:?}");
                assert!(output.stderr.is_empty(), "{output:?}");
            }
        }
    }
}
