//! Notices that the other end of a terminal or a pipe is gone, also where SIGHUP is ignored.

#[cfg_attr(unix, path = "hang_up/unix.rs")]
#[cfg_attr(not(unix), path = "hang_up/other.rs")]
mod platform;

pub use platform::is_hung_up;
