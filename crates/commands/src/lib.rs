//! The commands that inspect or change an interface, but do not run one: those of wg(8), `status`, `top`,
//! `doctor`, `check`, `capture`, `reload`, `save`, and those that generate keys.

pub mod args;
pub mod capture;
pub mod check;
pub mod doctor;
#[cfg(unix)]
pub mod hang_up;
pub mod keys;
pub mod output;
pub mod reload;
pub mod save;
pub mod signals;
pub mod status;
pub mod top;
#[cfg(not(unix))]
mod unsupported;
pub mod wg;

#[cfg(not(unix))]
use unsupported as hang_up;
