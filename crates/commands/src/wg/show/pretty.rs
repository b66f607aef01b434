//! The output for people, in the layout of wg(8): the peer with the latest handshake comes first.

use std::cmp::Reverse;
use std::fmt::{Display, Write as _};
use std::time::SystemTime;

use weft_config::device::PeerState;
use weft_config::endpoint;
use weft_tunnel::{PresharedKey, PrivateKey};
use zeroize::Zeroizing;

use super::style::{Colour, Style};
use super::{Device, units};

/// The options of the output.
pub(super) struct View {
    pub(super) style: Style,
    pub(super) hide_keys: bool,
    pub(super) now: SystemTime,
}

/// Appends an interface and its peers.
pub(super) fn write(text: &mut String, device: &Device, view: &View) {
    let style = view.style;
    let state = &device.reported.state;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}{}: {}",
        style.start(),
        style.heading(Colour::Green, "interface"),
        style.colour(Colour::Green, &device.name)
    );
    if let Some(key) = device.reported.public_key {
        line(text, style, "public key", key);
    }
    if let Some(key) = &state.settings.private_key {
        secret(text, view, "private key", || PrivateKey::to_base64(key));
    }
    if state.settings.listen_port != 0 {
        line(text, style, "listening port", state.settings.listen_port);
    }
    if state.settings.fw_mark != 0 {
        line(text, style, "fwmark", format_args!("{:#x}", state.settings.fw_mark));
    }
    let mut peers: Vec<&PeerState> = state.peers.iter().collect();
    peers.sort_by_key(|peer| Reverse(peer.last_handshake));
    for peer in peers {
        write_peer(text, peer, view);
    }
}

fn write_peer(text: &mut String, peer: &PeerState, view: &View) {
    let style = view.style;
    let heading = style.heading(Colour::Yellow, "peer");
    let _ = writeln!(text, "\n{heading}: {}", style.colour(Colour::Yellow, peer.public_key));
    if let Some(key) = &peer.settings.preshared_key {
        secret(text, view, "preshared key", || PresharedKey::to_base64(key));
    }
    if let Some(endpoint) = &peer.endpoint {
        line(text, style, "endpoint", endpoint::text(endpoint));
    }
    line(text, style, "allowed ips", allowed_ips(peer, style));
    if let Some(time) = peer.last_handshake {
        line(text, style, "latest handshake", ago(time, view));
    }
    if peer.rx_bytes > 0 || peer.tx_bytes > 0 {
        let (received, sent) = (units::bytes(peer.rx_bytes, style), units::bytes(peer.tx_bytes, style));
        line(text, style, "transfer", format_args!("{received} received, {sent} sent"));
    }
    if let Some(seconds) = peer.settings.persistent_keepalive {
        let interval = units::duration(u16::from(seconds).into(), style);
        line(text, style, "persistent keepalive", format_args!("every {interval}"));
    }
}

fn line(text: &mut String, style: Style, label: &str, value: impl Display) {
    let _ = writeln!(text, "  {}: {value}", style.bold(label));
}

fn secret(text: &mut String, view: &View, label: &str, key: impl FnOnce() -> Zeroizing<String>) {
    if view.hide_keys {
        line(text, view.style, label, "(hidden)");
    } else {
        line(text, view.style, label, key().as_str());
    }
}

fn allowed_ips(peer: &PeerState, style: Style) -> String {
    if peer.allowed_ips.is_empty() {
        return "(none)".to_owned();
    }
    let slash = style.colour(Colour::Cyan, "/");
    let prefix = |prefix: &ipnet::IpNet| format!("{}{slash}{}", prefix.addr(), prefix.prefix_len());
    let prefixes: Vec<String> = peer.allowed_ips.iter().map(prefix).collect();
    prefixes.join(", ")
}

/// Formats the age of `time` as wg(8) does: the difference of the whole seconds of both times.
fn ago(time: SystemTime, view: &View) -> String {
    let seconds = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since_epoch| since_epoch.as_secs())
    };
    match seconds(view.now).checked_sub(seconds(time)) {
        Some(0) => "Now".to_owned(),
        Some(elapsed) => format!("{} ago", units::duration(elapsed, view.style)),
        None => {
            let warning = "System clock wound backward; connection problems may ensue.";
            format!("({})", view.style.colour(Colour::Red, warning))
        }
    }
}
