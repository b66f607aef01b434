//! Service managers: what launchd is told, and which unit of systemd is named.

use crate::support::{KEY, PEER, file, run};

#[test]
fn launchd_does_not_start_again_what_cannot_work() {
    let (_directory, path) = file("utun7.conf", b"[Interface]\nMTU = 1\n");
    let path = path.to_str().unwrap();
    assert_eq!(run(&["up", path], "").code, 78);
    let ended = run(&["up", "--launchd", path], "");
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("error:") && ended.stderr.contains("MTU"), "{}", ended.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn on_linux_the_unit_of_systemd_is_named() {
    for (action, advice) in [
        ("install", "systemctl enable --now weft@wg-home"),
        ("remove", "systemctl disable --now weft@wg-home"),
        ("status", "systemctl status weft@wg-home"),
    ] {
        let ended = run(&["service", action, "wg-home"], "");
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
        assert!(ended.stderr.contains(&format!("`{advice}`")), "{}", ended.stderr);
        assert!(ended.stderr.contains("`weft-client@wg-home`"), "{}", ended.stderr);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn on_linux_the_file_says_which_unit_runs_it() {
    let install = |interface: &str, allowed_ips: &str| {
        let text = format!(
            "[Interface]\nPrivateKey = {KEY}\n{interface}\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = {allowed_ips}\n"
        );
        let (_directory, path) = file("wg-home.conf", text.as_bytes());
        let path = path.to_str().unwrap();
        let ended = run(&["service", "install", path], "");
        (ended.code, ended.stderr.replace(path, "FILE"))
    };
    for (interface, allowed_ips, unit) in [
        ("", "10.0.0.0/8", "weft"),
        ("DNS = 10.0.0.1", "10.0.0.0/8", "weft-client"),
        ("", "0.0.0.0/0", "weft-client"),
        ("", "10.0.0.0/8, ::/0", "weft-client"),
        ("Table = off", "0.0.0.0/0", "weft"),
    ] {
        let command = format!(
            "`install -m 600 FILE /etc/wireguard/wg-home.conf`, then `systemctl enable --now {unit}@wg-home`\n"
        );
        let (code, told) = install(interface, allowed_ips);
        assert!(code == 1 && told.ends_with(&command), "{interface} {allowed_ips}: {told}");
    }
    for wrong in ["Jc = 4", "MTU = 1"] {
        let (code, told) = install(wrong, "10.0.0.0/8");
        assert!(code == 78 && told.contains("FILE:3: "), "{wrong}: {told}");
    }
}
