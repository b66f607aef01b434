//! What a tunnel is told about itself and its peers, checked: nothing here is text any more.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;

use crate::key::{PresharedKey, PublicKey};

/// One peer, as the tunnel needs it.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Its identity.
    pub public_key: PublicKey,
    /// Mixed into its handshakes if there is one.
    pub preshared_key: Option<PresharedKey>,
    /// Where to reach it before it was heard from. Without one, only the peer can begin.
    pub endpoint: Option<SocketAddr>,
    /// The inner addresses that are its own, without host bits: where packets to it go, and what packets from
    /// it must carry as their source.
    pub allowed_ips: Vec<IpNet>,
    /// Seconds without an authenticated message either way after which a keepalive is sent, to hold a NAT
    /// mapping open.
    pub persistent_keepalive: Option<NonZeroU16>,
}
