//! A platform without systemd: there is no file-descriptor store.

use std::convert::Infallible;
use std::io;

use zeroize::Zeroizing;

/// The store, which cannot exist on this platform.
#[derive(Debug)]
pub struct FdStore {
    never: Infallible,
}

impl FdStore {
    /// Always returns `None`.
    pub fn of_this_process() -> Option<Self> {
        None
    }

    /// Never called.
    pub fn keep<D>(&self, _: &str, _: &D) -> io::Result<()> {
        match self.never {}
    }

    /// Never called.
    pub fn keep_sealed(&self, _: &str, _: &[u8]) -> io::Result<()> {
        match self.never {}
    }

    /// Never called.
    pub fn forget(&self, _: &str) -> io::Result<()> {
        match self.never {}
    }

    /// Never called.
    pub fn settle(&self) -> io::Result<()> {
        match self.never {}
    }
}

/// Never called.
pub fn read_sealed(descriptor: &Infallible) -> io::Result<Zeroizing<Vec<u8>>> {
    match *descriptor {}
}

/// Fails: there is no store to put the clone into.
pub fn try_clone<D>(_: &D) -> io::Result<D> {
    Err(io::ErrorKind::Unsupported.into())
}
