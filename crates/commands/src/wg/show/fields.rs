//! The output for scripts: one property per line, tab-separated, byte for byte as wg(8) prints it.

use std::fmt::Write as _;
use std::time::SystemTime;

use ipnet::IpNet;
use weft_config::InterfaceName;
use weft_config::device::PeerState;
use weft_config::endpoint;
use weft_tunnel::{PresharedKey, PrivateKey};
use zeroize::Zeroizing;

use super::Device;
use crate::args::Field;

const NONE: &str = "(none)";

/// Formats the names of interfaces in one line.
pub(super) fn names(names: &[InterfaceName]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = names.iter().map(InterfaceName::as_str).collect();
    names.join(" ") + "\n"
}

/// Appends a property of a device, or of each of its peers.
pub(super) fn write(text: &mut String, field: Field, device: &Device, with_name: bool) {
    let state = &device.reported.state;
    let name = if with_name { format!("{}\t", device.name) } else { String::new() };
    let of_device = match field {
        Field::PublicKey => public_key(device),
        Field::PrivateKey => private_key(device).to_string(),
        Field::ListenPort => state.settings.listen_port.to_string(),
        Field::Fwmark => mark(state.settings.fw_mark),
        Field::Dump => {
            let private_key = private_key(device);
            let (port, mark) = (state.settings.listen_port, mark(state.settings.fw_mark));
            format!("{}\t{}\t{port}\t{mark}", *private_key, public_key(device))
        }
        _ => String::new(),
    };
    let of_device = Zeroizing::new(of_device);
    if !of_device.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}{}", *of_device);
    }
    let of_devices =
        matches!(field, Field::PublicKey | Field::PrivateKey | Field::ListenPort | Field::Fwmark);
    for peer in state.peers.iter().filter(|_| !of_devices) {
        let _ = write!(text, "{name}{}", peer.public_key);
        write_of_peer(text, field, peer);
        text.push('\n');
    }
}

/// Appends the rest of a peer's line, after its public key.
fn write_of_peer(text: &mut String, field: Field, peer: &PeerState) {
    let preshared_key = || peer.settings.preshared_key.as_ref().map(PresharedKey::to_base64);
    let endpoint = || peer.endpoint.as_ref().map_or(NONE.to_owned(), endpoint::text);
    let keepalive =
        peer.settings.persistent_keepalive.map_or("off".to_owned(), |seconds| seconds.to_string());
    let _ = match field {
        Field::PresharedKeys => {
            write!(text, "\t{}", preshared_key().as_deref().map_or(NONE, String::as_str))
        }
        Field::Endpoints => write!(text, "\t{}", endpoint()),
        Field::AllowedIps => write!(text, "\t{}", allowed_ips(peer, " ")),
        Field::LatestHandshakes => write!(text, "\t{}", handshake(peer)),
        Field::Transfer => write!(text, "\t{}\t{}", peer.rx_bytes, peer.tx_bytes),
        Field::PersistentKeepalive => write!(text, "\t{keepalive}"),
        Field::Dump => write!(
            text,
            "\t{}\t{}\t{}\t{}\t{}\t{}\t{keepalive}",
            preshared_key().as_deref().map_or(NONE, String::as_str),
            endpoint(),
            allowed_ips(peer, ","),
            handshake(peer),
            peer.rx_bytes,
            peer.tx_bytes,
        ),
        _ => Ok(()),
    };
}

fn public_key(device: &Device) -> String {
    device.reported.public_key.map_or(NONE.to_owned(), |key| key.to_string())
}

fn private_key(device: &Device) -> Zeroizing<String> {
    let key = device.reported.state.settings.private_key.as_ref();
    key.map_or_else(|| Zeroizing::new(NONE.to_owned()), PrivateKey::to_base64)
}

fn mark(mark: u32) -> String {
    if mark == 0 { "off".to_owned() } else { format!("{mark:#x}") }
}

fn allowed_ips(peer: &PeerState, separator: &str) -> String {
    if peer.allowed_ips.is_empty() {
        return NONE.to_owned();
    }
    let prefixes: Vec<String> = peer.allowed_ips.iter().map(IpNet::to_string).collect();
    prefixes.join(separator)
}

/// Returns the time of the last handshake in seconds of Unix time; 0 if there was none.
pub(super) fn handshake(peer: &PeerState) -> u64 {
    let since_epoch = peer.last_handshake.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since_epoch.map_or(0, |since_epoch| since_epoch.as_secs())
}
