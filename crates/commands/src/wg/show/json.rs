//! The JSON output. It contains keys only if the caller requested them.

use serde::{Serialize, Serializer};
use weft_config::InterfaceName;
use weft_config::device::PeerState;
use weft_config::endpoint;
use weft_config::exit::{Code, Error};
use weft_tunnel::{PresharedKey, PrivateKey};
use zeroize::Zeroizing;

use super::{Device, fields};
use crate::output::JSON_VERSION;

#[derive(Serialize)]
struct DeviceReport {
    version: u32,
    interface: String,
    public_key: Option<String>,
    has_private_key: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    private_key: Option<Secret>,
    listen_port: u16,
    fw_mark: u32,
    peers: Vec<PeerReport>,
}

#[derive(Serialize)]
struct PeerReport {
    public_key: String,
    has_preshared_key: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    preshared_key: Option<Secret>,
    endpoint: Option<String>,
    allowed_ips: Vec<String>,
    /// In seconds of Unix time; `null` if there was none.
    latest_handshake: Option<u64>,
    received_bytes: u64,
    sent_bytes: u64,
    persistent_keepalive: Option<u16>,
}

/// A secret key in base64.
struct Secret(Zeroizing<String>);

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Formats the interfaces as an array.
pub(super) fn devices(devices: &[Device], hide_keys: bool) -> Result<Zeroizing<String>, Error> {
    let reports: Vec<_> = devices.iter().map(|device| DeviceReport::new(device, hide_keys)).collect();
    to_text(&reports)
}

/// Formats the names as an array.
pub(super) fn names(names: &[InterfaceName]) -> Result<String, Error> {
    let names: Vec<&str> = names.iter().map(InterfaceName::as_str).collect();
    Ok(std::mem::take(&mut *to_text(&names)?))
}

fn to_text(value: &impl Serialize) -> Result<Zeroizing<String>, Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::new(Code::Failure, error))?;
    Ok(Zeroizing::new(text + "\n"))
}

impl DeviceReport {
    fn new(device: &Device, hide_keys: bool) -> Self {
        let state = &device.reported.state;
        let private_key = state.settings.private_key.as_ref();
        Self {
            version: JSON_VERSION,
            interface: device.name.to_string(),
            public_key: device.reported.public_key.map(|key| key.to_string()),
            has_private_key: private_key.is_some(),
            private_key: private_key.filter(|_| !hide_keys).map(PrivateKey::to_base64).map(Secret),
            listen_port: state.settings.listen_port,
            fw_mark: state.settings.fw_mark,
            peers: state.peers.iter().map(|peer| PeerReport::new(peer, hide_keys)).collect(),
        }
    }
}

impl PeerReport {
    fn new(peer: &PeerState, hide_keys: bool) -> Self {
        let preshared_key = peer.settings.preshared_key.as_ref();
        Self {
            public_key: peer.public_key.to_string(),
            has_preshared_key: preshared_key.is_some(),
            preshared_key: preshared_key.filter(|_| !hide_keys).map(PresharedKey::to_base64).map(Secret),
            endpoint: peer.endpoint.as_ref().map(endpoint::text),
            allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
            latest_handshake: peer.last_handshake.map(|_| fields::handshake(peer)),
            received_bytes: peer.rx_bytes,
            sent_bytes: peer.tx_bytes,
            persistent_keepalive: peer.settings.persistent_keepalive.map(Into::into),
        }
    }
}
