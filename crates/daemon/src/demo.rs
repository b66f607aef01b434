//! `weft demo`: two daemons in two network namespaces of this process, and real traffic through their tunnel.
//!
//! It needs no configuration, and leaves nothing behind when the process ends.

#[cfg(target_os = "linux")]
mod account;
#[cfg(target_os = "linux")]
mod ends;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod table;

#[cfg(not(target_os = "linux"))]
pub use crate::unsupported::demo::run;
#[cfg(target_os = "linux")]
pub use run::run;
