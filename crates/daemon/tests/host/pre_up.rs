//! What PreUp makes possible: names, keys and ways that are there only after it.

use nix::sys::signal::Signal;
use weft_lab::wait_until;

use crate::beside::{both, weft};
use crate::support::{End, NAME, Network, peer};

#[test]
fn names_are_looked_up_after_pre_up_as_with_wg_quick() {
    // The hosts file, and what a name server says once it may be asked, are found by the same look-up.
    let script = r#"
cp /etc/hosts "$HERE/hosts"; mount --bind "$HERE/hosts" /etc/hosts || exit 99
export WG_ENDPOINT_RESOLUTION_RETRIES=0
echo Endpoint = gateway.test:51820 >> "$FILE"
up; echo $?; wg show weft0 endpoints | cut -f 2; ip link show weft0 2>&1 | grep -c UP; cat "$HERE/log"; down
"#;
    let table = [
        (
            "PreUp = echo 192.0.2.2 gateway.test >> /etc/hosts; echo pre >> \"$HERE/log\"",
            "0\n192.0.2.2:51820\n1\npre\n",
        ),
        // What failed after PreUp leaves no device, and what is for the way down does not run.
        (
            "PreUp = echo pre >> \"$HERE/log\"\nPreDown = echo down >> \"$HERE/log\"\nPostDown = echo down >> \"$HERE/log\"",
            "1\n0\npre\n",
        ),
    ];
    for (lines, expected) in table {
        let Some(both) = both(lines, script) else { return };
        assert_eq!(both.wg_quick.stdout, expected, "{lines}: {:?}", both.wg_quick);
        assert_eq!(both.weft.stdout, expected, "{lines}: {:?}", both.weft);
    }
}

/// A file with key files, and these lines.
fn with_key_files(lines: &str) -> String {
    let interface = format!("[Interface]\nPrivateKeyFile = own.key\nAddress = 10.77.0.1/24\n{lines}\n");
    interface + &peer(End::new(2).public(), "PresharedKeyFile = peer.psk\nAllowedIPs = 10.88.0.0/16")
}

#[test]
fn key_files_are_read_after_pre_up() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let place = |name: &str| network.directory.path().join(name);
    let write = format!(
        "PreUp = umask 077; echo {} > {} && echo {} > {}",
        *End::new(1).key.to_base64(),
        place("own.key").display(),
        *End::new(1).key.to_base64(),
        place("peer.psk").display()
    );
    // What a PreUp that failed in part leaves is written over too.
    for left in [None, Some(""), Some("half a key")] {
        for name in ["own.key", "peer.psk"] {
            let _missing = std::fs::remove_file(place(name));
            left.into_iter().for_each(|text| weft_lab::write_private(&place(name), text).unwrap());
        }
        let file = network.file("weft0.conf", &with_key_files(&write));
        let check = network.run(&["check", file.to_str().unwrap()]);
        assert_eq!(check.code, Some(0), "{check:?}");
        assert!(check.stderr.contains("weft0.conf:2: PrivateKeyFile"), "{check:?}");
        assert!(check.stderr.contains("PreUp"), "{check:?}");
        let daemon = network.up(&file);
        let shown = network.run(&["show", NAME, "preshared-keys"]).stdout;
        assert!(!shown.contains("(none)"), "{shown}");
        daemon.stop();
        network.assert_as(&before);
    }
}

#[test]
fn what_is_wrong_before_pre_up_runs_no_command_and_what_is_wrong_after_it_leaves_nothing() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let log = network.directory.path().join("log");
    let (pre_up, key) = (format!("PreUp = echo pre >> {}", log.display()), "PrivateKeyFile");
    let table = [
        // Known before PreUp.
        (with_key_files(&format!("{pre_up}\nMTU = x")), false, "MTU"),
        (with_key_files(&pre_up).replace("own.key", ""), false, key),
        (with_key_files(""), false, key),
        (with_key_files("PostUp = true"), false, key),
        // Only known after it.
        (with_key_files(&pre_up), true, key),
        (
            with_key_files(&format!("{pre_up}; echo x > {}/own.key", network.directory.path().display())),
            true,
            key,
        ),
    ];
    for (text, has_run, named) in table {
        let _missing = std::fs::remove_file(&log);
        let file = network.file("weft0.conf", &text);
        let ended = network.run(&["up", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(78), "{text}: {ended:?}");
        assert!(ended.stderr.contains("weft0.conf:") && ended.stderr.contains(named), "{text}: {ended:?}");
        assert_eq!(log.exists(), has_run, "{text}: {ended:?}");
        network.assert_as(&before);
    }
}

#[test]
fn the_file_replaces_what_pre_up_has_set_as_setconf_does() {
    let set = "wg set weft0 listen-port 5000 fwmark 5 peer $(wg genkey | wg pubkey) allowed-ips 10.99.0.0/16";
    // A port that the file does not name is a random one.
    let told = "wg show weft0 listen-port | sed 's/^.....$/another/'; wg show weft0 fwmark; \
                wg show weft0 allowed-ips | cut -f 2";
    for (lines, expected) in [
        ("", "another\noff\n10.88.0.0/16\n"),
        ("ListenPort = 6000", "6000\noff\n10.88.0.0/16\n"),
        ("FwMark = 9", "another\n0x9\n10.88.0.0/16\n"),
    ] {
        // wg-quick of Debian runs PreUp before there is a device; others run it where weft does.
        let order = format!(
            "if grep -q wg-quick <<< \"$(declare -f up)\"; then\n\
             wireguard-go weft0 && {set} && wg setconf weft0 <(wg-quick strip \"$FILE\")\n\
             else up; fi 2> /dev/null; {told}"
        );
        let Some(both) = both(&format!("PreUp = {set}\n{lines}"), &order) else { return };
        assert_eq!(both.wg_quick.stdout, expected, "{lines}: {:?}", both.wg_quick);
        assert_eq!(both.weft.stdout, expected, "{lines}: {:?}", both.weft);
    }
    let Some(weft) = weft(&format!("PreUp = {set}\nListenPort = 6000"), "up; cat \"$HERE/said\"") else {
        return;
    };
    assert!(weft.stdout.contains("port=6000"), "{}", weft.stdout);
}

#[test]
fn a_start_that_looks_names_up_ends_when_it_is_told_to() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "Endpoint = gateway.invalid:7");
    let file = network.file("weft0.conf", &text);
    for by_signal in [true, false] {
        let mut command = network.weft_up(&file);
        command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "infinity");
        let mut daemon = weft_lab::Process::start(&network.client, command).unwrap();
        daemon.wait_for_line("trying again in");
        if by_signal {
            daemon.signal(Signal::SIGTERM);
        } else {
            network.down();
        }
        assert_eq!(daemon.wait().code(), Some(1), "{}", daemon.log());
        network.assert_as(&before);
        wait_until("no socket", || network.left().is_empty().then_some(()));
    }
}
