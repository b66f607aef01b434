//! A speed test through a tunnel that says what limits it.
//!
//! The client (`weft speedtest`) connects to a responder inside the tunnel, which is a thread of the peer's
//! daemon. One of them sends over TCP for some seconds, and both sample their sockets, their processor and
//! their daemon ten times a second ([`Sample`]). [`verdicts`] says from the samples what took which share of
//! the time.
//!
//! `client.rs` and `responder.rs` are the two ends, `protocol.rs` is what they tell each other, `load.rs` and
//! `sampler.rs` are what both run.

#![cfg(target_os = "linux")]

use std::time::Duration;

mod client;
mod cpu;
mod datagrams;
mod from_device;
mod load;
mod protocol;
mod responder;
mod sample;
mod sampler;
mod tcp_events;
mod tcp_info;
mod verdict;

pub use client::{Outcome, Plan, TestError, Udp, run};
#[doc(hidden)]
pub use protocol::TestLines;
pub use protocol::{Direction, Refusal};
pub use responder::{Listener, Responder, Status};
pub use sample::{Counters, CpuTimes, Datagrams, Sample, Tcp, TcpEvents, peer_of};
pub use sampler::Probe;
pub use verdict::{Cause, Outside, Verdict, outside, verdicts};

/// The TCP port of the responder, on the addresses of its interface.
pub const PORT: u16 = 9587;
/// The longest test, in seconds.
pub const MAX_SECONDS: u64 = 60;
/// The most connections of a test.
pub const MAX_STREAMS: u16 = 32;
/// The time between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(100);
