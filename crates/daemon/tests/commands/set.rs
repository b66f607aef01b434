//! `weft set` tells a daemon the same as `wg set` does.

use weft_lab::here;

use crate::fake_daemon::FakeDaemon;
use crate::programs::{has_localhost, weft, wg};
use crate::sandbox;

const A: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const B: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";
const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

#[test]
fn every_setting_is_told_as_wg_tells_it() {
    if !here::installed(&["wg"]) {
        return;
    }
    let files = tempfile::tempdir().unwrap();
    let key = files.path().join("key");
    std::fs::write(&key, format!("{KEY}\n")).unwrap();
    let key = key.to_str().unwrap();
    sandbox::run(|| {
        let daemon = FakeDaemon::start("fake", "");
        for settings in [
            &["listen-port", "5", "fwmark", "0xca6c", "private-key", key][..],
            &["private-key", "/dev/null", "fwmark", "off", "listen-port", "0"],
            &["listen-port", "5", "listen-port", "6"],
            &["peer", A],
            &["peer", A, "remove"],
            &["peer", A, "remove", "peer", B, "allowed-ips", ""],
            &["peer", A, "preshared-key", key, "endpoint", "192.0.2.1:5", "persistent-keepalive", "25"],
            &["peer", A, "preshared-key", "/dev/null", "persistent-keepalive", "off", "peer", A, "remove"],
            &["peer", A, "endpoint", "[2001:db8::1]:80", "allowed-ips", "10.0.0.0/8,fd00::1 , ::/0"],
            &["peer", A, "endpoint", "[fe80::1%lo]:80", "persistent-keepalive", "0"],
            &["peer", A, "endpoint", "localhost:80"],
            &[
                "peer",
                A,
                "allowed-ips",
                "10.0.0.0/8",
                "allowed-ips",
                "11.0.0.0/8",
                "peer",
                B,
                "endpoint",
                "192.0.2.1:5",
            ],
        ] {
            if settings.contains(&"localhost:80") && !has_localhost() {
                continue;
            }
            let words = [&["set", "fake"], settings].concat();
            wg(&words).output();
            let theirs = daemon.sets();
            assert_eq!(weft(&words).output(), "");
            assert_eq!(daemon.sets(), theirs, "{settings:?}");
            assert_eq!(theirs.len(), 1);
        }
    });
}

#[test]
fn allowed_ips_with_signs_are_changes_to_those_that_a_peer_has() {
    sandbox::run(|| {
        let daemon = FakeDaemon::start("fake", "");
        let of = |list: &str| {
            weft(&["set", "fake", "peer", A, "allowed-ips", list]).output();
            let told = daemon.sets().concat();
            told.lines().skip(2).map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("+10.0.0.0/8"), "allowed_ip=10.0.0.0/8 ");
        assert_eq!(of("-10.0.0.0/8,+fd00::1"), "allowed_ip=-10.0.0.0/8 allowed_ip=fd00::1/128 ");
        assert_eq!(of("10.0.0.0/8"), "replace_allowed_ips=true allowed_ip=10.0.0.0/8 ");
    });
}

#[test]
fn host_bits_are_cleared_and_warned_of() {
    sandbox::run(|| {
        let daemon = FakeDaemon::start("fake", "");
        let ended = weft(&["set", "fake", "peer", A, "allowed-ips", "10.0.0.1/8"]);
        assert!(
            ended.stderr.starts_with("warning: allowed-ips: 10.0.0.1/8 has host bits"),
            "{}",
            ended.stderr
        );
        assert!(daemon.sets().concat().contains("allowed_ip=10.0.0.0/8\n"));
    });
}
