//! What is left to the next daemon, and how it is written: JSON with a version.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_config::device::DeviceState;
use weft_config::{Config, InterfaceName, Peer};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey, Remembered};
use zeroize::Zeroizing;

use super::text;

/// Another one is not understood.
const VERSION: u32 = 1;
/// A session ends after so long (whitepaper, section 6.1, Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);

/// An interface at the end of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Its name.
    pub interface: InterfaceName,
    /// No handshake of this daemon has a later timestamp. A peer takes none of another daemon that has an earlier one.
    pub latest_stamp: SystemTime,
    /// What the file said.
    pub base: Base,
    /// The key of the interface.
    pub private_key: OwnKey,
    /// The UDP port.
    pub listen_port: u16,
    /// The mark of outgoing packets; 0: none.
    pub fw_mark: u32,
    /// The peers, in the order in which they were added.
    pub peers: Vec<StatePeer>,
}

/// The key of an interface.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnKey {
    /// That of the file, and therefore not written down here.
    OfTheFile,
    /// Another one, or none, given while it ran.
    Given(#[serde(with = "text::option")] Option<PrivateKey>),
}

/// A peer at the end of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatePeer {
    /// Its identity.
    #[serde(with = "text")]
    pub public_key: PublicKey,
    /// Mixed into its handshakes if there is one.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none", default)]
    pub preshared_key: Option<PresharedKey>,
    /// Where it was last heard from, or said to be.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<SocketAddr>,
    /// The local address that it sent to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<IpAddr>,
    /// Seconds between keepalives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub persistent_keepalive: Option<NonZeroU16>,
    /// Its allowed-ips, in the order in which they were added.
    pub allowed_ips: Vec<IpNet>,
    /// When the last handshake came through.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_handshake: Option<SystemTime>,
    /// UDP payload bytes sent to it.
    pub sent_bytes: u64,
    /// UDP payload bytes received from it.
    pub received_bytes: u64,
}

/// What the file said when it was last read: what a later file is compared with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Base {
    /// That of the file's private key.
    #[serde(with = "text::option")]
    pub public_key: Option<PublicKey>,
    /// ListenPort; 0: none.
    pub listen_port: u16,
    /// FwMark; 0: none.
    pub fw_mark: u32,
    /// The mark that was chosen for the interface, whether the file says one or not.
    pub mark: u32,
    /// The peers.
    pub peers: Vec<BasePeer>,
}

/// A peer in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BasePeer {
    /// PublicKey.
    #[serde(with = "text")]
    pub public_key: PublicKey,
    /// PresharedKey.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none", default)]
    pub preshared_key: Option<PresharedKey>,
    /// Endpoint, as it is written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<String>,
    /// PersistentKeepalive.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub persistent_keepalive: Option<NonZeroU16>,
    /// AllowedIPs, in ascending order.
    pub allowed_ips: Vec<IpNet>,
}

impl Base {
    /// What a file says for which this mark was chosen.
    pub fn of(config: &Config, mark: u32) -> Self {
        let interface = &config.interface;
        Self {
            public_key: interface.private_key.as_ref().map(PrivateKey::public_key),
            listen_port: interface.listen_port,
            fw_mark: interface.fw_mark,
            mark,
            peers: config.peers.iter().map(BasePeer::of).collect(),
        }
    }
}

impl BasePeer {
    pub(super) fn of(peer: &Peer) -> Self {
        let mut allowed_ips = peer.allowed_ips.clone();
        allowed_ips.sort_unstable();
        Self {
            public_key: peer.public_key,
            preshared_key: peer.preshared_key.clone(),
            endpoint: peer.endpoint.as_ref().map(ToString::to_string),
            persistent_keepalive: peer.persistent_keepalive,
            allowed_ips,
        }
    }
}

/// Why what was left cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Another version of weft wrote it.
    #[error("it is of version {0}, and this weft knows version {VERSION}")]
    Version(u32),
    /// It is not what weft writes. What stands there is not told: it may be a key.
    #[error("it is not what weft writes ({kind} in column {column})")]
    Malformed {
        /// What kind of error it is.
        kind: String,
        /// Where it is.
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

/// What else is known at the end of a daemon.
#[derive(Debug)]
pub struct AtHandover {
    /// See [`State::latest_stamp`].
    pub latest_stamp: SystemTime,
    /// The local addresses that peers sent to.
    pub sources: HashMap<PublicKey, IpAddr>,
}

impl State {
    /// An interface that was last configured by the file of `base`.
    pub fn of(interface: InterfaceName, base: Base, device: DeviceState, rest: &AtHandover) -> Self {
        let public_key = device.private_key.as_ref().map(PrivateKey::public_key);
        let is_of_file = public_key.is_some() && public_key == base.public_key;
        let private_key = if is_of_file { OwnKey::OfTheFile } else { OwnKey::Given(device.private_key) };
        let peers = device.peers.into_iter().map(|peer| StatePeer {
            public_key: peer.public_key,
            preshared_key: peer.preshared_key,
            endpoint: peer.endpoint,
            source: rest.sources.get(&peer.public_key).copied(),
            persistent_keepalive: peer.persistent_keepalive,
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
            listen_port: device.listen_port,
            fw_mark: device.fw_mark,
            peers: peers.collect(),
        }
    }

    /// The text that is kept.
    pub fn to_bytes(&self) -> serde_json::Result<Zeroizing<Vec<u8>>> {
        // A vector that grows would leave copies of keys behind.
        let mut length = Length(0);
        serde_json::to_writer(&mut length, self)?;
        let mut text = Zeroizing::new(Vec::with_capacity(length.0));
        serde_json::to_writer(&mut *text, self)?;
        Ok(text)
    }

    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// Those of [`FormatError`].
    pub fn from_bytes(text: &[u8]) -> Result<Self, FormatError> {
        /// Just enough of any version.
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

    /// What the tunnel of the next daemon has to know of peers, by its clocks.
    pub fn remembered(&self, now: Instant, wall_clock: SystemTime) -> Vec<(PublicKey, Remembered)> {
        let of = |peer: &StatePeer| {
            // By a clock that was set back it is yet to come.
            let age = peer.last_handshake.map(|at| wall_clock.duration_since(at).unwrap_or_default());
            let remembered = Remembered {
                last_handshake: age.and_then(|age| now.checked_sub(age)),
                source: peer.source,
                sent_bytes: peer.sent_bytes,
                received_bytes: peer.received_bytes,
                has_session: age.is_some_and(|age| age < SESSION),
            };
            (peer.public_key, remembered)
        };
        self.peers.iter().map(of).collect()
    }

    /// How far the wall clock was set back since, if it was: for so long peers may take our handshakes for old ones.
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
