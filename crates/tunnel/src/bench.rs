//! Parts of the tunnel by themselves, for `crates/bench` alone.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use ipnet::IpNet;

use crate::allowed_ips::AllowedIps;
use crate::drop_reason::DropReason;
use crate::ip::IpHeader;
use crate::key::PrivateKey;
use crate::packet::PacketMut;
use crate::peer::PeerId;
use crate::session::{Session, SessionBuilder};
use crate::staging::Staging;
use crate::transmit::{Ecn, MAX_CONTROL_MESSAGE, Path, TransmitQueue};

/// The way of every datagram to peer number `peer` in these benchmarks.
pub fn path(peer: usize, destination: SocketAddr) -> Path {
    Path { peer: PeerId::new(peer), destination, source: None, ecn: Ecn::NotEct }
}

/// Splits `packet` and hands each segment to `seal` instead of a session.
pub fn split(
    packet: &mut PacketMut<'_>,
    mtu: usize,
    seal: impl FnMut(&[u8]) -> bool,
) -> Result<(), DropReason> {
    let header = IpHeader::parse(packet.bytes()).ok_or(DropReason::MalformedPacket)?;
    crate::split::split(packet, &header, mtu, seal)
}

/// Takes room for a datagram of `len` bytes, and lets nobody write to it.
pub fn queue(out: &mut TransmitQueue, path: Path, len: usize) {
    let mut slot = out.reserve(path, len);
    std::hint::black_box(slot.buffer_mut());
    slot.commit();
}

/// The table of allowed-ips.
pub struct Routes(AllowedIps);

impl Routes {
    /// Network number *n* belongs to peer number *n*.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let mut table = AllowedIps::new();
        for (peer, network) in networks.into_iter().enumerate() {
            table.insert(network, PeerId::new(peer));
        }
        Self(table)
    }

    /// The number of the peer that `address` belongs to.
    #[inline]
    pub fn peer_of(&mut self, address: IpAddr) -> Option<usize> {
        self.0.peer_of(address).map(PeerId::place)
    }
}

/// Lets `packet` wait and takes it back so many times, and gives the bytes that came back.
pub fn stage(packet: &PacketMut<'_>, times: usize) -> usize {
    let mut staging = Staging::default();
    for _ in 0..times {
        if !staging.is_full_for(packet.bytes().len()) {
            staging.push(packet);
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
    now: Instant,
}

impl SessionPair {
    /// Two ends that have shaken hands; `None` if that failed.
    pub fn new(keys: &[PrivateKey; 2]) -> Option<Self> {
        let public = [keys[0].public_key(), keys[1].public_key()];
        let mut ends = [0, 1].map(|end: usize| {
            SessionBuilder::new(keys[end].clone()).build(public[1 - end], None, end as u32 + 1)
        });
        let now = Instant::now();
        let (mut there, mut back) = ([0; MAX_CONTROL_MESSAGE], [0; MAX_CONTROL_MESSAGE]);
        let [a, b] = &mut ends;
        let len = a.initiate(now, &mut there)?;
        let (_, len) = b.handshake(&there[..len], now, &mut back).ok()?;
        a.handshake(&back[..len], now, &mut there).ok()?;
        Some(Self { ends, now })
    }

    /// Seals a packet at one end into `out` and gives the length; 0 without a session.
    pub fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> usize {
        self.ends[0].seal(packet, out).unwrap_or(0)
    }

    /// Opens a message at the other end; whether it was authentic.
    pub fn open(&mut self, message: &[u8], out: &mut [u8]) -> bool {
        self.ends[1].open(message, self.now, out).is_ok()
    }
}
