//! An interface as wg(8) sees it: its state, and changes to it.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::SystemTime;

use ipnet::IpNet;
use weft_tunnel::{PeerLimits, PresharedKey, PrivateKey, PublicKey};

/// An interface and its peers at one moment.
#[derive(Clone, Debug)]
pub struct DeviceState {
    /// The key of the interface; without one it does nothing.
    pub private_key: Option<PrivateKey>,
    /// The UDP port in use.
    pub listen_port: u16,
    /// The mark of outgoing packets (SO_MARK); 0: none.
    pub fw_mark: u32,
    /// The peers, in the order in which they were added.
    pub peers: Vec<PeerState>,
}

/// A peer at one moment.
#[derive(Clone, Debug)]
pub struct PeerState {
    /// Its identity.
    pub public_key: PublicKey,
    /// Mixed into its handshakes if there is one.
    pub preshared_key: Option<PresharedKey>,
    /// Where it is, as far as anybody knows.
    pub endpoint: Option<SocketAddr>,
    /// When the last handshake came through.
    pub last_handshake: Option<SystemTime>,
    /// UDP payload bytes sent to it.
    pub tx_bytes: u64,
    /// UDP payload bytes received from it and authenticated.
    pub rx_bytes: u64,
    /// Seconds between keepalives that are sent whatever else is sent.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// How fast packets may go to it and come from it. wg(8) knows nothing of it.
    pub limits: PeerLimits,
    /// Its allowed-ips, in the order in which they were added.
    pub allowed_ips: Vec<IpNet>,
}

/// A change to an interface; what is `None` stays as it is. Applied from top to bottom.
#[derive(Clone, Debug, Default)]
pub struct DeviceChange {
    /// A new key, or none.
    pub private_key: Option<Option<PrivateKey>>,
    /// A new UDP port; 0: one that the system chooses.
    pub listen_port: Option<u16>,
    /// A new mark; 0: none.
    pub fw_mark: Option<u32>,
    /// Take away the peers that are not in `peers`. Those that are keep their sessions.
    pub replace_peers: bool,
    /// Changes to peers, one after the other.
    pub peers: Vec<PeerChange>,
}

/// A change to one peer, which is added if there is none with its key; what is `None` stays as it is.
#[derive(Clone, Debug)]
pub struct PeerChange {
    /// Its identity. A change for the interface's own public key is left out.
    pub public_key: PublicKey,
    /// Take it away.
    pub remove: bool,
    /// Do nothing if there is no such peer.
    pub update_only: bool,
    /// A new preshared key, or none.
    pub preshared_key: Option<Option<PresharedKey>>,
    /// Where to send from now on.
    pub endpoint: Option<SocketAddr>,
    /// A new keepalive interval, or none.
    pub persistent_keepalive: Option<Option<NonZeroU16>>,
    /// Other limits. Those of a peer that stays are kept by whoever cannot say them, also where all peers are
    /// replaced.
    pub limits: Option<PeerLimits>,
    /// Whether its allowed-ips are taken away before `allowed_ips` are gone through.
    pub replace_allowed_ips: bool,
    /// Prefixes given to the peer (and taken from whoever had them), or taken away.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl PeerChange {
    /// A change of nothing, which adds the peer if there is none.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            preshared_key: None,
            endpoint: None,
            persistent_keepalive: None,
            limits: None,
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// A change to the allowed-ips of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedIpChange {
    /// The peer's from now on, whoever had it.
    Add(IpNet),
    /// Not the peer's any more; nothing happens if it was not.
    Remove(IpNet),
}
