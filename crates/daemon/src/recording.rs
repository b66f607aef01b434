//! The daemon's end of a capture: writes the captured packets as blocks of a pcapng file.

use std::collections::HashMap;
use std::time::SystemTime;

use weft_commands::capture::pcapng::{self, Packet, Statistics};
use weft_tunnel::PublicKey;

use weft_dataplane::capture::{Capture, CapturedPacket, Chunk, Direction, Layer};

mod outer;

use outer::Headers;

/// Maximum number of cached comments.
const COMMENTS: usize = 1024;

/// A running capture.
pub struct Recording {
    capture: Capture,
    layers: Vec<Layer>,
    interface: String,
    snap_bytes: usize,
    names: HashMap<PublicKey, String>,
    since: SystemTime,
    comments: HashMap<(Layer, Direction, Option<PublicKey>), String>,
}

impl Recording {
    /// Records one layer of an interface, or both; `names` are the names of its peers.
    pub fn new(
        capture: Capture,
        interface: &str,
        layer: Option<Layer>,
        snap_bytes: usize,
        names: HashMap<PublicKey, String>,
    ) -> Self {
        let layers = layer.map_or_else(|| vec![Layer::Inner, Layer::Outer], |layer| vec![layer]);
        let interface = interface.to_owned();
        let since = SystemTime::now();
        Self { capture, layers, interface, snap_bytes, names, since, comments: HashMap::new() }
    }

    /// Appends the blocks at the beginning of a file.
    pub fn head(&self, out: &mut Vec<u8>) {
        pcapng::section(out, concat!("weft ", env!("CARGO_PKG_VERSION")));
        for layer in &self.layers {
            let (name, description) = match layer {
                Layer::Inner => (self.interface.clone(), "inside the tunnel: IP packets"),
                Layer::Outer => (
                    format!("{}-outer", self.interface),
                    "outside the tunnel: WireGuard's datagrams, IP and UDP headers rebuilt",
                ),
            };
            pcapng::interface(out, &name, description, self.snap_bytes as u32);
        }
    }

    /// Appends the next packets. Returns false when there are no more. Cancel safe: dropping the future loses
    /// no packets.
    pub async fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(chunk) = self.capture.next().await else { return false };
        self.add(&chunk, out);
        self.capture.give_back(chunk);
        true
    }

    /// Ends the capture. Packets seen so far are still delivered.
    pub fn stop(&mut self) {
        self.capture.stop();
    }

    /// Appends the blocks at the end of a file.
    pub fn tail(&self, out: &mut Vec<u8>) {
        let until = SystemTime::now();
        for (interface, layer) in (0..).zip(&self.layers) {
            let (seen, dropped) = (self.capture.seen(*layer), self.capture.dropped(*layer));
            pcapng::statistics(out, &Statistics { interface, from: self.since, until, seen, dropped });
        }
    }

    fn add(&mut self, chunk: &Chunk, out: &mut Vec<u8>) {
        let Self { layers, names, comments, .. } = self;
        for (seen, bytes) in chunk.packets() {
            let layer = seen.layer();
            let Some(interface) = layers.iter().position(|known| *known == layer) else { continue };
            if comments.len() > COMMENTS {
                comments.clear();
            }
            let comment = comments
                .entry((layer, seen.direction, seen.peer))
                .or_insert_with(|| comment(seen, seen.peer.as_ref().and_then(|peer| names.get(peer))));
            let headers = seen.outer.as_ref().map(|outer| Headers::around(outer, bytes, seen.len));
            let headers = headers.as_ref().map_or(&[][..], Headers::bytes);
            let packet = Packet {
                interface: interface as u32,
                at: seen.at,
                bytes: [headers, bytes],
                len: headers.len() + seen.len,
                is_inbound: seen.direction == Direction::Inbound,
                comment,
            };
            pcapng::packet(out, &packet);
        }
    }
}

fn comment(seen: &CapturedPacket, name: Option<&String>) -> String {
    let direction = match seen.direction {
        Direction::Outbound => "outbound",
        Direction::Inbound => "inbound",
    };
    match (seen.peer, name, seen.layer(), seen.direction) {
        (Some(peer), Some(name), ..) => format!("{direction}, peer {peer} ({name})"),
        (Some(peer), None, ..) => format!("{direction}, peer {peer}"),
        // An inbound packet of no peer is an ICMP error by weft, about a packet that could not be forwarded.
        (None, _, Layer::Inner, Direction::Inbound) => format!("{direction}, made by weft"),
        (None, _, Layer::Inner, Direction::Outbound) => format!("{direction}, to no peer"),
        (None, _, Layer::Outer, _) => format!("{direction}, peer not known"),
    }
}
