//! The path to a peer when it changes: source address, packet size, and how the peer learns of the change.
//!
//! Called by the event loop with what the socket learnt of a path, and with what the control thread learnt of
//! this machine's addresses and routes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::key::PublicKey;
use crate::path_limit::PathLimit;
use crate::peer_id::PeerId;
use crate::session::{DATA_OVERHEAD, REJECT_AFTER_TIME};
use crate::tunnel::Tunnel;

/// How long the routing table alone chooses the source after the path to a peer changed. Meanwhile the peer
/// may still send to the old address, which must not become the source of answers again.
const SOURCE_HOLD: Duration = Duration::from_secs(5);
/// When a peer that sent nothing since its path changed is sent a handshake initiation, to find out whether
/// it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// Delay per place in the table of peers, which spreads the messages that changed paths cause: 10,000 peers
/// take two seconds.
const SPREAD_PER_PEER: Duration = Duration::from_micros(200);

impl Tunnel {
    /// Limits inner packets to the peer to a path MTU of `outer_mtu` bytes, outer IP header included; the
    /// path carries larger packets in pieces or not at all. Inner packets that do not fit and must not be
    /// fragmented are answered by ICMP from now on, for a minute or until the path changes.
    pub fn limit_path(&mut self, id: PeerId, outer_mtu: u16, now: Instant) {
        let Some(peer) = self.peer_mut(id) else { return };
        let Some(endpoint) = peer.endpoint else { return };
        let limit = usize::from(outer_mtu).saturating_sub(outer_overhead(endpoint.address));
        peer.path_limit.set(limit as u16, now);
    }

    /// Handles a changed path to a peer. Returns false if there is no such peer.
    pub(crate) fn path_changed(&mut self, key: &PublicKey, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peer_mut(id) else { return false };
        peer.path_limit = PathLimit::default();
        peer.source_held_until = Some(now + SOURCE_HOLD);
        self.forget_source(id);
        self.speak_up(id, now);
        true
    }

    /// Handles a sleep of this machine. Returns false if there is no such peer.
    pub(crate) fn resumed(&mut self, key: &PublicKey, slept: Duration, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peer_mut(id) else { return false };
        if slept < REJECT_AFTER_TIME {
            // The session may be alive, but a NAT on the path may have dropped our mapping.
            self.speak_up(id, now);
        } else if peer.in_use(now).can_seal(now) {
            let delay = self.spread(id);
            self.ask_after(id, delay, now);
        }
        true
    }

    /// Makes a keepalive to a peer with a session due soon, and a handshake if the peer stays silent.
    fn speak_up(&mut self, id: PeerId, now: Instant) {
        let delay = self.spread(id);
        let Some(peer) = self.peer_mut(id) else { return };
        if !peer.in_use(now).can_seal(now) || peer.endpoint.is_none() {
            return;
        }
        peer.timers.keepalive_by(now + delay);
        self.ask_after(id, delay + ASK_AFTER, now);
    }

    fn ask_after(&mut self, id: PeerId, delay: Duration, now: Instant) {
        if let Some(peer) = self.peer_mut(id) {
            peer.timers.answer_by(now + delay);
        }
        self.reschedule(id);
    }

    /// Returns the source address for packets to a peer that sends to `local`: that address, or `None` while
    /// the routing table alone chooses.
    pub(crate) fn source_for(&mut self, id: PeerId, local: Option<IpAddr>, now: Instant) -> Option<IpAddr> {
        let peer = self.peer_mut(id)?;
        let is_held = peer.source_held_until.is_some_and(|until| now < until);
        if is_held {
            return None;
        }
        peer.source_held_until = None;
        local
    }

    /// Returns the delay of a message that all peers are sent at once: none with a single peer, some seconds
    /// with thousands.
    fn spread(&self, id: PeerId) -> Duration {
        // The delay grows with the peer's place in the table, which spreads the messages evenly enough.
        if self.peers.len() > 1 { SPREAD_PER_PEER * id.place() as u32 } else { Duration::ZERO }
    }
}

/// Returns the bytes that the tunnel adds to an inner packet: the outer IP and UDP headers, and the header
/// and tag of the data message.
fn outer_overhead(endpoint: SocketAddr) -> usize {
    let ip = if endpoint.is_ipv4() { crate::ip::IPV4_HEADER } else { crate::ip::IPV6_HEADER };
    ip + 8 + DATA_OVERHEAD
}
