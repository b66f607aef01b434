//! What an interface is configured to be, and what a change to it means for the tunnel.
//!
//! No I/O and no waiting: peers and sessions are built here, each with an X25519, and handed on as [`Change`]s.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;
use weft_tunnel::{Change, PeerConfig, PeerLimits, PresharedKey, PrivateKey, PublicKey};

use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};

/// Prefixes of one [`Change`]: a peer with very many is changed in several steps, so that none of them is long.
const PREFIXES_PER_CHANGE: usize = 256;

/// The configuration of a running interface, as far as the tunnel is concerned.
#[derive(Debug, Default)]
pub struct Model {
    private_key: Option<PrivateKey>,
    /// By age.
    peers: BTreeMap<u64, ModelPeer>,
    by_key: HashMap<PublicKey, u64>,
    next_age: u64,
    owners: HashMap<IpNet, PublicKey>,
}

/// A peer as it is configured.
#[derive(Clone, Debug)]
pub struct ModelPeer {
    /// Its identity.
    pub public_key: PublicKey,
    /// Mixed into its handshakes if there is one.
    pub preshared_key: Option<PresharedKey>,
    /// Where it was said to be; it may have moved since.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between keepalives that are sent whatever else is sent.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// How fast packets may go to it and come from it.
    pub limits: PeerLimits,
    /// Its own prefixes, the oldest first.
    pub allowed_ips: Vec<IpNet>,
}

/// What the tunnel has to do.
#[derive(Default)]
struct Changes {
    list: Vec<Change>,
    /// Prefixes that peers lost. Taken away last, so that one that moves to another peer is never nobody's.
    withdrawn: Vec<(PublicKey, IpNet)>,
}

impl Model {
    /// The key of the interface.
    pub fn private_key(&self) -> Option<&PrivateKey> {
        self.private_key.as_ref()
    }

    /// Every peer, the oldest first.
    pub fn peers(&self) -> impl Iterator<Item = &ModelPeer> {
        self.peers.values()
    }

    /// How many peers there are.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// A peer.
    pub fn peer(&self, key: &PublicKey) -> Option<&ModelPeer> {
        self.peers.get(self.by_key.get(key)?)
    }

    /// Takes a change in, and gives what the tunnel has to do about it: nothing about what is as it was.
    ///
    /// The UDP port and the mark are not the tunnel's, and are left out.
    pub fn change(&mut self, change: &DeviceChange) -> Vec<Change> {
        let mut out = Changes::default();
        if let Some(key) = &change.private_key
            && *key != self.private_key
        {
            self.change_private_key(key.clone(), &mut out);
        }
        if change.replace_peers {
            let kept: HashSet<PublicKey> =
                change.peers.iter().filter(|peer| !peer.remove).map(|peer| peer.public_key).collect();
            let gone: Vec<PublicKey> =
                self.peers().map(|peer| peer.public_key).filter(|key| !kept.contains(key)).collect();
            for key in gone {
                self.remove_peer(&key, &mut out);
            }
        }
        let own_key = self.private_key.as_ref().map(PrivateKey::public_key);
        let mut replaced = HashSet::new();
        for peer in &change.peers {
            if Some(peer.public_key) == own_key {
                continue;
            }
            // A peer that replaces itself has nothing but what is said of it now. Where it was last heard from stays:
            // its sessions go on.
            let anew = change.replace_peers && replaced.insert(peer.public_key);
            self.change_peer(peer, anew, &mut out);
        }
        self.conclude(out)
    }

    /// New sessions for all peers, whose handshakes have the wall clock's time as it is now: boringtun reads that clock
    /// when it makes a session, and counts from there. A peer leaves out handshakes that are older than the last that it
    /// had (whitepaper, section 5.1), so those of a clock that was behind would come to nothing for as long.
    pub fn renew_sessions(&self) -> Vec<Change> {
        if self.private_key.is_none() {
            return Vec::new();
        }
        self.peers().map(renewed_session).collect()
    }

    fn conclude(&self, out: Changes) -> Vec<Change> {
        let Changes { mut list, mut withdrawn } = out;
        // What is another peer's now was taken over by it, and what came back was never gone.
        withdrawn.retain(|(_, prefix)| !self.owners.contains_key(prefix));
        if self.private_key.is_some() {
            for of_peer in withdrawn.chunk_by(|(a, _), (b, _)| a == b) {
                let remove: Vec<IpNet> = of_peer.iter().map(|(_, prefix)| *prefix).collect();
                change_allowed_ips(of_peer[0].0, &[], &remove, &mut list);
            }
        }
        list
    }

    fn change_private_key(&mut self, key: Option<PrivateKey>, out: &mut Changes) {
        let had_key = self.private_key.is_some();
        self.private_key = key;
        if let Some(own) = self.private_key.as_ref().map(PrivateKey::public_key) {
            self.remove_peer(&own, out);
        }
        let Some(key) = &self.private_key else {
            // Nobody knows the key that takes its place, so nothing that arrives is for it. It cannot be had? Then the
            // old one stays, without a peer that could use it.
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
        for prefix in &peer.allowed_ips {
            self.owners.remove(prefix);
        }
        if self.private_key.is_some() {
            let lost = out.withdrawn.extract_if(.., |(of, _)| of == key).map(|(_, prefix)| prefix);
            change_allowed_ips(*key, &[], &lost.collect::<Vec<_>>(), &mut out.list);
            remove_from_tunnel(&peer, &mut out.list);
        }
    }

    fn change_peer(&mut self, change: &PeerChange, anew: bool, out: &mut Changes) {
        let key = change.public_key;
        if change.remove {
            return self.remove_peer(&key, out);
        }
        match self.by_key.get(&key) {
            Some(&age) => self.update_peer(age, change, anew, out),
            None if change.update_only => {}
            None => {
                let age = self.next_age;
                self.next_age += 1;
                self.by_key.insert(key, age);
                let peer = ModelPeer {
                    public_key: key,
                    preshared_key: change.preshared_key.clone().flatten(),
                    endpoint: change.endpoint,
                    persistent_keepalive: change.persistent_keepalive.flatten(),
                    limits: change.limits.unwrap_or_default(),
                    allowed_ips: Vec::new(),
                };
                self.peers.insert(age, peer);
                let _new_to_the_tunnel = self.update_allowed_ips(age, change, anew);
                if let (Some(_), Some(peer)) = (&self.private_key, self.peers.get(&age)) {
                    add_peer(peer, &mut out.list);
                }
            }
        }
    }

    fn update_peer(&mut self, age: u64, change: &PeerChange, anew: bool, out: &mut Changes) {
        let (added, removed) = self.update_allowed_ips(age, change, anew);
        let has_key = self.private_key.is_some();
        let Some(peer) = self.peers.get_mut(&age) else { return };
        let key = peer.public_key;
        let mut changes = Vec::new();
        let preshared_key =
            if anew { Some(change.preshared_key.clone().flatten()) } else { change.preshared_key.clone() };
        if let Some(preshared_key) = preshared_key
            && preshared_key != peer.preshared_key
        {
            peer.preshared_key = preshared_key;
            changes.push(renewed_session(peer));
        }
        if let Some(endpoint) = change.endpoint {
            peer.endpoint = Some(endpoint);
            changes.push(Change::Endpoint { peer: key, endpoint });
        }
        let interval =
            if anew { Some(change.persistent_keepalive.flatten()) } else { change.persistent_keepalive };
        if let Some(interval) = interval
            && interval != peer.persistent_keepalive
        {
            peer.persistent_keepalive = interval;
            changes.push(Change::PersistentKeepalive { peer: key, interval });
        }
        if let Some(limits) = change.limits
            && limits != peer.limits
        {
            peer.limits = limits;
            changes.push(Change::Limits { peer: key, limits });
        }
        change_allowed_ips(key, &added, &[], &mut changes);
        if has_key {
            out.list.append(&mut changes);
            out.withdrawn.extend(removed.into_iter().map(|prefix| (key, prefix)));
        }
    }

    /// Gives what the peer got and what it lost.
    fn update_allowed_ips(&mut self, age: u64, change: &PeerChange, anew: bool) -> (Vec<IpNet>, Vec<IpNet>) {
        let Some(peer) = self.peers.get_mut(&age) else { return Default::default() };
        let key = peer.public_key;
        let before = std::mem::take(&mut peer.allowed_ips);
        let mut has: HashSet<IpNet> = HashSet::new();
        let mut after = Vec::new();
        if !(anew || change.replace_allowed_ips) {
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

/// A session with the keys that the peer has now, which takes the place of the one before once a handshake came through.
fn renewed_session(peer: &ModelPeer) -> Change {
    Change::PresharedKey { peer: peer.public_key, key: peer.preshared_key.clone() }
}

fn add_peer(peer: &ModelPeer, out: &mut Vec<Change>) {
    let (first, rest) = peer.allowed_ips.split_at(peer.allowed_ips.len().min(PREFIXES_PER_CHANGE));
    let config = PeerConfig {
        public_key: peer.public_key,
        preshared_key: peer.preshared_key.clone(),
        endpoint: peer.endpoint,
        allowed_ips: first.to_vec(),
        persistent_keepalive: peer.persistent_keepalive,
    };
    out.push(Change::AddPeer(Box::new(config)));
    if peer.limits != PeerLimits::default() {
        out.push(Change::Limits { peer: peer.public_key, limits: peer.limits });
    }
    change_allowed_ips(peer.public_key, rest, &[], out);
}

/// Its prefixes go first: the tunnel removes a peer without any at once, and looks through its whole table for others'.
fn remove_from_tunnel(peer: &ModelPeer, out: &mut Vec<Change>) {
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
