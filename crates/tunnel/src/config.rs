//! The configuration of a peer, parsed and checked: no field holds text.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;

use crate::key::{PresharedKey, PublicKey};
use crate::limits::PeerLimits;

/// A peer and its whole configuration.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Public key, which identifies the peer.
    pub public_key: PublicKey,
    /// Endpoint to use until the first authenticated message from the peer. Without it, only the peer can
    /// start a handshake.
    pub endpoint: Option<SocketAddr>,
    /// Inner prefixes of the peer, without host bits. Packets to these addresses go to the peer, and packets
    /// from the peer must have a source among them.
    pub allowed_ips: Vec<IpNet>,
    /// The other settings.
    pub settings: PeerSettings,
}

/// The settings of a peer that mean the same in a file, in a request and in the tunnel. Endpoints and
/// allowed-ips do not: a file has names, a request has changes of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSettings {
    /// Preshared key that both ends mix into the handshake, if any.
    pub preshared_key: Option<PresharedKey>,
    /// Seconds without an authenticated message either way after which a keepalive is sent, to hold a NAT
    /// mapping open; `None`: off.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// Rate limits for packets to and from the peer. wg(8) has no such setting.
    pub limits: PeerLimits,
}
