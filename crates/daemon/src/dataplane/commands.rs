//! What the control thread asks of the event loop, done in slices between packets.

use std::io;
use std::sync::mpsc;
use std::time::Instant;

use weft_tunnel::{Change, PeerSnapshot, Tunnel};
use weft_udp::{BindError, Descriptor};

use super::Snapshot;
use super::capture::Tap;
use super::event_loop::Turn;

/// What the control thread asks of the event loop. An answer that nobody waits for any more is thrown away.
#[derive(Debug)]
pub enum Command {
    /// Send a snapshot of every counter and peer.
    Snapshot {
        /// Empty, with room for the peers, so that the packet thread does not have to make it.
        peers: Vec<PeerSnapshot>,
        /// Gets the snapshot.
        answer: mpsc::SyncSender<Snapshot>,
    },
    /// Change the tunnel, in this order.
    Change {
        /// What to change.
        changes: Vec<Change>,
        /// Told once all of it is done.
        answer: mpsc::SyncSender<()>,
    },
    /// Change the UDP sockets, both settings or none.
    Rebind {
        /// Another port; 0: one that the system chooses.
        port: Option<u16>,
        /// Another mark; 0: none.
        fwmark: Option<u32>,
        /// Gets the port in use.
        answer: mpsc::SyncSender<Result<u16, BindError>>,
    },
    /// Send further descriptors of the UDP sockets.
    Sockets {
        /// Gets them.
        answer: mpsc::SyncSender<io::Result<Vec<Descriptor>>>,
    },
    /// Copy packets for somebody.
    Capture {
        /// What is filled.
        tap: Box<Tap>,
        /// Told whether that is done: there may be too many.
        answer: mpsc::SyncSender<bool>,
    },
    /// Say that the event loop takes turns.
    Ping {
        /// Told in the next turn that takes a command.
        answer: mpsc::SyncSender<()>,
    },
    /// End.
    Stop,
}

/// Weight of the changes of one turn: about a tenth of a millisecond, what a batch of packets takes.
const CHANGES: usize = 128;
/// Peers that one turn reads, for the same reason.
const PEERS: usize = 512;

/// Work that takes more than one turn.
pub(super) enum Job {
    Snapshot { place: usize, peers: Vec<PeerSnapshot>, answer: mpsc::SyncSender<Snapshot> },
    Change { rest: std::vec::IntoIter<Change>, answer: mpsc::SyncSender<()> },
}

impl Job {
    /// Does a slice of the work, and says what is left. `counters` makes a snapshot with these peers.
    pub(super) fn turn(
        self,
        tunnel: &mut Tunnel,
        now: Instant,
        counters: impl FnOnce(&Tunnel, Vec<PeerSnapshot>) -> Snapshot,
    ) -> Option<Self> {
        match self {
            Self::Snapshot { place, mut peers, answer } => {
                match tunnel.peers_from(place, PEERS, &mut peers) {
                    Some(place) => Some(Self::Snapshot { place, peers, answer }),
                    None => {
                        let _ = answer.try_send(counters(tunnel, peers));
                        None
                    }
                }
            }
            Self::Change { mut rest, answer } => {
                let mut weight = 0;
                while weight < CHANGES {
                    let Some(change) = rest.next() else {
                        let _ = answer.try_send(());
                        return None;
                    };
                    weight += change.weight();
                    let _void = tunnel.apply(change, now);
                }
                Some(Self::Change { rest, answer })
            }
        }
    }
}

/// Whether a direction has to be called again because of what is left of a job.
pub(super) fn turn_of(job: Option<&Job>) -> Turn {
    if job.is_some() { Turn::Busy } else { Turn::Idle }
}
