//! SaveConfig: the state is in the file when the interface is down.

use std::os::unix::fs::PermissionsExt as _;

use crate::beside::weft;
use crate::support::{End, NAME, Network, peer};

#[test]
fn what_changed_is_in_the_file_after_down_and_the_rest_is_as_it_was() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let text = "# Mine.\n".to_owned()
        + &End::new(1).interface("ListenPort = 4444\nMTU = 1400\nSaveConfig = true\nPreDown = true # %i")
        + "\n# Theirs.\n"
        + &peer(End::new(2).public(), "Endpoint = 203.0.113.1:1\nAllowedIPs = 10.88.0.0/16 # inside");
    let file = network.file("weft0.conf", &text);
    network.up(&file).stop();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "nothing changed");
    let daemon = network.up(&file);
    for arguments in [
        &["address", "add", "10.78.0.1/24", "dev", NAME][..],
        &["address", "del", "10.77.0.1/24", "dev", NAME],
        &["link", "set", "dev", NAME, "mtu", "1300"],
    ] {
        assert!(network.client.command("ip").args(arguments).status().unwrap().success());
    }
    daemon.stop();
    let expected = text
        .replace("MTU = 1400", "MTU = 1300")
        .replace("Address = 10.77.0.1/24, fd77::1/64", "Address = 10.78.0.1/24, fd77::1/64");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    network.assert_as(&before);
}

/// Brings the interface up from a file in a directory that can be broken, and adds a peer.
const BEGIN: &str = r#"
mkdir "$HERE/etc"; mount -t tmpfs -o size=64k none "$HERE/etc"; mkdir "$HERE/etc/wireguard"
cp "$FILE" "$HERE/etc/wireguard"; FILE=$HERE/etc/wireguard/weft0.conf; KEPT=$WEFT_RUNTIME_DIR/weft0/weft0.conf
peers() { grep -c '^\[Peer\]' "$1"; }
up; wg set weft0 peer $(wg genkey | wg pubkey) allowed-ips 10.89.0.0/16
"#;

#[test]
fn what_cannot_be_saved_is_told_and_kept_until_it_can_be() {
    let table = [
        ("mount -o remount,ro \"$HERE/etc\"", "mount -o remount,rw \"$HERE/etc\""),
        ("cat /dev/zero > \"$HERE/etc/big\" 2> /dev/null", "rm \"$HERE/etc/big\""),
        ("mv \"$HERE/etc/wireguard\" \"$HERE/etc/gone\"", "mv \"$HERE/etc/gone\" \"$HERE/etc/wireguard\""),
    ];
    for (break_it, mend_it) in table {
        let script = format!(
            "{BEGIN}{break_it}; down; echo \"down $?\"; ip -o link show weft0 2> /dev/null | wc -l; peers \"$KEPT\"; \
             down; echo \"again $?\"; up; echo \"up $?\"; wg show weft0 peers | wc -l; down; echo \"down $?\"; \
             {mend_it}; down; echo \"mended $?\"; peers \"$FILE\"; ls \"$WEFT_RUNTIME_DIR\" | wc -l; cat \"$HERE/said\""
        );
        let Some(ended) = weft("SaveConfig = true", &script) else { return };
        let expected = "down 1\n0\n2\nagain 1\nup 0\n2\ndown 1\nmended 0\n2\n0\n";
        assert!(ended.stdout.starts_with(expected), "{break_it}: {}", ended.stdout);
        assert!(ended.stdout.contains("weft0.conf: cannot "), "{}", ended.stdout);
        assert!(ended.stdout.contains("the state is kept in "), "{}", ended.stdout);
    }
}

#[test]
fn a_file_that_was_edited_since_is_not_overwritten_by_what_was_kept() {
    let script = format!(
        "{BEGIN}mount -o remount,ro \"$HERE/etc\"; down; mount -o remount,rw \"$HERE/etc\"; echo '# mine' >> \"$FILE\"; \
         up; echo \"up $?\"; wg show weft0 peers | wc -l; down; echo \"down $?\"; down; echo \"down $?\"; \
         peers \"$FILE\"; grep -c mine \"$FILE\"; peers \"$KEPT\"; cat \"$HERE/said\""
    );
    let Some(ended) = weft("SaveConfig = true", &script) else { return };
    assert!(ended.stdout.starts_with("up 0\n1\ndown 0\ndown 1\n1\n1\n2\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("weft0.conf was edited since"), "{}", ended.stdout);
}

#[test]
fn what_does_not_fit_a_file_that_was_broken_meanwhile_is_kept() {
    let script = format!(
        "{BEGIN}cp \"$FILE\" \"$HERE/before\"; echo 'Garbage = 1' >> \"$FILE\"; down; echo \"down $?\"; peers \"$KEPT\"; \
         cp \"$HERE/before\" \"$FILE\"; down; echo \"mended $?\"; peers \"$FILE\"; cat \"$HERE/said\""
    );
    let Some(ended) = weft("SaveConfig = true", &script) else { return };
    assert!(ended.stdout.starts_with("down 1\n2\nmended 0\n2\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("Garbage") && ended.stdout.contains("is kept in "), "{}", ended.stdout);
}

#[test]
fn a_file_that_is_no_configuration_any_more_is_refused_also_where_nothing_has_to_be_written() {
    let script = r#"
up; weft save weft0 2> /dev/null; echo "$?"; echo 'Garbage = 1' >> "$FILE"; cp "$FILE" "$HERE/before"
weft save weft0 2> "$HERE/told"; echo "$?"; grep -c 'Garbage: unknown key' "$HERE/told"; cmp "$FILE" "$HERE/before" && echo same
"#;
    let Some(ended) = weft("", script) else { return };
    assert_eq!(ended.stdout, "0\n1\n1\nsame\n", "{ended:?}");
}

#[test]
fn that_a_daemon_was_killed_before_it_saved_is_told() {
    let kill = "PreDown = [ -e \"$HERE/killed\" ] || { touch \"$HERE/killed\"; kill -KILL $PPID; }";
    let script = format!(
        "{BEGIN}down; echo \"down $?\"; ip -o link show weft0 2> /dev/null | wc -l; cat \"$HERE/said\""
    );
    let Some(ended) = weft(&format!("SaveConfig = true\n{kill}"), &script) else { return };
    assert!(ended.stdout.starts_with("down 1\n0\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("may not have saved its state"), "{}", ended.stdout);
}

#[test]
fn an_edit_that_was_not_loaded_is_kept_beside_a_file_that_is_saved() {
    let script = r#"
up; add() { wg set weft0 peer $(wg genkey | wg pubkey) allowed-ips $1; weft save weft0 2> "$HERE/told"; echo "$?"; }
add 10.89.0.0/16; add 10.90.0.0/16; ls "$HERE" | grep -c before-save
echo '# mine' >> "$FILE"; cp "$FILE" "$HERE/edited"; add 10.91.0.0/16
cmp "$FILE.before-save" "$HERE/edited" && grep -c 'not as weft0 has loaded it' "$HERE/told"
grep -c AllowedIPs "$FILE"
"#;
    let Some(ended) = weft("", script) else { return };
    assert_eq!(ended.stdout, "0\n0\n0\n0\n1\n4\n", "{ended:?}");
}
