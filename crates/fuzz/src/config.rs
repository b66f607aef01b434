//! The text of a configuration file, and what `weft save` makes of it.
//!
//! What is parsed keeps its promises; a file that is saved without a change says the same as before, and with
//! changes it says what was asked for; saving again changes nothing more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;

use ipnet::IpNet;
use weft_config::device::{DeviceState, PeerState};
use weft_config::{Config, Endpoint, Saved, edit, parse};
use weft_tunnel::{PeerSettings, PresharedKey, PrivateKey, PublicKey};

use crate::input::Input;

pub(crate) fn check(bytes: &[u8]) {
    // The file is up to the first zero, and the changes are behind it.
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else { return };
    let parsed = match read(text) {
        Ok(config) => config,
        Err(errors) => return assert!(!errors.is_empty(), "a refusal has a reason"),
    };
    let mut prefixes = BTreeSet::new();
    for prefix in parsed.peers.iter().flat_map(|peer| &peer.allowed_ips) {
        assert!(prefix.addr() == prefix.network() && prefixes.insert(*prefix), "{prefix} has one owner");
    }
    let mut device = state_of(&parsed);
    says(text, &device, &parsed);
    change(&mut device, &parsed, &mut Input::new(bytes.get(end + 1..).unwrap_or_default()));
    says(text, &device, &parsed);
}

fn read(text: &str) -> Result<Config, String> {
    let parsed = parse(text, Path::new("wg0.conf"), "wg0".parse().unwrap());
    match parsed {
        Ok(parsed) => {
            parsed.warnings.iter().for_each(|warning| assert!(!warning.to_string().is_empty()));
            Ok(parsed.config)
        }
        Err(errors) => Err(errors.to_string()),
    }
}

/// Saves a state into a text, and checks that the text then says it.
fn says(text: &str, device: &DeviceState, before: &Config) {
    let saved = Saved {
        file: Path::new("wg0.conf"),
        device,
        addresses: None,
        mtu: None,
        chosen_mark: 0,
        comments: &[],
    };
    let edited = edit(text, &saved);
    let config =
        read(&edited).unwrap_or_else(|errors| panic!("what is saved is not read: {errors}\n{}", *edited));
    assert_eq!(config.interface.settings, device.settings);
    let rest =
        |config: &Config| (config.interface.addresses.clone(), config.interface.mtu, config.interface.table);
    assert_eq!(rest(&config), rest(before), "the rest is as it was");
    let written = peers_of(&state_of(&config));
    assert_eq!(written, peers_of(device), "{}", *edited);
    assert_eq!(*edit(&edited, &saved), *edited, "saving again changes nothing");
}

type Peers = BTreeMap<PublicKey, (Option<SocketAddr>, BTreeSet<IpNet>, Option<NonZeroU16>, Option<[u8; 32]>)>;

fn peers_of(device: &DeviceState) -> Peers {
    let peer = |peer: &PeerState| {
        let nets = peer.allowed_ips.iter().copied().collect();
        let key = peer.settings.preshared_key.as_ref().map(|key| *key.as_bytes());
        (peer.public_key, (peer.endpoint, nets, peer.settings.persistent_keepalive, key))
    };
    device.peers.iter().map(peer).collect()
}

/// The state of an interface that this configuration has just brought up. A name stands for no address here:
/// a file keeps it whatever the address is.
fn state_of(config: &Config) -> DeviceState {
    let peers = config.peers.iter().map(|peer| PeerState {
        endpoint: match peer.endpoint {
            Some(Endpoint::Address(address)) => Some(address),
            Some(Endpoint::Name { .. }) | None => None,
        },
        allowed_ips: peer.allowed_ips.clone(),
        settings: peer.settings.clone(),
        ..PeerState::new(peer.public_key)
    });
    DeviceState { settings: config.interface.settings.clone(), peers: peers.collect() }
}

/// Makes the changes that a client of wg(8) could make.
fn change(device: &mut DeviceState, config: &Config, input: &mut Input<'_>) {
    for _ in 0..8 {
        if input.is_empty() {
            break;
        }
        let (choice, count) = (input.byte(), device.peers.len());
        let place = input.below(count);
        match (choice & 7, device.peers.get_mut(place)) {
            (0, _) => device.settings.listen_port = input.u16(),
            // A mark that is the number of a kernel table is refused elsewhere.
            (1, _) => device.settings.fw_mark = input.u32() & !0x80,
            (2, _) => {
                let key = PrivateKey::from_bytes([input.byte() | 1; 32]);
                let public = key.public_key();
                if device.peers.iter().all(|peer| peer.public_key != public) {
                    device.settings.private_key = Some(key);
                }
            }
            (3, Some(_)) => drop(device.peers.remove(place)),
            (4, Some(peer)) => {
                let of_file = config.peers.iter().find(|other| other.public_key == peer.public_key);
                let is_named =
                    of_file.is_some_and(|peer| matches!(peer.endpoint, Some(Endpoint::Name { .. })));
                if !is_named {
                    peer.endpoint = Some(SocketAddr::from(([192, 0, 2, input.byte()], input.u16().max(1))));
                }
            }
            (5, Some(peer)) => {
                let key = input.byte();
                peer.settings.preshared_key = (key > 9).then(|| PresharedKey::from_bytes([key; 32]));
                peer.settings.persistent_keepalive = NonZeroU16::new(input.u16());
            }
            (6, Some(peer)) if choice & 8 != 0 => drop(peer.allowed_ips.pop()),
            (6, Some(_)) => {
                let net: IpNet = format!("10.{}.0.0/{}", input.byte(), input.byte() % 33).parse().unwrap();
                let net = net.trunc();
                device.peers.iter_mut().for_each(|peer| peer.allowed_ips.retain(|other| *other != net));
                device.peers[place].allowed_ips.push(net);
            }
            _ => {
                let key = PrivateKey::from_bytes([input.byte() | 1; 32]).public_key();
                let own = device.settings.private_key.as_ref().map(PrivateKey::public_key);
                if own != Some(key) && device.peers.iter().all(|peer| peer.public_key != key) {
                    let settings = PeerSettings {
                        persistent_keepalive: NonZeroU16::new(input.u16()),
                        ..PeerSettings::default()
                    };
                    device.peers.push(PeerState { settings, ..PeerState::new(key) });
                }
            }
        }
    }
}
