//! The HTTP server of an interface: metrics for Prometheus, health checks, a status page.
//!
//! | Path | Answer |
//! |---|---|
//! | `/metrics` | metrics, as OpenMetrics if the client accepts it, else in Prometheus' own text format |
//! | `/healthz` | 200 if the event loop takes turns |
//! | `/readyz` | 200 if every peer that should have a session has one, else 503 and why |
//! | `/status.json` | the [`StatusReport`](weft_report::StatusReport), with rates and findings |
//! | `/` | a page that shows the status, live |
//!
//! It runs on a dedicated thread (`weft-metrics`). A request costs the packet thread one snapshot, taken in
//! slices as for `weft status`; concurrent requests share a snapshot (`sampler.rs`).

#![forbid(unsafe_code)]

mod answer;
mod exposition;
mod hosts;
mod impatient;
mod listener;
mod query;
mod sampler;
mod server;
#[cfg(not(unix))]
mod unsupported;

pub use listener::{ListenError, Listener};
pub use sampler::TakeReport;
pub use server::Server;
