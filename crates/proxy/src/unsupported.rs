//! What only Unix has.

use std::io;
use std::path::Path;

use weft_network::{Connection, Listener};

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "weft has no Unix sockets on this system")
}

pub(crate) fn listen(_path: &Path) -> io::Result<Box<dyn Listener>> {
    Err(unsupported())
}

pub(crate) fn connect(_path: &Path) -> std::future::Ready<io::Result<Box<dyn Connection>>> {
    std::future::ready(Err(unsupported()))
}
