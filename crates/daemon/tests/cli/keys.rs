//! `weft genkey`, `genpsk` and `pubkey`.

#[cfg(unix)]
use crate::support::{Ended, file, weft};
use crate::support::{KEY, OWN, run};

#[test]
fn keys_are_made_and_fit_each_other() {
    let private = run(&["genkey"], "");
    assert_eq!((private.code, private.stdout.len()), (0, 45));
    assert_ne!(private.stdout, run(&["genkey"], "").stdout);
    assert_eq!(run(&["genpsk"], "").stdout.len(), 45);

    assert_eq!(run(&["pubkey"], &format!("{KEY}\n")).stdout, format!("{OWN}\n"));
    assert_eq!(run(&["pubkey"], &private.stdout).stdout.len(), 45);
    let wrong = run(&["pubkey"], &format!("{KEY}{KEY}"));
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("not a private key") && !wrong.stderr.contains(KEY), "{}", wrong.stderr);
}

#[test]
#[cfg(unix)]
fn a_secret_that_goes_into_a_file_for_everybody_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, path) = file("key", b"");
    for (command, mode, warned) in [
        ("genkey", 0o644, true),
        ("genpsk", 0o602, true),
        ("genkey", 0o640, false),
        ("genpsk", 0o600, false),
        ("pubkey", 0o644, false),
    ] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (input, output) = (std::fs::File::open(&path).unwrap(), std::fs::File::create(&path).unwrap());
        std::fs::write(&path, KEY).unwrap();
        let ended = Ended::from(weft(&[command]).stdin(input).stdout(output).output().unwrap());
        assert_eq!(ended.code, 0, "{command}: {}", ended.stderr);
        let told =
            ended.stderr.starts_with("warning: ") && ended.stderr.contains(&format!("mode {mode:04o}"));
        assert_eq!((told, ended.stderr.is_empty()), (warned, !warned), "{command}: {}", ended.stderr);
        assert_eq!(std::fs::read_to_string(&path).unwrap().len(), 45, "{command}");
        let help = run(&["help", command], "").stdout;
        assert!(command == "pubkey" || help.contains("(umask 077; weft gen"), "{help}");
    }
}
