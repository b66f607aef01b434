//! Service managers: what launchd is told, and which unit of systemd is named.

use crate::support::{file, run};

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
