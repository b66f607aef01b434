//! Commands of the control thread to the event loop, executed in slices between packets.

use std::io;
use std::sync::mpsc;
use std::time::Instant;

use weft_tun::FlowQueues;
use weft_tunnel::{Change, PeerSnapshot, PublicKey, Tunnel};
use weft_udp::{BindError, Descriptor, ShardSockets, UdpConfig};

use crate::Snapshot;
use crate::capture::Tap;

/// A command of the control thread to the event loop. If the caller no longer waits for an answer, the answer
/// is discarded.
#[derive(Debug)]
pub enum Command {
    /// Send a snapshot of every counter and peer.
    Snapshot {
        /// Empty, with capacity for the peers, so that the packet thread does not allocate it.
        peers: Vec<PeerSnapshot>,
        answer: mpsc::SyncSender<Snapshot>,
    },
    /// Change the tunnel, in this order.
    Change {
        changes: Vec<Change>,
        /// Notified when all changes are applied.
        answer: mpsc::SyncSender<()>,
    },
    /// Change the UDP sockets, both settings or neither.
    Rebind {
        /// The new port; 0 lets the system choose.
        port: Option<u16>,
        /// The new mark; 0 means none.
        fwmark: Option<u32>,
        /// Receives the port in use.
        answer: mpsc::SyncSender<Result<u16, BindError>>,
    },
    /// Open UDP sockets for all packet threads, in the network namespace of the packet threads.
    Open {
        config: UdpConfig,
        /// Number of packet threads.
        shards: usize,
        /// Receives the sockets of each packet thread, in order.
        answer: mpsc::SyncSender<Result<Vec<ShardSockets>, BindError>>,
    },
    /// Replace the UDP sockets by these, which have the new port and mark.
    Replace {
        /// `None` changes nothing.
        sockets: Option<Box<ShardSockets>>,
        /// Receives whether this packet thread receives and sends through them now.
        answer: mpsc::SyncSender<Result<(), BindError>>,
    },
    /// Return duplicates of the descriptors of the UDP sockets.
    Sockets {
        /// Receives the descriptors.
        answer: mpsc::SyncSender<io::Result<Vec<Descriptor>>>,
    },
    /// Copy packets for a capture.
    Capture {
        /// Receives the copies; `None` begins none.
        tap: Option<Box<Tap>>,
        /// Receives whether the capture began: false if too many are running.
        answer: mpsc::SyncSender<bool>,
    },
    /// Read how long there was work.
    Load {
        /// Receives nanoseconds.
        answer: mpsc::SyncSender<u64>,
    },
    /// Take out a peer, for packet thread `to`.
    TakePeer {
        peer: PublicKey,
        to: u16,
        /// Receives the peer; `None` if this event loop does not have it, or it cannot move now.
        answer: mpsc::SyncSender<Option<Box<MovedPeer>>>,
    },
    /// Note that a peer belongs to packet thread `to` now.
    PeerMoved {
        peer: PublicKey,
        to: u16,
        /// For the event loop that has the peer from now on.
        moved: Option<Box<MovedPeer>>,
        /// Notified when that is done.
        answer: mpsc::SyncSender<()>,
    },
    /// Confirm that the event loop takes turns.
    Ping {
        /// Notified in the next turn that takes a command.
        answer: mpsc::SyncSender<()>,
    },
    /// End the event loop.
    Stop,
    /// End the event loop, and leave the packets of the device to the process that has it next.
    Leave,
}

/// A peer on its way to another packet thread.
#[derive(Debug)]
pub struct MovedPeer {
    pub(super) peer: weft_tunnel::MovedPeer,
    /// The queues of its flows, and of all others of the packet thread.
    pub(super) flows: Option<FlowQueues>,
}

/// Weight of the changes in one turn: about 0.1 ms, as long as a batch of packets takes.
const CHANGES: usize = 128;
/// Number of peers that one turn copies into a snapshot, for the same reason.
const PEERS: usize = 512;

/// Work that spans several turns.
pub(super) enum LongCommand {
    Snapshot { place: usize, peers: Vec<PeerSnapshot>, answer: mpsc::SyncSender<Snapshot> },
    Change { rest: std::vec::IntoIter<Change>, answer: mpsc::SyncSender<()> },
}

impl LongCommand {
    /// Does one slice of the work, and returns the rest, if any. `counters` builds the snapshot with these
    /// peers.
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
