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
    let text = weft_config::read_regular_text(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge => foreign(),
        _ => failed(error),
    })?;
    let is_ours = text.lines().any(|line| line.contains(MARKER));
    if is_ours { Ok(Some(text.to_string())) } else { Err(foreign()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_no_text_is_foreign_whatever_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weft_wg0");
        for (content, size, is_foreign) in [
            (format!("# {MARKER}\n").into_bytes(), None, false),
            (format!("# {MARKER}\n").into_bytes(), Some(weft_config::MAX_BYTES + 1), true),
            ([MARKER.as_bytes(), b"\xff"].concat(), None, true),
        ] {
            fs::write(&path, &content).unwrap();
            if let Some(size) = size {
                File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
            }
            let read = read(&path);
            let refused = matches!(read, Err(ServiceError::Foreign { .. }));
            assert!(refused == is_foreign && read.is_ok() != is_foreign, "{read:?}");
        }
    }
}
