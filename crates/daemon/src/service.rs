//! `weft service`: an interface as a service of launchd (macOS), rc(8) (FreeBSD) or the service control
//! manager (Windows). On Linux the packages have a unit of systemd, which the command names.

#[cfg(any(target_os = "macos", target_os = "freebsd", windows))]
mod command;
#[cfg(any(target_os = "macos", target_os = "freebsd", windows, all(test, target_os = "linux")))]
mod error;
#[cfg(any(target_os = "macos", target_os = "freebsd", all(test, target_os = "linux")))]
mod file;
#[cfg(any(target_os = "macos", all(test, target_os = "linux")))]
mod launchd;
#[cfg(any(target_os = "macos", target_os = "freebsd", windows, all(test, target_os = "linux")))]
mod lifecycle;
#[cfg(any(target_os = "macos", target_os = "freebsd", all(test, target_os = "linux")))]
mod program;
#[cfg(any(target_os = "freebsd", all(test, target_os = "linux")))]
mod rc_d;
#[cfg(target_os = "linux")]
mod systemd;
#[cfg(any(windows, all(test, target_os = "linux")))]
mod windows;

#[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows)))]
pub use crate::unsupported::service::run;
#[cfg(any(target_os = "macos", target_os = "freebsd", windows))]
pub use command::run;
#[cfg(target_os = "linux")]
pub use systemd::run;
