//! An interface as wg(8) sees it: its state, and changes to it.

use std::net::SocketAddr;
use std::time::SystemTime;

use ipnet::IpNet;
use weft_tunnel::{PeerSettings, PublicKey};

use crate::settings::{InterfaceSettings, InterfaceSettingsChange, PeerSettingsChange};

/// A snapshot of an interface and its peers.
#[derive(Clone, Debug, Default)]
pub struct DeviceState {
    /// The key, the UDP port in use and the mark.
    pub settings: InterfaceSettings,
    /// The peers, in the order in which they were added.
    pub peers: Vec<PeerState>,
}

impl From<InterfaceSettings> for DeviceState {
    /// Returns the state of an interface without peers.
    fn from(settings: InterfaceSettings) -> Self {
        Self { settings, peers: Vec::new() }
    }
}

/// A snapshot of a peer.
#[derive(Clone, Debug)]
pub struct PeerState {
    /// The public key, which identifies the peer.
    pub public_key: PublicKey,
    /// The current endpoint; `None`: not known yet.
    pub endpoint: Option<SocketAddr>,
    /// Whether a client of UAPI set the current endpoint.
    pub is_endpoint_set: bool,
    /// Its allowed-ips, in the order in which they were added.
    pub allowed_ips: Vec<IpNet>,
    /// The other settings.
    pub settings: PeerSettings,
    /// The wall-clock time of the last completed handshake; `None`: there was none.
    pub last_handshake: Option<SystemTime>,
    /// UDP payload bytes sent to it.
    pub tx_bytes: u64,
    /// UDP payload bytes received from it and authenticated.
    pub rx_bytes: u64,
}

impl PeerState {
    /// Returns the state of a peer without any settings, which was never heard from.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            endpoint: None,
            is_endpoint_set: false,
            allowed_ips: Vec::new(),
            settings: PeerSettings::default(),
            last_handshake: None,
            tx_bytes: 0,
            rx_bytes: 0,
        }
    }
}

/// A change to an interface. A field that is `None` changes nothing. The fields are applied from top to
/// bottom. `E` is [`crate::Endpoint`] until the names of endpoints are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChange<E = SocketAddr> {
    /// The changes of the key, the port and the mark.
    pub settings: InterfaceSettingsChange,
    /// Whether to remove the peers that are not in `peers`. The others keep their sessions.
    pub replace_peers: bool,
    /// The changes to peers, applied in order.
    pub peers: Vec<PeerChange<E>>,
}

impl<E> Default for DeviceChange<E> {
    fn default() -> Self {
        Self { settings: InterfaceSettingsChange::default(), replace_peers: false, peers: Vec::new() }
    }
}

impl From<InterfaceSettingsChange> for DeviceChange {
    /// Returns the change that leaves the peers.
    fn from(settings: InterfaceSettingsChange) -> Self {
        Self { settings, ..Self::default() }
    }
}

/// A change to one peer. A peer that does not exist is added. A field that is `None` changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange<E = SocketAddr> {
    /// The public key, which identifies the peer. A change for the interface's own public key is ignored.
    pub public_key: PublicKey,
    /// Whether to remove the peer.
    pub remove: bool,
    /// Whether to ignore the change if the peer does not exist.
    pub update_only: bool,
    /// The new endpoint.
    pub endpoint: Option<E>,
    /// The changes of the other settings.
    pub settings: PeerSettingsChange,
    /// Whether to remove all allowed-ips of the peer before `allowed_ips` is applied.
    pub replace_allowed_ips: bool,
    /// The changes to the peer's allowed-ips, applied in order.
    pub allowed_ips: Vec<AllowedIpChange>,
}

impl<E> PeerChange<E> {
    /// Returns a change that sets nothing; it adds the peer if it does not exist.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            remove: false,
            update_only: false,
            endpoint: None,
            settings: PeerSettingsChange::default(),
            replace_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }
}

/// A change to the allowed-ips of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedIpChange {
    /// Assigns the prefix to the peer, and removes it from the peer that has it.
    Add(IpNet),
    /// Removes the prefix from the peer; no effect if the peer does not have it.
    Remove(IpNet),
}
