//! Communication with the service manager that started weft: sd_notify(3), on Windows the service control
//! manager. Without a service manager every call does nothing.
//!
//! `notify.rs` sends the messages, `starting.rs` extends the start timeout while a start waits,
//! `status_line.rs` makes the line in `systemctl status`, and `watchdog.rs` proves that packets can still
//! move. `fd_store.rs` is the store that the service manager keeps across a restart, `inherited.rs` takes the
//! descriptors that it passes to the next process, and `job.rs` tells whether a stop is the first half of a
//! restart. `windows.rs` is the same for Windows, and `progress.rs` what a service may tell it when.

#[cfg(target_os = "linux")]
mod fd_store;
#[cfg(target_os = "linux")]
mod inherited;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod notify;
#[cfg(any(windows, all(test, target_os = "linux")))]
mod progress;
mod starting;
mod status_line;
mod watchdog;
#[cfg_attr(windows, path = "service_manager/windows.rs")]
#[cfg_attr(not(windows), path = "service_manager/no_windows.rs")]
mod windows;

#[cfg(not(any(target_os = "linux", windows)))]
use crate::unsupported::systemd::notify;
#[cfg(not(target_os = "linux"))]
use crate::unsupported::systemd::{fd_store, inherited, job};
#[cfg(windows)]
use windows as notify;

pub use fd_store::{FdStore, read_sealed, try_clone};
pub use inherited::{Descriptor, Inherited, into_queue, into_socket, take};
pub use job::{Job, invocation, job};
pub(crate) use notify::shows_status;
pub use notify::{is_present, reloading, stopping};
#[cfg(any(windows, all(test, target_os = "linux")))]
pub(crate) use progress::name_of;
pub use starting::Starting;
pub use status_line::StatusLine;
pub use watchdog::{Watchdog, Work};
pub use windows::host;
#[cfg(windows)]
pub(crate) use windows::{END_WITHIN, logs};
