//! `weft showconf`: prints the configuration of a running interface, in the format that `weft setconf` reads.

use std::fmt::Write as _;

use ipnet::IpNet;
use weft_config::device::{DeviceState, PeerState};
use weft_config::endpoint;
use weft_config::exit::Error;
use weft_uapi::client;
use zeroize::Zeroizing;

use crate::args::ShowconfArgs;
use crate::output;

/// Prints the configuration, keys included.
pub fn run(args: &ShowconfArgs) -> Result<(), Error> {
    let reported = client::get(&args.interface)?;
    output::print(text(&reported.state).as_bytes())
}

fn text(state: &DeviceState) -> Zeroizing<String> {
    // Allocated at once: a string that grows leaves copies of keys behind.
    let peers: usize = state.peers.iter().map(|peer| 384 + 64 * peer.allowed_ips.len()).sum();
    let mut text = Zeroizing::new(String::with_capacity(512 + peers));
    text.push_str("[Interface]\n");
    // Writing to a string cannot fail.
    if state.settings.listen_port != 0 {
        let _ = writeln!(text, "ListenPort = {}", state.settings.listen_port);
    }
    if state.settings.fw_mark != 0 {
        let _ = writeln!(text, "FwMark = {:#x}", state.settings.fw_mark);
    }
    if let Some(key) = &state.settings.private_key {
        let _ = writeln!(text, "PrivateKey = {}", *key.to_base64());
    }
    text.push('\n');
    for (index, peer) in state.peers.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        write_peer(&mut text, peer);
    }
    text
}

fn write_peer(text: &mut String, peer: &PeerState) {
    let _ = writeln!(text, "[Peer]\nPublicKey = {}", peer.public_key);
    if let Some(key) = &peer.settings.preshared_key {
        let _ = writeln!(text, "PresharedKey = {}", *key.to_base64());
    }
    if !peer.allowed_ips.is_empty() {
        let prefixes: Vec<String> = peer.allowed_ips.iter().map(IpNet::to_string).collect();
        let _ = writeln!(text, "AllowedIPs = {}", prefixes.join(", "));
    }
    if let Some(endpoint) = &peer.endpoint {
        let _ = writeln!(text, "Endpoint = {}", endpoint::text(endpoint));
    }
    if let Some(seconds) = peer.settings.persistent_keepalive {
        let _ = writeln!(text, "PersistentKeepalive = {seconds}");
    }
}
