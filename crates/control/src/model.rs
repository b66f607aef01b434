//! The configuration of an interface, and the changes of the tunnel that follow from a change of it.
//!
//! No I/O, and no call blocks. Peers and sessions are built here, each with an X25519, and passed on as
//! [`Change`]s.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use weft_tunnel::{Change, PeerConfig, PrivateKey, PublicKey};

use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::settings::InterfaceSettings;

/// Maximum number of prefixes of one [`Change`]: a peer with very many prefixes is changed in several short
/// steps.
const PREFIXES_PER_CHANGE: usize = 256;

/// The configuration of a running interface, as far as it concerns the tunnel.
#[derive(Debug, Default)]
pub struct Model {
    settings: InterfaceSettings,
    /// By age, the oldest first.
    peers: BTreeMap<u64, PeerConfig>,
    by_key: HashMap<PublicKey, u64>,
    next_age: u64,
    owners: HashMap<IpNet, PublicKey>,
    /// The endpoints that clients of UAPI set, until the configuration or a name gives another one.
    set_endpoints: HashMap<PublicKey, SocketAddr>,
}

/// Changes for the tunnel.
#[derive(Default)]
struct Changes {
    list: Vec<Change>,
    /// Prefixes that peers lost. Removed last, so that a prefix that moves to another peer has an owner at
    /// all times.
    withdrawn: Vec<(PublicKey, IpNet)>,
}

impl Model {
    /// Creates the configuration of a tunnel without a key and peers.
    pub fn new(listen_port: u16, fw_mark: u32) -> Self {
        let settings = InterfaceSettings { private_key: None, listen_port, fw_mark };
        Self { settings, ..Self::default() }
    }

    pub fn settings(&self) -> &InterfaceSettings {
        &self.settings
    }

    /// Records the port and the mark of new sockets.
    pub fn rebound(&mut self, listen_port: u16, fw_mark: u32) {
        (self.settings.listen_port, self.settings.fw_mark) = (listen_port, fw_mark);
    }

    /// Returns every peer, the oldest first.
    pub fn peers(&self) -> impl Iterator<Item = &PeerConfig> {
        self.peers.values()
    }

    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    pub fn peer(&self, key: &PublicKey) -> Option<&PeerConfig> {
        self.peers.get(self.by_key.get(key)?)
    }

    /// Applies a change, and returns the changes for the tunnel. Settings that stay the same cause none.
    ///
    /// The UDP port and the mark are not part of the tunnel, and are ignored here.
    pub fn change(&mut self, change: &DeviceChange) -> Vec<Change> {
        let mut out = Changes::default();
        if let Some(key) = &change.settings.private_key
            && *key != self.settings.private_key
        {
            self.change_private_key(key.clone(), &mut out);
        }
        if change.replace_peers {
            let kept: HashSet<PublicKey> =
                change.peers.iter().filter(|peer| adds(peer)).map(|peer| peer.public_key).collect();
            let gone: Vec<PublicKey> =
                self.peers().map(|peer| peer.public_key).filter(|key| !kept.contains(key)).collect();
            for key in gone {
                self.remove_peer(&key, &mut out);
            }
        }
        let own_key = self.settings.private_key.as_ref().map(PrivateKey::public_key);
        let mut replaced = HashSet::new();
        for peer in &change.peers {
            if Some(peer.public_key) == own_key {
                continue;
            }
            // A peer that is replaced keeps only the settings that the change gives. The address that it was
            // last heard from stays, because its sessions continue.
            let replaces = change.replace_peers && !replaced.contains(&peer.public_key);
            // Until the change adds the peer there is none to update or to remove.
            if replaces && !adds(peer) {
                continue;
            }
            replaced.insert(peer.public_key);
            self.change_peer(peer, replaces, &mut out);
        }
        self.conclude(out)
    }

    /// Records that a client of UAPI set this endpoint.
    pub fn record_set_endpoint(&mut self, peer: PublicKey, endpoint: SocketAddr) {
        if self.peer(&peer).is_some_and(|peer| peer.endpoint == Some(endpoint)) {
            self.set_endpoints.insert(peer, endpoint);
        }
    }

    /// Returns the endpoint that a client of UAPI set.
    pub fn set_endpoint(&self, peer: &PublicKey) -> Option<SocketAddr> {
        self.set_endpoints.get(peer).copied()
    }

    /// Returns changes that give all peers new sessions. Their handshakes are stamped with the present wall
    /// clock: boringtun reads that clock when it creates a session, and counts from there. A peer ignores
    /// handshakes older than the latest that it received (whitepaper, section 5.1). So handshakes of a clock
    /// that was behind would be ignored until it caught up.
    pub fn renew_sessions(&self) -> Vec<Change> {
        if self.settings.private_key.is_none() {
            return Vec::new();
        }
        self.peers().map(renewed_session).collect()
    }

    fn conclude(&self, out: Changes) -> Vec<Change> {
        let Changes { mut list, mut withdrawn } = out;
        // A prefix that has an owner was taken over by that peer, or given back to the same peer.
        withdrawn.retain(|(_, prefix)| !self.owners.contains_key(prefix));
        if self.settings.private_key.is_some() {
            for of_peer in withdrawn.chunk_by(|(a, _), (b, _)| a == b) {
                let remove: Vec<IpNet> = of_peer.iter().map(|(_, prefix)| *prefix).collect();
                change_allowed_ips(of_peer[0].0, &[], &remove, &mut list);
            }
        }
        list
    }

    fn change_private_key(&mut self, key: Option<PrivateKey>, out: &mut Changes) {
        let had_key = self.settings.private_key.is_some();
        self.settings.private_key = key;
        if let Some(own) = self.settings.private_key.as_ref().map(PrivateKey::public_key) {
            self.remove_peer(&own, out);
        }
        let Some(key) = &self.settings.private_key else {
            // No peer knows the random key that takes its place, so nothing that arrives can be authentic. If
            // no key can be generated, the old key stays, but no peer remains that could use it.
            for peer in self.peers.values() {
                remove_from_tunnel(peer, &mut out.list);
            }
            out.list.extend(PrivateKey::generate().ok().map(Change::PrivateKey));
            return;
        };
        out.list.push(Change::PrivateKey(key.clone()));
        for peer in self.peers.values() {
            if had_key {
                out.list.push(Change::EndSession(peer.public_key));
            } else {
                add_peer(peer, &mut out.list);
            }
        }
    }

    fn remove_peer(&mut self, key: &PublicKey, out: &mut Changes) {
        let Some(peer) = self.by_key.remove(key).and_then(|age| self.peers.remove(&age)) else { return };
        self.set_endpoints.remove(key);
        for prefix in &peer.allowed_ips {
            self.owners.remove(prefix);
        }
        if self.settings.private_key.is_some() {
            let lost = out.withdrawn.extract_if(.., |(of, _)| of == key).map(|(_, prefix)| prefix);
            change_allowed_ips(*key, &[], &lost.collect::<Vec<_>>(), &mut out.list);
            remove_from_tunnel(&peer, &mut out.list);
        }
    }

    fn change_peer(&mut self, change: &PeerChange, replaces: bool, out: &mut Changes) {
        let key = change.public_key;
        if change.remove {
            return self.remove_peer(&key, out);
        }
        match self.by_key.get(&key) {
            Some(&age) => self.update_peer(age, change, replaces, out),
            None if change.update_only => {}
            None => {
                let age = self.next_age;
                self.next_age += 1;
                self.by_key.insert(key, age);
                let settings = change.settings.applied();
                let endpoint = change.endpoint;
                let peer = PeerConfig { public_key: key, endpoint, allowed_ips: Vec::new(), settings };
                self.peers.insert(age, peer);
                let _new_to_the_tunnel = self.update_allowed_ips(age, change, replaces);
                if let (Some(_), Some(peer)) = (&self.settings.private_key, self.peers.get(&age)) {
                    add_peer(peer, &mut out.list);
                }
            }
        }
    }

    fn update_peer(&mut self, age: u64, change: &PeerChange, replaces: bool, out: &mut Changes) {
        let (added, removed) = self.update_allowed_ips(age, change, replaces);
        let has_key = self.settings.private_key.is_some();
        let Some(peer) = self.peers.get_mut(&age) else { return };
        let key = peer.public_key;
        let mut changes = Vec::new();
        let wanted = change.settings.clone();
        let settings = if replaces { wanted.replacing() } else { wanted }.without(&peer.settings);
        settings.apply(&mut peer.settings);
        if settings.preshared_key.is_some() {
            changes.push(renewed_session(peer));
        }
        if let Some(endpoint) = change.endpoint {
            peer.endpoint = Some(endpoint);
            self.set_endpoints.remove(&key);
            changes.push(Change::Endpoint { peer: key, endpoint });
        }
        if let Some(interval) = settings.persistent_keepalive {
            changes.push(Change::PersistentKeepalive { peer: key, interval });
        }
        if let Some(limits) = settings.limits {
            changes.push(Change::Limits { peer: key, limits });
        }
        change_allowed_ips(key, &added, &[], &mut changes);
        if has_key {
            out.list.append(&mut changes);
            out.withdrawn.extend(removed.into_iter().map(|prefix| (key, prefix)));
        }
    }

    /// Returns the prefixes that the peer gained and those that it lost.
    fn update_allowed_ips(
        &mut self,
        age: u64,
        change: &PeerChange,
        replaces: bool,
    ) -> (Vec<IpNet>, Vec<IpNet>) {
        let Some(peer) = self.peers.get_mut(&age) else { return Default::default() };
        let key = peer.public_key;
        let before = std::mem::take(&mut peer.allowed_ips);
        let mut has: HashSet<IpNet> = HashSet::new();
        let mut after = Vec::new();
        if !(replaces || change.replace_allowed_ips) {
            has.extend(&before);
            after.clone_from(&before);
        }
        for change in &change.allowed_ips {
            match change {
                AllowedIpChange::Add(prefix) => {
                    if has.insert(prefix.trunc()) {
                        after.push(prefix.trunc());
                    }
                }
                AllowedIpChange::Remove(prefix) => {
                    if has.remove(&prefix.trunc()) {
                        after.retain(|other| *other != prefix.trunc());
                    }
                }
            }
        }
        let had: HashSet<IpNet> = before.iter().copied().collect();
        let added: Vec<IpNet> = after.iter().copied().filter(|prefix| !had.contains(prefix)).collect();
        let removed: Vec<IpNet> = before.into_iter().filter(|prefix| !has.contains(prefix)).collect();
        peer.allowed_ips = after;
        for prefix in &removed {
            self.owners.remove(prefix);
        }
        for prefix in &added {
            let Some(loser) = self.owners.insert(*prefix, key).filter(|loser| *loser != key) else {
                continue;
            };
            let loser = self.by_key.get(&loser).and_then(|age| self.peers.get_mut(age));
            if let Some(loser) = loser {
                loser.allowed_ips.retain(|other| other != prefix);
            }
        }
        (added, removed)
    }
}

/// Reports whether there is such a peer after the change, also if there was none before.
fn adds(peer: &PeerChange) -> bool {
    !peer.remove && !peer.update_only
}

/// Returns a change to a session with the peer's present keys. It replaces the old session when a handshake
/// completes.
fn renewed_session(peer: &PeerConfig) -> Change {
    Change::PresharedKey { peer: peer.public_key, key: peer.settings.preshared_key.clone() }
}

fn add_peer(peer: &PeerConfig, out: &mut Vec<Change>) {
    let (first, rest) = peer.allowed_ips.split_at(peer.allowed_ips.len().min(PREFIXES_PER_CHANGE));
    let config = PeerConfig {
        public_key: peer.public_key,
        endpoint: peer.endpoint,
        allowed_ips: first.to_vec(),
        settings: peer.settings.clone(),
    };
    out.push(Change::AddPeer(Box::new(config)));
    change_allowed_ips(peer.public_key, rest, &[], out);
}

/// Removes a peer. Its prefixes go first: the tunnel removes a peer without prefixes at once, and otherwise
/// searches its whole table for them.
fn remove_from_tunnel(peer: &PeerConfig, out: &mut Vec<Change>) {
    change_allowed_ips(peer.public_key, &[], &peer.allowed_ips, out);
    out.push(Change::RemovePeer(peer.public_key));
}

fn change_allowed_ips(peer: PublicKey, add: &[IpNet], remove: &[IpNet], out: &mut Vec<Change>) {
    let added = add.chunks(PREFIXES_PER_CHANGE).map(|add| (add.to_vec(), Vec::new()));
    let removed = remove.chunks(PREFIXES_PER_CHANGE).map(|remove| (Vec::new(), remove.to_vec()));
    out.extend(added.chain(removed).map(|(add, remove)| Change::AllowedIps { peer, add, remove }));
}

#[cfg(test)]
mod tests;
