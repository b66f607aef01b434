//! The state for the next daemon, and its format: JSON with a version.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_config::device::DeviceState;
use weft_config::{Config, HookPhase, InterfaceName, Peer};
use weft_tunnel::{
    PeerLimits, PeerSettings, PresharedKey, PrivateKey, PublicKey, REJECT_AFTER_TIME, Remembered,
};
use zeroize::Zeroizing;

use super::text;

/// The format's version. State of any other version is rejected.
const VERSION: u32 = 1;

/// The state of an interface at the end of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    pub interface: InterfaceName,
    /// No handshake of this daemon has a later timestamp. A peer ignores handshakes of the next daemon with
    /// earlier ones.
    pub latest_stamp: SystemTime,
    /// The contents of the configuration file.
    pub base: Base,
    pub private_key: OwnKey,
    pub listen_port: u16,
    /// The mark of outgoing packets; 0 means none.
    pub fw_mark: u32,
    /// The peers, in the order in which they were added.
    pub peers: Vec<CarriedPeer>,
}

/// The key of an interface.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnKey {
    /// The key in the file; therefore it is not written here.
    OfTheFile,
    /// A key that the file may not have then, or none.
    Given(#[serde(with = "text::option")] Option<PrivateKey>),
}

/// The state of a peer at the end of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct CarriedPeer {
    /// Identity of the peer.
    #[serde(with = "text")]
    pub public_key: PublicKey,
    /// Mixed into the peer's handshakes, if set.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none", default)]
    pub preshared_key: Option<PresharedKey>,
    /// The address that the peer was last heard from, or the configured endpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<SocketAddr>,
    /// Whether a client of UAPI set that endpoint.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_endpoint_set: bool,
    /// The local address that the peer sent to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<IpAddr>,
    /// Seconds between keepalives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub persistent_keepalive: Option<NonZeroU16>,
    /// In the order in which they were added.
    pub allowed_ips: Vec<IpNet>,
    /// Time of the latest completed handshake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_handshake: Option<SystemTime>,
    /// UDP payload bytes sent to the peer.
    pub sent_bytes: u64,
    /// UDP payload bytes received from the peer.
    pub received_bytes: u64,
}

/// The contents of the configuration file when it was last read; a later file is compared with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Base {
    /// The public key of the file's private key.
    #[serde(with = "text::option")]
    pub public_key: Option<PublicKey>,
    /// Whether PreUp, which the next daemon does not run, may have written the file of the private key.
    #[serde(default)]
    pub may_lose_key: bool,
    /// ListenPort; 0 means none.
    pub listen_port: u16,
    /// FwMark; 0 means none.
    pub fw_mark: u32,
    /// The mark that was chosen for the interface, whether the file sets one or not.
    pub mark: u32,
    pub peers: Vec<FilePeer>,
}

/// A peer in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePeer {
    /// PublicKey.
    #[serde(with = "text")]
    pub public_key: PublicKey,
    /// PresharedKey.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none", default)]
    pub preshared_key: Option<PresharedKey>,
    /// Endpoint, as written in the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<String>,
    /// PersistentKeepalive.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub persistent_keepalive: Option<NonZeroU16>,
    /// AllowedIPs, in ascending order.
    pub allowed_ips: Vec<IpNet>,
}

impl Base {
    /// Returns the contents of a file, and the mark that was chosen for it.
    pub fn of(config: &Config, mark: u32) -> Self {
        let interface = &config.interface;
        Self {
            public_key: interface.settings.private_key.as_ref().map(PrivateKey::public_key),
            may_lose_key: interface.host.hooks_of(HookPhase::PreUp).next().is_some(),
            listen_port: interface.settings.listen_port,
            fw_mark: interface.settings.fw_mark,
            mark,
            peers: config.peers.iter().map(FilePeer::of).collect(),
        }
    }
}

impl FilePeer {
    pub(super) fn of(peer: &Peer) -> Self {
        let mut allowed_ips = peer.allowed_ips.clone();
        allowed_ips.sort_unstable();
        Self {
            public_key: peer.public_key,
            preshared_key: peer.settings.preshared_key.clone(),
            endpoint: peer.endpoint.as_ref().map(ToString::to_string),
            persistent_keepalive: peer.settings.persistent_keepalive,
            allowed_ips,
        }
    }

    pub(super) fn settings(&self) -> PeerSettings {
        settings(&self.preshared_key, self.persistent_keepalive)
    }
}

impl CarriedPeer {
    pub(super) fn settings(&self) -> PeerSettings {
        settings(&self.preshared_key, self.persistent_keepalive)
    }
}

/// Returns the settings that were written. Limits are not: no client can change them, so they are always
/// those of the file.
fn settings(preshared_key: &Option<PresharedKey>, persistent_keepalive: Option<NonZeroU16>) -> PeerSettings {
    PeerSettings { preshared_key: preshared_key.clone(), persistent_keepalive, limits: PeerLimits::default() }
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Another version of weft wrote it.
    #[error("it is of version {0}, and this weft knows version {VERSION}")]
    Version(u32),
    /// The text is not what weft writes. The error does not quote it: it may contain a key.
    #[error("it is not what weft writes ({kind} in column {column})")]
    Malformed {
        /// The kind of syntax error.
        kind: String,
        /// The column of the error.
        column: usize,
    },
}

impl From<serde_json::Error> for FormatError {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed {
            kind: format!("{:?} error", error.classify()).to_lowercase(),
            column: error.column(),
        }
    }
}

/// Further state at the end of a daemon.
#[derive(Debug)]
pub struct AtHandover {
    /// See [`State::latest_stamp`].
    pub latest_stamp: SystemTime,
    /// The local addresses that peers sent to.
    pub sources: HashMap<PublicKey, IpAddr>,
}

impl State {
    /// Creates the state of an interface; `base` is the file that it was last configured with.
    pub fn of(interface: InterfaceName, base: Base, device: DeviceState, rest: &AtHandover) -> Self {
        let public_key = device.settings.private_key.as_ref().map(PrivateKey::public_key);
        let is_of_file = public_key.is_some() && public_key == base.public_key && !base.may_lose_key;
        let private_key =
            if is_of_file { OwnKey::OfTheFile } else { OwnKey::Given(device.settings.private_key) };
        let peers = device.peers.into_iter().map(|peer| CarriedPeer {
            public_key: peer.public_key,
            preshared_key: peer.settings.preshared_key,
            endpoint: peer.endpoint,
            is_endpoint_set: peer.is_endpoint_set,
            source: rest.sources.get(&peer.public_key).copied(),
            persistent_keepalive: peer.settings.persistent_keepalive,
            allowed_ips: peer.allowed_ips,
            last_handshake: peer.last_handshake,
            sent_bytes: peer.tx_bytes,
            received_bytes: peer.rx_bytes,
        });
        Self {
            version: VERSION,
            interface,
            latest_stamp: rest.latest_stamp,
            base,
            private_key,
            listen_port: device.settings.listen_port,
            fw_mark: device.settings.fw_mark,
            peers: peers.collect(),
        }
    }

    /// Returns the state as text.
    pub fn to_bytes(&self) -> serde_json::Result<Zeroizing<Vec<u8>>> {
        // A vector that grows would leave copies of keys in memory.
        let mut length = Length(0);
        serde_json::to_writer(&mut length, self)?;
        let mut text = Zeroizing::new(Vec::with_capacity(length.0));
        serde_json::to_writer(&mut *text, self)?;
        Ok(text)
    }

    /// Parses the output of [`Self::to_bytes`].
    ///
    /// # Errors
    /// Those of [`FormatError`].
    pub fn from_bytes(text: &[u8]) -> Result<Self, FormatError> {
        /// The part that all versions have in common.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(text)?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// Returns what the tunnel of the next daemon needs to know of the peers, converted to this process's
    /// clocks.
    pub fn remembered(&self, now: Instant, wall_clock: SystemTime) -> Vec<(PublicKey, Remembered)> {
        let of = |peer: &CarriedPeer| {
            // If the clock was set back, the handshake lies in the future.
            let age = peer.last_handshake.map(|at| wall_clock.duration_since(at).unwrap_or_default());
            let remembered = Remembered {
                last_handshake: age.and_then(|age| now.checked_sub(age)),
                source: peer.source,
                sent_bytes: peer.sent_bytes,
                received_bytes: peer.received_bytes,
                has_session: age.is_some_and(|age| age < REJECT_AFTER_TIME),
            };
            (peer.public_key, remembered)
        };
        self.peers.iter().map(of).collect()
    }

    /// Returns how far the wall clock was set back since the state was written, if it was. For this long
    /// peers may reject our handshakes as old.
    pub fn clock_set_back(&self, wall_clock: SystemTime) -> Option<Duration> {
        self.latest_stamp.duration_since(wall_clock).ok().filter(|back| !back.is_zero())
    }
}

struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
