//! The daemon's end of a capture: what the packet thread saw, as blocks of a pcapng file.

use std::collections::HashMap;
use std::time::SystemTime;

use weft_tunnel::PublicKey;

use super::outer::Headers;
use super::pcapng::{self, Packet, Statistics};
use crate::dataplane::capture::{Capture, Chunk, Direction, Seen, Stage};

/// Comments that are kept to be used again.
const COMMENTS: usize = 1024;

/// A capture that is under way.
pub struct Recording {
    capture: Capture,
    stages: Vec<Stage>,
    interface: String,
    snap_bytes: usize,
    names: HashMap<PublicKey, String>,
    since: SystemTime,
    comments: HashMap<(Stage, Direction, Option<PublicKey>), String>,
}

impl Recording {
    /// Of this stage of an interface, or of both; `names` are those that its peers are called by.
    pub fn new(
        capture: Capture,
        interface: &str,
        stage: Option<Stage>,
        snap_bytes: usize,
        names: HashMap<PublicKey, String>,
    ) -> Self {
        let stages = stage.map_or_else(|| vec![Stage::Inner, Stage::Outer], |stage| vec![stage]);
        let interface = interface.to_owned();
        let since = SystemTime::now();
        Self { capture, stages, interface, snap_bytes, names, since, comments: HashMap::new() }
    }

    /// The blocks that a file begins with.
    pub fn head(&self, out: &mut Vec<u8>) {
        pcapng::section(out, concat!("weft ", env!("CARGO_PKG_VERSION")));
        for stage in &self.stages {
            let (name, description) = match stage {
                Stage::Inner => (self.interface.clone(), "inside the tunnel: IP packets"),
                Stage::Outer => (
                    format!("{}-outer", self.interface),
                    "outside the tunnel: WireGuard's datagrams, IP and UDP headers rebuilt",
                ),
            };
            pcapng::interface(out, &name, description, self.snap_bytes as u32);
        }
    }

    /// Adds the next packets; false once there are no more. Nothing is lost if it is not waited for to the end.
    pub async fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(chunk) = self.capture.next().await else { return false };
        self.add(&chunk, out);
        self.capture.give_back(chunk);
        true
    }

    /// Ends the capture: what was seen until now still comes, then nothing.
    pub fn stop(&mut self) {
        self.capture.stop();
    }

    /// The blocks that a file ends with.
    pub fn tail(&self, out: &mut Vec<u8>) {
        let until = SystemTime::now();
        for (interface, stage) in (0..).zip(&self.stages) {
            let (seen, dropped) = (self.capture.seen(*stage), self.capture.dropped(*stage));
            pcapng::statistics(out, &Statistics { interface, from: self.since, until, seen, dropped });
        }
    }

    fn add(&mut self, chunk: &Chunk, out: &mut Vec<u8>) {
        let Self { stages, names, comments, .. } = self;
        for (seen, bytes) in chunk.packets() {
            let stage = seen.stage();
            let Some(interface) = stages.iter().position(|known| *known == stage) else { continue };
            if comments.len() > COMMENTS {
                comments.clear();
            }
            let comment = comments
                .entry((stage, seen.direction, seen.peer))
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

fn comment(seen: &Seen, name: Option<&String>) -> String {
    let direction = match seen.direction {
        Direction::Outbound => "outbound",
        Direction::Inbound => "inbound",
    };
    match (seen.peer, name, seen.stage(), seen.direction) {
        (Some(peer), Some(name), ..) => format!("{direction}, peer {peer} ({name})"),
        (Some(peer), None, ..) => format!("{direction}, peer {peer}"),
        // What comes from nowhere is weft's own answer to what could not go on.
        (None, _, Stage::Inner, Direction::Inbound) => format!("{direction}, made by weft"),
        (None, _, Stage::Inner, Direction::Outbound) => format!("{direction}, to no peer"),
        (None, _, Stage::Outer, _) => format!("{direction}, peer not known"),
    }
}
