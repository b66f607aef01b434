//! The rule for a file that was edited since it was last read: the settings that the edit changed are taken
//! from the file; all others stay, including changes made at run time.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::settings::{InterfaceSettingsChange, PeerSettingsChange};
use weft_config::{Config, Peer};
use weft_tunnel::{PrivateKey, PublicKey};

use super::state::{CarriedPeer, FilePeer, OwnKey, State};

/// The address of a peer in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// The last known address.
    Known(SocketAddr),
    /// The endpoint in the file, which has to be looked up.
    LookUp {
        /// The last known address of the peer, or of another peer with the same endpoint.
        last: Option<SocketAddr>,
    },
    /// Unknown, or the peer does not take part.
    None,
}

impl State {
    /// Returns where the peers of the file are, in the order of the file: at the last known address, unless
    /// the endpoint in the file was edited.
    pub fn addresses(&self, config: &Config) -> Vec<PeerAddress> {
        let base: HashMap<PublicKey, &FilePeer> =
            self.base.peers.iter().map(|peer| (peer.public_key, peer)).collect();
        let was: HashMap<PublicKey, Option<SocketAddr>> =
            self.peers.iter().map(|peer| (peer.public_key, peer.endpoint)).collect();
        // The edit may have given the peer at this endpoint another key.
        let by_endpoint: HashMap<&str, SocketAddr> = (self.base.peers.iter())
            .filter_map(|peer| Some((peer.endpoint.as_deref()?, was.get(&peer.public_key).copied()??)))
            .collect();
        let last = |peer: &Peer, endpoint: &str| {
            let own = was.get(&peer.public_key).copied().flatten();
            own.or_else(|| by_endpoint.get(endpoint).copied())
        };
        let address = |peer: &Peer| {
            let file = FilePeer::of(peer);
            let base = base.get(&peer.public_key).copied();
            let is_edited = base.is_none_or(|base| base.endpoint != file.endpoint);
            match was.get(&peer.public_key).copied() {
                // It was removed at run time, and stays removed.
                None if base == Some(&file) => PeerAddress::None,
                Some(Some(address)) if !is_edited || file.endpoint.is_none() => PeerAddress::Known(address),
                _ => match &file.endpoint {
                    Some(endpoint) => PeerAddress::LookUp { last: last(peer, endpoint) },
                    None => PeerAddress::None,
                },
            }
        };
        config.peers.iter().map(address).collect()
    }

    /// Returns the port to use if the file's port is unchanged; `None` if the file was edited to another
    /// port.
    pub fn port(&self, config: &Config) -> Option<u16> {
        (config.interface.settings.listen_port == self.base.listen_port).then_some(self.listen_port)
    }

    /// Returns the mark to use: a mark that was set at run time if the file's mark is unchanged, else
    /// `planned`, which was chosen for the interface.
    pub fn mark(&self, config: &Config, planned: u32) -> u32 {
        let was_changed = self.fw_mark != self.base.mark;
        let is_edited = config.interface.settings.fw_mark != self.base.fw_mark;
        if was_changed && !is_edited { self.fw_mark } else { planned }
    }

    /// Returns the change that configures an interface without a key and without peers. `endpoints` are the
    /// addresses of the peers of the file.
    pub fn change(&self, config: &Config, endpoints: &[Option<SocketAddr>]) -> DeviceChange {
        let base: HashMap<PublicKey, &FilePeer> =
            self.base.peers.iter().map(|peer| (peer.public_key, peer)).collect();
        let was: HashSet<PublicKey> = self.peers.iter().map(|peer| peer.public_key).collect();
        let file: HashMap<PublicKey, (&Peer, Option<SocketAddr>)> = config
            .peers
            .iter()
            .enumerate()
            .map(|(place, peer)| (peer.public_key, (peer, endpoints.get(place).copied().flatten())))
            .collect();

        let mut peers = Vec::new();
        let mut edited = Vec::new();
        for was in &self.peers {
            let key = was.public_key;
            match (file.get(&key), base.get(&key)) {
                (Some((peer, endpoint)), base) => {
                    let merged = merge(was, base.copied(), peer, *endpoint);
                    if merged.is_edited {
                        edited.push(again(&merged.change));
                    }
                    peers.push(merged.change);
                }
                // Removed from the file.
                (None, Some(_)) => {}
                // Added at run time.
                (None, None) => peers.push(as_it_was(was)),
            }
        }
        for peer in config.peers.iter().filter(|peer| !was.contains(&peer.public_key)) {
            // A peer that was removed at run time returns if its part of the file was edited.
            if base.get(&peer.public_key).is_none_or(|base| **base != FilePeer::of(peer)) {
                let endpoint = file.get(&peer.public_key).and_then(|(_, endpoint)| *endpoint);
                peers.push(as_the_file_says(peer, endpoint));
            }
        }
        // Allowed-ips in an edited part of the file belong to that peer, also if another peer in the list
        // above claimed them.
        peers.extend(edited);
        let private_key = self.key(config).map(Some);
        let settings = InterfaceSettingsChange { private_key, ..InterfaceSettingsChange::default() };
        DeviceChange { settings, replace_peers: false, peers }
    }

    fn key(&self, config: &Config) -> Option<PrivateKey> {
        let of_file = config.interface.settings.private_key.as_ref();
        let is_edited = of_file.map(PrivateKey::public_key) != self.base.public_key;
        match &self.private_key {
            OwnKey::Given(key) if !is_edited || of_file.is_none() => key.clone(),
            _ => of_file.cloned(),
        }
    }
}

struct Merged {
    change: PeerChange,
    /// Whether the allowed-ips come from the file, and not from the state.
    is_edited: bool,
}

/// Merges a peer of the state with the same peer in the file.
fn merge(was: &CarriedPeer, base: Option<&FilePeer>, peer: &Peer, endpoint: Option<SocketAddr>) -> Merged {
    let file = FilePeer::of(peer);
    let keeps_ips = base.is_some_and(|base| base.allowed_ips == file.allowed_ips);
    let of_file = PeerSettingsChange::from(peer.settings.clone());
    let edited = match base {
        Some(base) => of_file.without(&base.settings()),
        None => of_file,
    };
    let mut settings = was.settings();
    edited.apply(&mut settings);
    let change = PeerChange {
        endpoint,
        settings: settings.into(),
        allowed_ips: add(if keeps_ips { &was.allowed_ips } else { &peer.allowed_ips }),
        ..PeerChange::new(was.public_key)
    };
    Merged { change, is_edited: !keeps_ips }
}

fn as_it_was(was: &CarriedPeer) -> PeerChange {
    PeerChange {
        endpoint: was.endpoint,
        settings: was.settings().into(),
        allowed_ips: add(&was.allowed_ips),
        ..PeerChange::new(was.public_key)
    }
}

fn as_the_file_says(peer: &Peer, endpoint: Option<SocketAddr>) -> PeerChange {
    PeerChange {
        endpoint,
        settings: peer.settings.clone().into(),
        allowed_ips: add(&peer.allowed_ips),
        ..PeerChange::new(peer.public_key)
    }
}

/// Returns a change that adds the same prefixes again, which takes them from peers that claimed them in
/// between.
fn again(change: &PeerChange) -> PeerChange {
    PeerChange {
        update_only: true,
        allowed_ips: change.allowed_ips.clone(),
        ..PeerChange::new(change.public_key)
    }
}

fn add(prefixes: &[IpNet]) -> Vec<AllowedIpChange> {
    prefixes.iter().copied().map(AllowedIpChange::Add).collect()
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
