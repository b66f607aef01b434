//! Peer settings for the tunnel, parsed and checked: no field holds text.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;

use crate::key::{PresharedKey, PublicKey};

/// The settings of one peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Public key, which identifies the peer.
    pub public_key: PublicKey,
    /// Preshared key that both ends mix into the handshake, if any.
    pub preshared_key: Option<PresharedKey>,
    /// Endpoint to use until the first authenticated message from the peer. Without it, only the peer can
    /// start a handshake.
    pub endpoint: Option<SocketAddr>,
    /// Inner prefixes of the peer, without host bits. Packets to these addresses go to the peer, and packets
    /// from the peer must have a source among them.
    pub allowed_ips: Vec<IpNet>,
    /// Seconds without an authenticated message either way after which a keepalive is sent, to hold a NAT
    /// mapping open.
    pub persistent_keepalive: Option<NonZeroU16>,
}
