//! Packet scheduling: flow hashing, fair queues, and estimators of which flow fills a queue. Beside it the
//! limit of log lines that packets cause.
//!
//! Everything here is pure: no I/O, no threads, no clock. `weft-tun` uses it to choose the queue to read,
//! `weft-udp` to choose the message to open, and the packet thread to choose the packet to seal.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod codel;
mod deficit_round_robin;
pub mod flow;
mod flow_queue;
mod linear_counter;
mod log_limit;
mod majority_vote;
mod source_queues;

pub use deficit_round_robin::DeficitRoundRobin;
pub use flow_queue::{FlowQueue, PacketBatch, Remaining};
pub use linear_counter::LinearCounter;
pub use log_limit::LogLimit;
pub use majority_vote::MajorityVote;
pub use source_queues::{Next, SourceQueues};
