//! Descriptors that the service manager passes to this process (sd_listen_fds(3)): sockets that it listens on
//! for weft, and the store of the previous process.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// A descriptor of any kind.
pub type Descriptor = OwnedFd;

#[derive(Debug)]
pub struct Inherited {
    /// The name that the service manager gave.
    pub name: String,
    /// The descriptor, owned by this process.
    pub descriptor: Descriptor,
}

/// Returns a descriptor as that of a TUN queue. Other platforms have several types of descriptors.
pub fn into_queue(descriptor: Descriptor) -> weft_tun::Descriptor {
    descriptor
}

/// Returns a descriptor as that of a UDP socket.
pub fn into_socket(descriptor: Descriptor) -> weft_udp::Descriptor {
    descriptor
}

/// Takes the descriptors with the wanted names. Each descriptor can be taken once.
pub fn take(is_wanted: impl Fn(&str) -> bool) -> Vec<Inherited> {
    static REST: Mutex<Option<Vec<Inherited>>> = Mutex::new(None);
    let mut rest = REST.lock().unwrap_or_else(PoisonError::into_inner);
    let rest = rest.get_or_insert_with(all);
    rest.extract_if(.., |inherited| is_wanted(&inherited.name)).collect()
}

/// Returns all descriptors, and sets them close-on-exec. Called once.
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
            // SAFETY: the environment passes the descriptor to this process, it was found open just now, and
            // no other code takes it.
            descriptor: unsafe { OwnedFd::from_raw_fd(number) },
        })
        .collect()
}
