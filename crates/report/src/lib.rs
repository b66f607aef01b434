//! The state of a running interface: the [`StatusReport`], the findings that follow from it ([`diagnose`]),
//! and the client of the [`control_socket`] that requests it from a daemon.
//!
//! The daemon fills the report from a snapshot of the packet thread. The command that requested it computes
//! rates, findings and tables.

#![forbid(unsafe_code)]

pub mod control_socket;
mod diagnose;
mod explain;
pub mod finding;
mod format;
mod peer_name;
mod recent;
pub mod rules;
mod stage;
mod status;

pub use diagnose::{STARTING, diagnose, has_session, of_expired, should_have_session, unready};
pub use format::{age, bucket_label, bytes, rate, short_key, total};
pub use peer_name::{PeerNameError, find_peer};
pub use recent::add_recent;
pub use stage::stage_of;
pub use status::{
    AlternationReport, ConnectionReport, DropReport, ExpiredPeerReport, HistogramReport, LimitReport,
    PacketThreadReport, PeerReport, QueueReport, Rates, Recent, RefusalReport, SendFailureReport,
    StageReport, StatusReport, ThreadReport, TimesReport, TunQueueReport, TunReport, TunnelReport, UdpReport,
};
