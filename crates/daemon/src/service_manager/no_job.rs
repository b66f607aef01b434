//! A platform without systemd: nobody stops a service in order to start it again.

/// What a service manager is about to do with the service of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// It is stopped, and started right after that.
    pub is_restart: bool,
    /// Descriptors in its store.
    pub kept: u32,
}

/// Nothing.
pub fn invocation() -> Option<String> {
    None
}

/// Nobody can be asked.
pub fn job() -> Result<Job, String> {
    Err("there is no systemd on this platform".to_owned())
}
