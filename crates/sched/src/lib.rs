//! Which packet goes next: the flow of a packet, fair queues, and estimators of who fills a queue.
//!
//! Everything here is pure: no I/O, no threads, no clock. `weft-tun` and `weft-udp` decide with it which queue or socket to
//! read, and the packet thread which packet to seal.

#![forbid(unsafe_code)]

mod deficit_round_robin;
pub mod flow;
mod flow_queue;
mod linear_counter;
mod majority_vote;

pub use deficit_round_robin::DeficitRoundRobin;
pub use flow_queue::{FlowQueue, PacketBatch};
pub use linear_counter::LinearCounter;
pub use majority_vote::MajorityVote;
