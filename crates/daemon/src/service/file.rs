//! The file that defines a service. weft replaces and removes only files with its marker.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::error::{MARKER, ServiceError};

/// Returns the text of weft's file, or `None` if there is no file.
///
/// # Errors
/// [`ServiceError::Foreign`] for every other file, directory or symbolic link.
pub(super) fn read(path: &Path) -> Result<Option<String>, ServiceError> {
    let failed = |error| ServiceError::File { action: "read", path: path.to_owned(), error };
    let foreign = || ServiceError::Foreign { file: path.to_owned() };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.is_file() => return Err(foreign()),
        Ok(_) => {}
    }
    let text = String::from_utf8(fs::read(path).map_err(failed)?).map_err(|_| foreign())?;
    if text.lines().any(|line| line.contains(MARKER)) { Ok(Some(text)) } else { Err(foreign()) }
}

/// Writes the file in one step, over an earlier one.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> Result<(), ServiceError> {
    let failed = |error| ServiceError::File { action: "write", path: path.to_owned(), error };
    // rc(8) runs every executable file of its directory, except names with a leading dot.
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let unfinished = path.with_file_name(name);
    let written = write_new(&unfinished, text, mode).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written.map_err(failed)
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    file.sync_all()
}

/// Removes the file. It is no error if there is none.
pub(super) fn remove(path: &Path) -> Result<(), ServiceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ServiceError::File { action: "remove", path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}
