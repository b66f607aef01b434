//! Parts of the tunnel in isolation, for `crates/bench` only.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use ipnet::IpNet;

use crate::allowed_ips::AllowedIps;
use crate::drop_reason::DropReason;
use crate::initiations::Cause;
use crate::ip::IpHeader;
use crate::key::PrivateKey;
use crate::packet::PacketMut;
use crate::peer_id::PeerId;
use crate::peer_index::PeerIndex;
use crate::session::{Identity, Session, SessionContext};
use crate::shard::Shard;
use crate::staging::Staging;
use crate::transmit::{Ecn, MAX_CONTROL_MESSAGE, Path, TransmitQueue};

/// Returns the path of every datagram to peer number `peer` in these benchmarks.
pub fn path(peer: usize, destination: SocketAddr) -> Path {
    Path { peer: PeerId::new(peer), destination, source: None, ecn: Ecn::NotEct }
}

/// Splits `packet` and passes each segment to `seal` instead of a session.
pub fn split(
    packet: &mut PacketMut<'_>,
    mtu: usize,
    seal: impl FnMut(&[u8]) -> bool,
) -> Result<(), DropReason> {
    let header = IpHeader::parse(packet.bytes()).ok_or(DropReason::MalformedPacket)?;
    crate::split::split(packet, &header, mtu, seal)
}

/// Reserves and commits a datagram of `len` bytes without writing to it.
pub fn queue(out: &mut TransmitQueue, path: Path, len: usize) {
    let mut slot = out.reserve(path, len);
    std::hint::black_box(slot.buffer_mut());
    slot.commit();
}

/// The table of allowed-ips.
pub struct Routes(AllowedIps);

impl Routes {
    /// Builds a table in which network number *n* belongs to peer number *n*.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let mut table = AllowedIps::new();
        for (peer, network) in networks.into_iter().enumerate() {
            table.insert(network, PeerId::new(peer));
        }
        Self(table)
    }

    /// Returns the number of the peer that `address` belongs to.
    #[inline]
    pub fn peer_of(&mut self, address: IpAddr) -> Option<usize> {
        self.0.peer_of(address).map(PeerId::place)
    }
}

/// Stages `packet` up to `times` times, as far as there is room, and takes all copies back. Returns their
/// bytes.
pub fn stage(packet: &PacketMut<'_>, times: usize) -> usize {
    let mut staging = Staging::default();
    for _ in 0..times {
        if !staging.is_full_for(packet.bytes().len()) {
            staging.push(packet, Cause::Local);
        }
    }
    let mut bytes = 0;
    while let Some(mut staged) = staging.pop() {
        bytes += staged.packet().map_or(0, |packet| packet.bytes().len());
    }
    bytes
}

/// Both ends of a session.
pub struct SessionPair {
    ends: [Session; 2],
    /// The receiving end's local index of the session.
    index: u32,
    now: Instant,
}

impl SessionPair {
    /// Creates two ends that completed a handshake; `None` if the handshake failed.
    pub fn new(keys: &[PrivateKey; 2]) -> Option<Self> {
        let identities = [Identity::new(keys[0].clone()), Identity::new(keys[1].clone())];
        let mut indices = [PeerIndex::new(Shard::ONLY), PeerIndex::new(Shard::ONLY)];
        let [here, there] = &mut indices;
        let mut contexts = [(here, 0), (there, 1)].map(|(indices, end)| SessionContext {
            identity: &identities[end],
            indices,
            peer: PeerId::new(0),
            key: identities[1 - end].public_key,
        });
        let now = Instant::now();
        let (mut out, mut back) = ([0; MAX_CONTROL_MESSAGE], [0; MAX_CONTROL_MESSAGE]);
        let [mut a, mut b] = [Session::new(None), Session::new(None)];
        let len = a.initiate(&mut contexts[0], now, &mut out)?;
        let len = b.answer(&mut contexts[1], &out[..len], now, &mut back).ok()?;
        let index_at =
            |message: &[u8], at: usize| message[at..].first_chunk().map(|index| u32::from_le_bytes(*index));
        let local = contexts[0].indices.route(index_at(&back, 8)?)?.local;
        a.conclude(&mut contexts[0], local, &back[..len], now, &mut out).ok()?;
        let index = contexts[1].indices.route(index_at(&out, 4)?)?.local;
        Some(Self { ends: [a, b], index, now })
    }

    /// Seals a packet at one end into `out` and returns the length; 0 without a session.
    pub fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> usize {
        self.ends[0].seal(packet, out).unwrap_or(0)
    }

    /// Opens a message at the other end, and reports whether it was authentic.
    pub fn open(&mut self, message: &mut [u8], out: &mut [u8]) -> bool {
        self.ends[1].open(self.index, message, self.now, out).is_ok()
    }
}
