//! A platform without systemd: a stop is never known to be part of a restart.

/// The pending job of a service manager for the service of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Whether the service is started again right after the stop.
    pub is_restart: bool,
    /// Number of descriptors in the service's store.
    pub kept: u32,
}

/// Always returns `None`.
pub fn invocation() -> Option<String> {
    None
}

/// Always returns an error.
pub fn job() -> Result<Job, String> {
    Err("there is no systemd on this platform".to_owned())
}
