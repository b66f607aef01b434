//! A queue of Windows: the ring of a driver, which tun-rs waits for.

use std::convert::Infallible;
use std::io;

use tun_rs::InterruptEvent;

use super::write_error::WriteError;

/// A descriptor of a queue, which cannot exist on this system.
pub type Descriptor = Infallible;

/// The error of a write.
pub(crate) type Errno = io::ErrorKind;

/// What threads wait for.
pub trait Pollable {
    /// Waits until a packet can be read. Fails with [`io::ErrorKind::Interrupted`] if the event ends the
    /// wait.
    fn wait_readable(&self, interrupt: &InterruptEvent) -> io::Result<()>;
}

/// Returns what an error of a write means for most queues.
pub(crate) fn meaning_of(error: Errno) -> WriteError {
    match error {
        // Nothing announces room in a ring.
        io::ErrorKind::WouldBlock => WriteError::FullUnannounced,
        _ => WriteError::Refused,
    }
}

/// Asked of devices with several queues only, which this system does not have.
pub(crate) fn is_readable(_: &impl Pollable) -> bool {
    true
}
