//! Writes a change as a UAPI request, in the order of wg(8).

use std::fmt::Write as _;

use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::endpoint;
use weft_tunnel::{PresharedKey, PrivateKey};
use zeroize::Zeroizing;

/// Returns the request, with the empty line at its end.
pub fn set(change: &DeviceChange) -> Zeroizing<Vec<u8>> {
    // Allocated at once: a string that grows leaves copies of keys behind.
    let peers: usize = change.peers.iter().map(|peer| 512 + 64 * peer.allowed_ips.len()).sum();
    let mut text = Request(Zeroizing::new(String::with_capacity(512 + peers)));
    text.line("set", "1");
    if let Some(key) = &change.private_key {
        text.secret("private_key", key.as_ref().map(PrivateKey::as_bytes));
    }
    if let Some(port) = change.listen_port {
        text.line("listen_port", port);
    }
    if let Some(mark) = change.fw_mark {
        text.line("fwmark", mark);
    }
    if change.replace_peers {
        text.line("replace_peers", true);
    }
    for peer in &change.peers {
        text.peer(peer);
    }
    text.0.push('\n');
    Zeroizing::new(std::mem::take(&mut *text.0).into_bytes())
}

struct Request(Zeroizing<String>);

impl Request {
    fn line(&mut self, key: &str, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{key}={value}");
    }

    /// Writes a key; all zeros mean none.
    fn secret(&mut self, key: &str, bytes: Option<&[u8; 32]>) {
        self.line(key, hex(bytes.unwrap_or(&[0; 32])).as_str());
    }

    fn peer(&mut self, peer: &PeerChange) {
        self.line("public_key", hex(peer.public_key.as_bytes()).as_str());
        if peer.remove {
            self.line("remove", true);
        }
        if peer.update_only {
            self.line("update_only", true);
        }
        if peer.remove {
            return;
        }
        if let Some(key) = &peer.settings.preshared_key {
            self.secret("preshared_key", key.as_ref().map(PresharedKey::as_bytes));
        }
        if let Some(endpoint) = &peer.endpoint {
            self.line("endpoint", endpoint::text(endpoint));
        }
        if let Some(interval) = peer.settings.persistent_keepalive {
            self.line("persistent_keepalive_interval", interval.map_or(0, Into::into));
        }
        if peer.replace_allowed_ips {
            self.line("replace_allowed_ips", true);
        }
        for change in &peer.allowed_ips {
            match change {
                AllowedIpChange::Add(prefix) => self.line("allowed_ip", prefix),
                AllowedIpChange::Remove(prefix) => self.line("allowed_ip", format_args!("-{prefix}")),
            }
        }
    }
}

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
