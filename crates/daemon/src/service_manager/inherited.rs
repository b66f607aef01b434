//! Descriptors that the service manager hands to this process (sd_listen_fds(3)): of sockets that it listens on for us,
//! and what it kept of the process before.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// A descriptor and its name.
#[derive(Debug)]
pub struct Inherited {
    /// What it was given as.
    pub name: String,
    /// The descriptor, for nobody else.
    pub descriptor: OwnedFd,
}

/// Takes the descriptors whose names are wanted. What was taken once is not there any more.
pub fn take(is_wanted: impl Fn(&str) -> bool) -> Vec<Inherited> {
    static REST: Mutex<Option<Vec<Inherited>>> = Mutex::new(None);
    let mut rest = REST.lock().unwrap_or_else(PoisonError::into_inner);
    let rest = rest.get_or_insert_with(all);
    rest.extract_if(.., |inherited| is_wanted(&inherited.name)).collect()
}

/// All of them, closed on exec from now on. Called once.
fn all() -> Vec<Inherited> {
    let descriptors = match sd_notify::listen_fds_with_names() {
        Ok(descriptors) => descriptors,
        Err(error) => {
            tracing::warn!("what the service manager handed over cannot be used: {error}");
            return Vec::new();
        }
    };
    descriptors
        .map(|(number, name)| Inherited {
            name,
            // SAFETY: the environment gives the descriptor to this process, which was found open right now, and this
            // is the only place that takes it.
            descriptor: unsafe { OwnedFd::from_raw_fd(number) },
        })
        .collect()
}
