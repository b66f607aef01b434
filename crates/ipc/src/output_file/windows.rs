//! Files that a command writes where its user says.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a file to write it from its start. A new file inherits the access rights of its folder.
///
/// # Errors
/// Those of the system.
pub fn create(path: &Path, _mode: u32) -> io::Result<File> {
    File::create(path)
}
