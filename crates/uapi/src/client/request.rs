//! Writes a change as a UAPI request, in the order of wg(8).

use std::fmt::Write as _;

use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_config::endpoint;
use weft_tunnel::{PresharedKey, PrivateKey};
use zeroize::Zeroizing;

use crate::key::Key;
use crate::values::hex;

/// Returns the request, with the empty line at its end.
pub fn set(change: &DeviceChange) -> Zeroizing<Vec<u8>> {
    // Allocated at once: a string that grows leaves copies of keys behind.
    let peers: usize = change.peers.iter().map(|peer| 512 + 64 * peer.allowed_ips.len()).sum();
    let mut text = Request(Zeroizing::new(String::with_capacity(512 + peers)));
    text.0.push_str("set=1\n");
    let settings = &change.settings;
    if let Some(key) = &settings.private_key {
        text.line(Key::PrivateKey, hex(key.as_ref().map(PrivateKey::as_bytes)).as_str());
    }
    if let Some(port) = settings.listen_port {
        text.line(Key::ListenPort, port);
    }
    if let Some(mark) = settings.fw_mark {
        text.line(Key::FwMark, mark);
    }
    if change.replace_peers {
        text.line(Key::ReplacePeers, true);
    }
    for peer in &change.peers {
        text.peer(peer);
    }
    text.0.push('\n');
    Zeroizing::new(std::mem::take(&mut *text.0).into_bytes())
}

struct Request(Zeroizing<String>);

impl Request {
    fn line(&mut self, key: Key, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{key}={value}");
    }

    fn peer(&mut self, peer: &PeerChange) {
        self.line(Key::PublicKey, hex(Some(peer.public_key.as_bytes())).as_str());
        if peer.remove {
            self.line(Key::Remove, true);
        }
        if peer.update_only {
            self.line(Key::UpdateOnly, true);
        }
        if peer.remove {
            return;
        }
        if let Some(key) = &peer.settings.preshared_key {
            self.line(Key::PresharedKey, hex(key.as_ref().map(PresharedKey::as_bytes)).as_str());
        }
        if let Some(endpoint) = &peer.endpoint {
            self.line(Key::Endpoint, endpoint::text(endpoint));
        }
        if let Some(interval) = peer.settings.persistent_keepalive {
            self.line(Key::PersistentKeepalive, interval.map_or(0, Into::into));
        }
        if peer.replace_allowed_ips {
            self.line(Key::ReplaceAllowedIps, true);
        }
        for change in &peer.allowed_ips {
            match change {
                AllowedIpChange::Add(prefix) => self.line(Key::AllowedIp, prefix),
                AllowedIpChange::Remove(prefix) => self.line(Key::AllowedIp, format_args!("-{prefix}")),
            }
        }
    }
}
