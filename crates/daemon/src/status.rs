//! What is known of a running interface, and `weft status`, which shows it.
//!
//! The daemon fills a [`StatusReport`] from a snapshot of the packet thread and sends it over its control socket; what
//! is made of it (rates, a diagnosis, tables) is made by the command.

mod collect;
mod command;
#[cfg_attr(target_os = "linux", path = "status/device/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "status/device/other.rs")]
mod device;
mod diagnose;
mod explain;
mod format;
mod recent;
mod report;
mod stage;
mod table;

pub use collect::{Configured, ConfiguredPeer, Running};
pub(crate) use command::cannot_look;
pub use command::run;
pub use diagnose::{diagnose, has_session, should_have_session, unready};
pub use format::{age, bytes, rate, short_key};
pub use recent::add_recent;
pub use report::{
    DropReport, HistogramReport, LimitReport, PeerReport, QueueReport, Rates, Recent, SendFailureReport,
    StageReport, StatusReport, TimesReport, TunQueueReport, TunReport, TunnelReport, UdpReport,
};
pub use stage::stage_of;
pub use table::bucket_label;
