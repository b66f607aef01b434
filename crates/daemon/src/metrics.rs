//! What an interface tells about itself over HTTP: metrics for Prometheus, health checks, a status page.
//!
//! | Path | Answer |
//! |---|---|
//! | `/metrics` | metrics, as OpenMetrics for who asks for it, else in Prometheus' own text format |
//! | `/healthz` | 200 if the event loop takes turns |
//! | `/readyz` | 200 if every peer that should have a session has one, else 503 and why |
//! | `/status.json` | the [`StatusReport`](weft_report::StatusReport), with rates and findings |
//! | `/` | a page that shows it, live |
//!
//! It runs on a thread of its own (`weft-metrics`). Whatever is asked costs the packet thread one snapshot, taken in
//! slices as for `weft status`, and requests that come together share it (`sampler.rs`).

mod answer;
mod exposition;
mod hosts;
mod impatient;
mod listener;
mod query;
mod sampler;
mod server;

pub use listener::{ListenError, Listener};
pub use server::Server;
