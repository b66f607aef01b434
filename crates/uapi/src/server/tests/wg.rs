//! wg(8) against a server without an interface behind it.

use std::num::NonZeroU16;
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use weft_config::device::AllowedIpChange;
use weft_lab::{here, mounts};
use weft_tunnel::{PeerSettings, PresharedKey, PrivateKey};

use super::*;
use crate::SOCKET_DIRECTORY;

/// Runs `test` with a private socket directory for this thread.
fn with_own_sockets(test: impl FnOnce() + Send) {
    if !here::installed(&["wg"]) {
        return;
    }
    let prepare = || {
        std::fs::create_dir_all(SOCKET_DIRECTORY)?;
        mounts::empty(SOCKET_DIRECTORY)
    };
    mounts::run_separate(prepare, test);
}

fn wg(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new("wg");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn wg_shows_and_changes_what_is_served() {
    with_own_sockets(|| {
        let fake = Arc::<Fake>::default();
        let (_server, _gone) = serve(Listener::open(&name()).unwrap(), &fake, Limits::default());
        let (first, second) = (peer_number(1), peer_number(2));
        let psk = PresharedKey::from_bytes([9; 32]);
        *fake.peers.lock().unwrap() = vec![
            PeerState {
                endpoint: Some("[2001:db8::1]:7".parse().unwrap()),
                last_handshake: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
                tx_bytes: 3,
                rx_bytes: 4,
                settings: PeerSettings {
                    preshared_key: Some(psk.clone()),
                    persistent_keepalive: NonZeroU16::new(25),
                    ..PeerSettings::default()
                },
                allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
                ..state_of(1)
            },
            state_of(2),
        ];
        assert_eq!(said(&wg(&["show", "interfaces"], "")), "test0\n");
        let dump = said(&wg(&["show", "test0", "dump"], ""));
        let shown_psk = psk.to_base64();
        let expected = format!(
            "(none)\t(none)\t51820\toff\n{first}\t{}\t[2001:db8::1]:7\t10.0.0.0/8,fd00::/8\t1700000000\t4\t3\t25\n\
             {second}\t(none)\t(none)\t(none)\t0\t0\t0\toff\n",
            *shown_psk
        );
        assert_eq!(dump, expected);

        let key = PrivateKey::from_bytes([8; 32]);
        let text = key.to_base64();
        let set = ["set", "test0", "private-key", "/dev/stdin", "listen-port", "9", "fwmark", "0x10"];
        let peer = first.to_string();
        let peer = ["peer", &peer, "endpoint", "192.0.2.1:9", "allowed-ips", "192.0.2.0/24"];
        said(&wg(&[&set[..], &peer[..], &["persistent-keepalive", "off"]].concat(), &text));
        let changes = fake.changes();
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((&change.settings.private_key, change.settings.listen_port), (&Some(Some(key)), Some(9)));
        assert_eq!((change.settings.fw_mark, change.replace_peers), (Some(16), false));
        let [peer] = &change.peers[..] else { panic!("{change:?}") };
        assert_eq!(peer.endpoint, Some("192.0.2.1:9".parse().unwrap()));
        assert_eq!(peer.allowed_ips, [AllowedIpChange::Add("192.0.2.0/24".parse().unwrap())]);
        assert!(peer.replace_allowed_ips && peer.settings.persistent_keepalive == Some(None));
    });
}

#[test]
fn wg_syncconf_says_what_is_different() {
    with_own_sockets(|| {
        let fake = Arc::<Fake>::default();
        let (_server, _gone) = serve(Listener::open(&name()).unwrap(), &fake, Limits::default());
        *fake.peers.lock().unwrap() = vec![state_of(1), state_of(2)];
        let config = format!("[Interface]\nListenPort = 7\n[Peer]\nPublicKey = {}\n", peer_number(2));
        said(&wg(&["syncconf", "test0", "/dev/stdin"], &config));
        let change = fake.changes().pop().unwrap();
        let removed: Vec<_> =
            change.peers.iter().filter(|peer| peer.remove).map(|peer| peer.public_key).collect();
        assert_eq!(removed, [peer_number(1)]);
        assert!(!change.replace_peers && change.settings.listen_port == Some(7));
    });
}

#[test]
fn wg_tells_why_a_change_was_refused() {
    with_own_sockets(|| {
        let fake = Arc::<Fake>::default();
        let (_server, _gone) = serve(Listener::open(&name()).unwrap(), &fake, Limits::default());
        fake.errors.lock().unwrap().push_back(ControlError::PortInUse(String::new()));
        let output = wg(&["set", "test0", "listen-port", "9"], "");
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("Address already in use"), "{error}");
    });
}
