//! Room for the descriptors of several packet threads.

use std::io;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// Raises the number of descriptors that this process may open to `needed`, if it is lower.
///
/// # Errors
/// With the number that it may open at most.
pub(super) fn make_room(needed: usize) -> io::Result<Result<(), String>> {
    let needed = needed as rlim_t;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= needed {
        return Ok(Ok(()));
    }
    if hard < needed {
        return Ok(Err(hard.to_string()));
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed, hard)?;
    Ok(Ok(()))
}
