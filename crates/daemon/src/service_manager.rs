//! What weft and the service manager that started it tell each other: sd_notify(3). Without one every call does
//! nothing.
//!
//! `notify.rs` are the messages themselves, `starting.rs` asks for patience while a start waits, `status_line.rs` is what
//! an operator reads in `systemctl status`, and `watchdog.rs` proves that packets can still move.

#[cfg_attr(target_os = "linux", path = "service_manager/notify.rs")]
#[cfg_attr(not(target_os = "linux"), path = "service_manager/silent.rs")]
mod notify;
mod starting;
mod status_line;
mod watchdog;

pub use notify::{is_present, reloading, stopping};
pub use starting::Starting;
pub use status_line::StatusLine;
pub use watchdog::Watchdog;
