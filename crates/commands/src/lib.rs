//! The commands that inspect or change an interface, but do not run one: those of wg(8), `status`, `top`,
//! `doctor`, `check`, `capture`, `speedtest`, `reload`, `save`, `peer`, and those that generate keys.

pub mod args;
pub mod axis;
pub mod capture;
pub mod check;
pub mod complete;
pub mod doctor;
#[cfg(unix)]
pub mod hang_up;
pub mod keys;
pub mod misrouted;
pub mod output;
pub mod own_file;
pub mod peer;
pub mod reload;
mod running;
pub mod save;
pub mod signals;
#[cfg(target_os = "linux")]
pub mod speedtest;
pub mod status;
pub mod top;
#[cfg(not(target_os = "linux"))]
mod unsupported;
pub mod wg;

#[cfg(not(unix))]
use unsupported as hang_up;
#[cfg(not(target_os = "linux"))]
pub use unsupported::speedtest;
