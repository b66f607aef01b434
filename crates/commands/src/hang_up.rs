//! Detects that the other end of a terminal or pipe is gone, also if SIGHUP is ignored.

#[cfg_attr(unix, path = "hang_up/unix.rs")]
#[cfg_attr(not(unix), path = "hang_up/other.rs")]
mod platform;

pub use platform::is_hung_up;
