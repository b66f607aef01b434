//! Interfaces, files, and what has to change.

use std::path::Path;

use weft_config::device::DeviceState;
use weft_config::{WgQuickKeys, parse_change};

use super::*;
use crate::wg::endpoints;

const OWN: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const OWN_PUBLIC: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
const A: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const B: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

const INTERFACE: &str =
    "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\nListenPort = 5\nFwMark = 7\n";

fn wanted(text: &str) -> DeviceChange {
    let (change, _warnings) = parse_change(text, Path::new("f"), WgQuickKeys::PassOver).unwrap();
    endpoints::resolve(change, &"wg0".parse().unwrap()).unwrap()
}

fn peer(key: &str, lines: &str) -> String {
    format!("[Peer]\nPublicKey = {key}\n{lines}\n")
}

/// Returns a running interface with the configuration in `text`.
fn running(text: &str) -> Reported {
    let wanted = wanted(text);
    let public_key = wanted.settings.applied().private_key.as_ref().map(PrivateKey::public_key);
    let peers = wanted.peers.into_iter().map(|change| {
        let mut peer = PeerState::new(change.public_key);
        peer.allowed_ips = prefixes_after(&change, &[]);
        peer.endpoint = change.endpoint;
        change.settings.apply(&mut peer.settings);
        peer
    });
    let state = DeviceState { settings: wanted.settings.applied(), peers: peers.collect() };
    Reported { state, public_key }
}

fn two_peers(a: &str, b: &str) -> String {
    format!("{INTERFACE}{}{}", peer(A, a), peer(B, b))
}

#[test]
fn nothing_changes_if_all_is_as_the_file_says() {
    let text = two_peers("AllowedIPs=10.0.0.0/8,fd00::/64\nEndpoint=192.0.2.1:1", "PersistentKeepalive=5");
    assert!(difference(&running(&text), wanted(&text)).is_none());
    // In another order, with a prefix that a later peer takes over, and with the interface's own key among
    // the peers.
    let odd = format!(
        "{INTERFACE}{}{}{}",
        peer(B, "PersistentKeepalive=5\nAllowedIPs=fd00::/64"),
        peer(A, "AllowedIPs=fd00::/64,10.0.0.0/8"),
        peer(OWN_PUBLIC, "AllowedIPs=10.9.0.0/16")
    );
    assert!(difference(&running(&text), wanted(&odd)).is_none());
}

#[test]
fn a_key_and_a_port_that_the_file_leaves_open_stay_and_a_mark_goes() {
    let change = difference(&running(INTERFACE), wanted("")).unwrap();
    assert_eq!(
        (change.settings.private_key, change.settings.listen_port, change.settings.fw_mark),
        (None, None, Some(0))
    );
    assert!(change.peers.is_empty() && !change.replace_peers);
    let change = difference(&running(""), wanted(INTERFACE)).unwrap();
    assert_eq!(change.settings.private_key, Some(Some(OWN.parse().unwrap())));
    assert_eq!((change.settings.listen_port, change.settings.fw_mark), (Some(5), Some(7)));
}

#[test]
fn a_daemon_that_hides_its_key_is_not_given_the_same_again() {
    let mut current = running(INTERFACE);
    current.state.settings.private_key = None;
    assert!(difference(&current, wanted(INTERFACE)).is_none());
}

#[test]
fn peers_come_and_go_by_themselves() {
    let (one, other) =
        (format!("{INTERFACE}{}", peer(A, "")), format!("{INTERFACE}{}", peer(B, "AllowedIPs=10.0.0.0/8")));
    let change = difference(&running(&one), wanted(&other)).unwrap();
    assert!(!change.replace_peers);
    let [gone, new] = &change.peers[..] else { panic!("{:?}", change.peers) };
    assert_eq!((gone.public_key.to_string().as_str(), gone.remove), (A, true));
    assert_eq!((new.public_key.to_string().as_str(), new.remove), (B, false));
    assert_eq!(new.allowed_ips, [AllowedIpChange::Add("10.0.0.0/8".parse().unwrap())]);
}

#[test]
fn only_what_differs_of_a_peer_is_changed() {
    let before = two_peers("AllowedIPs=10.0.0.0/8\nEndpoint=192.0.2.1:1", "AllowedIPs=10.1.0.0/16");
    let only = |lines: &str| {
        let change =
            difference(&running(&before), wanted(&two_peers(lines, "AllowedIPs=10.1.0.0/16"))).unwrap();
        let [peer] = &change.peers[..] else { panic!("{:?}", change.peers) };
        assert_eq!(peer.public_key.to_string(), A);
        peer.clone()
    };
    let endpoint = only("AllowedIPs=10.0.0.0/8\nEndpoint=192.0.2.1:2");
    assert_eq!(endpoint.endpoint, Some("192.0.2.1:2".parse().unwrap()));
    assert!(!endpoint.replace_allowed_ips && endpoint.settings.preshared_key.is_none());
    let prefixes = only("AllowedIPs=10.0.0.0/9");
    assert!(prefixes.replace_allowed_ips && prefixes.endpoint.is_none() && prefixes.allowed_ips.len() == 1);
    let signs = only("AllowedIPs=+11.0.0.0/8\nEndpoint=192.0.2.1:1");
    assert_eq!(signs.allowed_ips.len(), 2);
    let key = only(&format!("AllowedIPs=10.0.0.0/8\nPresharedKey={OWN}"));
    assert_eq!(key.settings.preshared_key, Some(Some(OWN.parse().unwrap())));
}

#[test]
fn what_the_file_does_not_say_any_more_goes() {
    let before = two_peers(&format!("PresharedKey={OWN}\nPersistentKeepalive=5"), "");
    let change = difference(&running(&before), wanted(&two_peers("", ""))).unwrap();
    let [peer] = &change.peers[..] else { panic!("{:?}", change.peers) };
    assert_eq!((&peer.settings.preshared_key, peer.settings.persistent_keepalive), (&Some(None), Some(None)));
}

#[test]
fn a_prefix_that_moves_is_taken_from_the_one_and_given_to_the_other() {
    let (before, after) = (
        two_peers("AllowedIPs=10.0.0.0/8,11.0.0.0/8", ""),
        two_peers("AllowedIPs=11.0.0.0/8", "AllowedIPs=10.0.0.0/8"),
    );
    let change = difference(&running(&before), wanted(&after)).unwrap();
    assert!(change.peers.iter().all(|peer| peer.replace_allowed_ips && peer.allowed_ips.len() == 1));
    assert_eq!(change.peers.len(), 2);
}
