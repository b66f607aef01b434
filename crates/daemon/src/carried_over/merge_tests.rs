//! An operator edits the file, runs `wg set`, and restarts the service.

use std::collections::HashMap as Map;
use std::path::Path;
use std::time::SystemTime;

use weft_config::device::{DeviceState, PeerState};
use weft_config::settings::InterfaceSettings;
use weft_control::Model;
use weft_tunnel::{PeerLimits, PresharedKey};

use super::super::state::{AtHandover, Base};
use super::*;

fn key(seed: u8) -> PrivateKey {
    PrivateKey::from_bytes([seed; 32])
}

fn public(seed: u8) -> PublicKey {
    key(seed).public_key()
}

fn psk(seed: u8) -> PresharedKey {
    PresharedKey::from_bytes([seed; 32])
}

fn config(interface: &str, peers: &[(u8, &str)]) -> Config {
    let mut text = format!("[Interface]\n{interface}\n");
    for (seed, lines) in peers {
        text += &format!("[Peer]\nPublicKey = {}\n{lines}\n", public(*seed));
    }
    weft_config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config
}

fn own(seed: u8) -> String {
    format!("PrivateKey = {}", *key(seed).to_base64())
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns the state of a running peer.
fn runs(seed: u8, endpoint: Option<&str>, allowed_ips: &[&str]) -> PeerState {
    PeerState {
        endpoint: endpoint.map(address),
        allowed_ips: allowed_ips.iter().map(|prefix| prefix.parse().unwrap()).collect(),
        ..PeerState::new(public(seed))
    }
}

fn left(base: &Config, mark: u32, own: Option<u8>, peers: Vec<PeerState>) -> State {
    let device = DeviceState {
        settings: InterfaceSettings { private_key: own.map(key), listen_port: 4242, fw_mark: mark },
        peers,
    };
    let rest = AtHandover { latest_stamp: SystemTime::UNIX_EPOCH, sources: Map::new() };
    State::of("wg0".parse().unwrap(), Base::of(base, mark), device, &rest)
}

/// Returns the merged configuration of the interface. Endpoints that have to be looked up resolve to
/// 203.0.113.1:1.
fn merged(left: &State, config: &Config) -> Model {
    let endpoints: Vec<_> = left
        .addresses(config)
        .into_iter()
        .map(|place| match place {
            PeerAddress::Known(address) => Some(address),
            PeerAddress::LookUp { .. } => Some(address("203.0.113.1:1")),
            PeerAddress::None => None,
        })
        .collect();
    let mut model = Model::default();
    model.change(&left.change(config, &endpoints));
    model
}

fn prefixes(model: &Model, seed: u8) -> Vec<String> {
    let peer = model.peer(&public(seed));
    peer.map(|peer| peer.allowed_ips.iter().map(ToString::to_string).collect()).unwrap_or_default()
}

fn endpoint(model: &Model, seed: u8) -> Option<SocketAddr> {
    model.peer(&public(seed)).and_then(|peer| peer.endpoint)
}

#[test]
fn an_untouched_file_brings_back_what_was_changed_while_it_ran() {
    let file = config(
        &own(1),
        &[(2, "Endpoint = vpn.example:1\nAllowedIPs = 10.2.0.0/16"), (3, "AllowedIPs = 10.3.0.0/16")],
    );
    let mut changed = runs(2, Some("192.0.2.77:7"), &["10.2.0.0/16", "10.22.0.0/16"]);
    changed.settings.preshared_key = Some(psk(5));
    changed.settings.persistent_keepalive = std::num::NonZeroU16::new(25);
    // Peer 3 was removed by `wg set`, and peer 4 added.
    let left = left(&file, 0, Some(9), vec![changed, runs(4, None, &["10.4.0.0/16"])]);
    let model = merged(&left, &file);
    assert_eq!(model.settings().private_key.as_ref(), Some(&key(9)), "given by `wg set`");
    let keys: Vec<PublicKey> = model.peers().map(|peer| peer.public_key).collect();
    assert_eq!(keys, [public(2), public(4)]);
    assert_eq!(endpoint(&model, 2), Some(address("192.0.2.77:7")), "it roamed there");
    assert_eq!(prefixes(&model, 2), ["10.2.0.0/16", "10.22.0.0/16"]);
    assert_eq!(prefixes(&model, 4), ["10.4.0.0/16"]);
    let peer = model.peer(&public(2)).unwrap();
    assert_eq!(peer.settings.preshared_key, Some(psk(5)));
    assert_eq!(peer.settings.persistent_keepalive.map(u16::from), Some(25));
    assert_eq!(left.port(&file), Some(4242));
    let file = config(&own(1), &[(2, "Endpoint = vpn.example:1"), (3, "Endpoint = other.example:1")]);
    let left = self::left(&file, 0, Some(1), vec![runs(2, None, &[])]);
    let look_up = PeerAddress::LookUp { last: None };
    assert_eq!(left.addresses(&file), [look_up, PeerAddress::None], "a removed peer has no address");
}

#[test]
fn what_has_to_be_looked_up_was_somewhere() {
    let base = config(&own(1), &[(2, "Endpoint = vpn.example:1"), (3, "")]);
    let left = left(&base, 0, Some(1), vec![runs(2, Some("192.0.2.77:7"), &[]), runs(3, None, &[])]);
    let at = |last: &str| PeerAddress::LookUp { last: Some(address(last)) };
    let edited = config(&own(1), &[(2, "Endpoint = other.example:1"), (3, "Endpoint = 192.0.2.3:1")]);
    assert_eq!(left.addresses(&edited), [at("192.0.2.77:7"), PeerAddress::LookUp { last: None }]);
    // The same server with another key, and an unknown server.
    let edited = config(&own(1), &[(4, "Endpoint = vpn.example:1"), (5, "Endpoint = vpn.example:2")]);
    assert_eq!(left.addresses(&edited), [at("192.0.2.77:7"), PeerAddress::LookUp { last: None }]);
}

#[test]
fn limits_are_those_of_the_file() {
    let file = |limit: &str| config(&own(1), &[(2, limit), (3, "# weft: RateFromPeer = 2Mbit")]);
    let base = file("# weft: RateToPeer = 5Mbit\nAllowedIPs = 10.2.0.0/16");
    let left = left(&base, 0, Some(1), vec![runs(2, None, &["10.2.0.0/16"]), runs(4, None, &[])]);
    let limits = |model: &Model, seed| model.peer(&public(seed)).map(|peer| peer.settings.limits);
    let rate = |bits| PeerLimits { to_peer: weft_tunnel::Rate::from_bits_per_second(bits), from_peer: None };
    let model = merged(&left, &base);
    assert_eq!(limits(&model, 2), Some(rate(5_000_000)));
    assert_eq!(limits(&model, 3), None, "it was removed, and stays so");
    assert_eq!(limits(&model, 4), Some(PeerLimits::default()));
    let model = merged(&left, &file("# weft: RateToPeer = 6Mbit\nAllowedIPs = 10.2.0.0/16"));
    assert_eq!(limits(&model, 2), Some(rate(6_000_000)));
}

#[test]
fn what_was_edited_is_as_the_file_says_and_nothing_else() {
    let base =
        config(&own(1), &[(2, "Endpoint = 192.0.2.1:1\nAllowedIPs = 10.2.0.0/16\nPersistentKeepalive = 10")]);
    let mut changed = runs(2, Some("192.0.2.77:7"), &["10.2.0.0/16", "10.22.0.0/16"]);
    changed.settings.preshared_key = Some(psk(5));
    changed.settings.persistent_keepalive = std::num::NonZeroU16::new(10);
    let left = left(&base, 0, Some(1), vec![changed]);

    let edited =
        config(&own(1), &[(2, "Endpoint = 192.0.2.1:1\nAllowedIPs = 10.2.0.0/16\nPersistentKeepalive = 30")]);
    let model = merged(&left, &edited);
    let peer = model.peer(&public(2)).unwrap();
    assert_eq!(peer.settings.persistent_keepalive.map(u16::from), Some(30));
    assert_eq!(peer.settings.preshared_key, Some(psk(5)), "given by `wg set`");
    assert_eq!(prefixes(&model, 2), ["10.2.0.0/16", "10.22.0.0/16"]);
    assert_eq!(endpoint(&model, 2), Some(address("192.0.2.77:7")));

    let edited =
        config(&own(1), &[(2, "Endpoint = 192.0.2.2:2\nAllowedIPs = 10.5.0.0/16\nPersistentKeepalive = 10")]);
    let model = merged(&left, &edited);
    assert_eq!(prefixes(&model, 2), ["10.5.0.0/16"]);
    assert_eq!(
        endpoint(&model, 2),
        Some(address("203.0.113.1:1")),
        "looked up: it is another one in the file"
    );

    let edited = config(&own(1), &[(2, "AllowedIPs = 10.2.0.0/16\nPersistentKeepalive = 10")]);
    assert_eq!(endpoint(&merged(&left, &edited), 2), Some(address("192.0.2.77:7")), "it is still there");
}

#[test]
fn peers_come_and_go_with_the_file() {
    let base = config(&own(1), &[(2, "AllowedIPs = 10.2.0.0/16"), (3, "AllowedIPs = 10.3.0.0/16")]);
    // Peer 3 was removed by `wg set`. Peer 4 was added, with a prefix that the edited file gives to another
    // peer.
    let left = left(
        &base,
        0,
        Some(1),
        vec![runs(2, None, &["10.2.0.0/16"]), runs(4, None, &["10.5.0.0/16", "10.4.0.0/16"])],
    );
    let edited = config(&own(1), &[(3, "AllowedIPs = 10.33.0.0/16"), (5, "AllowedIPs = 10.5.0.0/16")]);
    let model = merged(&left, &edited);
    assert!(model.peer(&public(2)).is_none(), "taken out of the file");
    assert_eq!(prefixes(&model, 3), ["10.33.0.0/16"], "what the file says of it is new");
    assert_eq!(prefixes(&model, 4), ["10.4.0.0/16"]);
    assert_eq!(prefixes(&model, 5), ["10.5.0.0/16"], "the file is stronger");
}

#[test]
fn a_prefix_that_an_edit_gives_to_another_peer_goes_there_whatever_the_order() {
    let base = config(&own(1), &[(2, "AllowedIPs = 10.2.0.0/16"), (3, "AllowedIPs = 10.3.0.0/16")]);
    let left = left(
        &base,
        0,
        Some(1),
        vec![runs(2, None, &["10.2.0.0/16"]), runs(3, None, &["10.3.0.0/16", "10.9.0.0/16"])],
    );
    let edited =
        config(&own(1), &[(2, "AllowedIPs = 10.2.0.0/16, 10.9.0.0/16"), (3, "AllowedIPs = 10.3.0.0/16")]);
    let model = merged(&left, &edited);
    assert_eq!(prefixes(&model, 2), ["10.2.0.0/16", "10.9.0.0/16"]);
    assert_eq!(prefixes(&model, 3), ["10.3.0.0/16"]);
}

#[test]
fn keys_ports_and_marks_follow_the_file_only_where_it_was_edited() {
    let base = config(&format!("{}\nListenPort = 51820", own(1)), &[]);
    let given = left(&base, 0, Some(9), Vec::new());
    let edited = config(&format!("{}\nListenPort = 51821\nFwMark = 7", own(2)), &[]);
    assert_eq!(merged(&given, &edited).settings().private_key.as_ref(), Some(&key(2)));
    assert_eq!(given.port(&edited), None);
    // A command of the configuration sets the key: the file contains none.
    let keyless = config("ListenPort = 51820\nPostUp = wg set %i private-key /etc/key", &[]);
    let given = left(&keyless, 0, Some(9), Vec::new());
    assert_eq!(merged(&given, &keyless).settings().private_key.as_ref(), Some(&key(9)));
    let of_file = left(&base, 0, Some(1), Vec::new());
    assert_eq!(merged(&of_file, &base).settings().private_key.as_ref(), Some(&key(1)));

    let mut marked = left(&base, 0x10, Some(1), Vec::new());
    assert_eq!(marked.mark(&base, 0x10), 0x10);
    assert_eq!(marked.mark(&base, 0x20), 0x20, "chosen again");
    marked.fw_mark = 0x99;
    assert_eq!(marked.mark(&base, 0x10), 0x99, "given by `wg set`");
    assert_eq!(marked.mark(&edited, 7), 7);
}
