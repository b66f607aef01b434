//! Packet scheduling: flow hashing, fair queues, and estimators of which source or flow fills a queue.
//!
//! Everything here is pure: no I/O, no threads, no clock. `weft-tun` and `weft-udp` use it to choose the
//! queue or socket to read, and the packet thread to choose the packet to seal.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod deficit_round_robin;
pub mod flow;
mod flow_queue;
mod linear_counter;
mod majority_vote;

pub use deficit_round_robin::DeficitRoundRobin;
pub use flow_queue::{FlowQueue, PacketBatch};
pub use linear_counter::LinearCounter;
pub use majority_vote::MajorityVote;
