//! `weft setconf`, `addconf` and `syncconf`: what a daemon is told.

use weft_lab::here;

use crate::fake_daemon::FakeDaemon;
use crate::programs::{has_localhost, weft, weft_reads, wg};
use crate::sandbox;

const A: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const A_HEX: &str = "c53201039adba14be71f886da1d8dbe9eebded08cb111b75340078999aa9f038";
const B: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";
const B_HEX: &str = "4eb32f4a83f88d842563a448cc181bb2c42a637bf12363e2fb2ef594e5965d7d";
const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const KEY_HEX: &str = "c809f3e5317e9575c9b5ed78b638b7ce530dabe85ddab614220241801ddf0669";

#[test]
fn setconf_and_addconf_tell_what_wg_tells() {
    if !here::installed(&["wg"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wg.conf");
    sandbox::run(|| {
        let daemon = FakeDaemon::start("fake", "");
        for text in [
            String::new(),
            format!("[Peer]\nPublicKey = {A}\n"),
            format!("[Interface]\nPrivateKey = {KEY}\nListenPort = 5 # c\nFwMark=0x5\n"),
            format!(
                "[interface]\nlistenport=7\n[PEER]\npublickey={A}\nallowedips=10.0.0.0/8, fd00::/64\nAllowedIPs=::/0\n"
            ),
            format!(
                "[Interface]\nPrivateKey={KEY}\n[Peer]\nPublicKey={A}\nEndpoint=192.0.2.1:5\nPresharedKey={KEY}\n\
                 PersistentKeepalive=25\n[Peer]\nEndpoint=localhost:80\nPublicKey={B}\nPersistentKeepalive=off\n"
            ),
            format!("[Peer]\nPublicKey={A}\nEndpoint=2001:db8::1:51820\n"),
            // White space does not count, wherever it stands.
            format!(
                "[ Inter face ]\r\nListen Port = 5 1\r\nFw Mark\t=\t0x C\r\n[ Peer ]\nPublic Key = {} {}\n\
                 Endpoint = 192.0.2.1: 51820\nAllowed IPs = 10.0. 0.0 / 8 ,fd00:: /64\nPersistent Keepalive = 2 5\n",
                &A[..9],
                &A[9..]
            ),
            format!(
                "[Peer]\nPublicKey={A}\nEndpoint=[2001:db8::1]\t: 5\n[Peer]\nPublicKey={B}\nEndpoint =local host :80\n"
            ),
            format!("[Interface]\nPrivateKey = {} {}\nFwMark=010\n", &KEY[..9], &KEY[9..]),
            "[Interface]\nListenPort = 0051\nFwMark = 0xABCDEF\n".to_owned(),
            format!("[Interface]\nPrivateKey={KEY}\n[Peer]\nPublicKey={A}\n[Interface]\nListenPort=5\n"),
        ] {
            if text.contains("host") && !has_localhost() {
                continue;
            }
            std::fs::write(&file, &text).unwrap();
            for command in ["setconf", "addconf"] {
                let words = [command, "fake", file.to_str().unwrap()];
                wg(&words).output();
                let theirs = daemon.sets();
                weft(&words).output();
                assert_eq!(daemon.sets(), theirs, "{command}:\n{text}");
                for stdin in ["-", "/dev/stdin"] {
                    weft_reads(&[command, "fake", stdin], &text).output();
                    assert_eq!(daemon.sets(), theirs, "{command} {stdin}:\n{text}");
                }
            }
        }
    });
}

#[test]
fn syncconf_tells_only_what_differs() {
    let state = format!(
        "private_key={KEY_HEX}\nlisten_port=5\nfwmark=0\npublic_key={A_HEX}\nendpoint=192.0.2.1:5\n\
         allowed_ip=10.0.0.0/8\npublic_key={B_HEX}\npersistent_keepalive_interval=25\n"
    );
    let file = |a: &str, rest: &str| {
        format!(
            "[Interface]\nPrivateKey={KEY}\nListenPort=5\n[Peer]\nPublicKey={A}\nEndpoint=192.0.2.1:5\n{a}\n{rest}"
        )
    };
    let b = format!("[Peer]\nPublicKey={B}\nPersistentKeepalive=25\n");
    sandbox::run(|| {
        let daemon = FakeDaemon::start("fake", &state);
        let told = |text: &str| {
            weft_reads(&["syncconf", "fake", "-"], text).output();
            daemon.sets()
        };
        assert_eq!(told(&file("AllowedIPs=10.0.0.0/8", &b)), [""; 0]);
        let change = told(&file("AllowedIPs=10.0.0.0/8,11.0.0.0/8", &b));
        let expected = format!(
            "set=1\npublic_key={A_HEX}\nreplace_allowed_ips=true\nallowed_ip=10.0.0.0/8\nallowed_ip=11.0.0.0/8\n\n"
        );
        assert_eq!(change, [expected]);
        let gone = told(&file("AllowedIPs=10.0.0.0/8", ""));
        assert_eq!(gone, [format!("set=1\npublic_key={B_HEX}\nremove=true\n\n")]);
        // A file of wg-quick will do.
        let quick = file("AllowedIPs=10.0.0.0/8", &b)
            .replace("[Interface]", "[Interface]\nAddress=10.0.0.1\nDNS=10.0.0.53");
        assert_eq!(told(&quick), [""; 0]);
    });
}
