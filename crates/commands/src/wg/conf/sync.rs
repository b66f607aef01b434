//! Computes the smallest change that turns a running interface into the interface of a file.

use std::collections::{HashMap, HashSet};

use ipnet::IpNet;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange, PeerState};
use weft_config::settings::InterfaceSettingsChange;
use weft_tunnel::{PrivateKey, PublicKey};
use weft_uapi::client::Reported;

/// Returns the necessary change; `None` if nothing differs.
///
/// If `wanted` has no private key or no port, the current key and port are kept: the key may come from
/// elsewhere, and a port that the system chose is as good as any other.
pub(super) fn difference(current: &Reported, wanted: DeviceChange) -> Option<DeviceChange> {
    let state = &current.state;
    let new_key =
        wanted.settings.private_key.flatten().filter(|key| Some(key.public_key()) != current.public_key);
    let own_key = new_key.as_ref().map(PrivateKey::public_key).or(current.public_key);
    let targets = Targets::new(wanted.peers, &state.peers, own_key);

    let gone = state.peers.iter().filter(|peer| !targets.names.contains(&peer.public_key));
    let mut peers: Vec<PeerChange> =
        gone.map(|peer| PeerChange { remove: true, ..PeerChange::new(peer.public_key) }).collect();
    let running: HashMap<PublicKey, &PeerState> =
        state.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    for (change, prefixes) in targets.peers {
        match running.get(&change.public_key) {
            Some(peer) => peers.extend(change_of(peer, change, prefixes)),
            None => peers.push(addition(change, prefixes)),
        }
    }
    let change = DeviceChange {
        settings: InterfaceSettingsChange {
            private_key: new_key.map(Some),
            listen_port: wanted.settings.listen_port.filter(|&port| port != 0),
            fw_mark: Some(wanted.settings.fw_mark.unwrap_or(0)),
        }
        .without(&state.settings),
        replace_peers: false,
        peers,
    };
    if change == DeviceChange::default() { None } else { Some(change) }
}

/// The wanted peers, each with its allowed-ips. No prefix belongs to two peers.
struct Targets {
    names: HashSet<PublicKey>,
    peers: Vec<(PeerChange, Vec<IpNet>)>,
}

impl Targets {
    fn new(wanted: Vec<PeerChange>, running: &[PeerState], own_key: Option<PublicKey>) -> Self {
        let has: HashMap<PublicKey, &[IpNet]> =
            running.iter().map(|peer| (peer.public_key, &peer.allowed_ips[..])).collect();
        // A list of all nodes of a mesh includes the interface's own key, which daemons ignore.
        let peers: Vec<(PeerChange, Vec<IpNet>)> = wanted
            .into_iter()
            .filter(|change| Some(change.public_key) != own_key)
            .map(|change| {
                let has = has.get(&change.public_key).copied().unwrap_or_default();
                let prefixes = prefixes_after(&change, has);
                (change, prefixes)
            })
            .collect();
        // A prefix belongs to the last peer that lists it.
        let mut owners: HashMap<IpNet, usize> = HashMap::new();
        for (index, (_, prefixes)) in peers.iter().enumerate() {
            owners.extend(prefixes.iter().map(|&prefix| (prefix, index)));
        }
        let names = peers.iter().map(|(change, _)| change.public_key).collect();
        let peers = peers.into_iter().enumerate().map(|(index, (change, mut prefixes))| {
            prefixes.retain(|prefix| owners.get(prefix) == Some(&index));
            (change, prefixes)
        });
        Self { names, peers: peers.collect() }
    }
}

/// Returns the allowed-ips of a peer after its change, without duplicates.
fn prefixes_after(change: &PeerChange, has: &[IpNet]) -> Vec<IpNet> {
    let mut prefixes = if change.replace_allowed_ips { Vec::new() } else { has.to_vec() };
    let mut known: HashSet<IpNet> = prefixes.iter().copied().collect();
    for item in &change.allowed_ips {
        match item {
            AllowedIpChange::Add(prefix) if known.insert(*prefix) => prefixes.push(*prefix),
            AllowedIpChange::Add(_) => {}
            AllowedIpChange::Remove(prefix) => {
                if known.remove(prefix) {
                    prefixes.retain(|known| known != prefix);
                }
            }
        }
    }
    prefixes
}

/// Returns the change that turns a running peer into the wanted peer; `None` if nothing differs.
fn change_of(peer: &PeerState, wanted: PeerChange, prefixes: Vec<IpNet>) -> Option<PeerChange> {
    let has: HashSet<&IpNet> = peer.allowed_ips.iter().collect();
    let same_prefixes = has.len() == prefixes.len() && prefixes.iter().all(|prefix| has.contains(prefix));
    let mut change = PeerChange::new(peer.public_key);
    // A setting that the file does not give is removed.
    change.settings = wanted.settings.replacing().without(&peer.settings);
    change.endpoint = wanted.endpoint.filter(|endpoint| Some(*endpoint) != peer.endpoint);
    if change == PeerChange::new(peer.public_key) && same_prefixes {
        return None;
    }
    if !same_prefixes {
        change.replace_allowed_ips = true;
        change.allowed_ips = additions(prefixes);
    }
    Some(change)
}

fn addition(wanted: PeerChange, prefixes: Vec<IpNet>) -> PeerChange {
    PeerChange { replace_allowed_ips: true, allowed_ips: additions(prefixes), ..wanted }
}

fn additions(prefixes: Vec<IpNet>) -> Vec<AllowedIpChange> {
    prefixes.into_iter().map(AllowedIpChange::Add).collect()
}

#[cfg(test)]
mod tests;
