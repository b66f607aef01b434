//! The runtime directory on platforms without owners and permission bits: the access rights of its parent
//! apply. The control sockets are named pipes outside of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use weft_config::InterfaceName;

use super::untrusted::{Access, UntrustedError, Users};
use crate::pipe;

/// The file that is locked in place of the directory.
const LOCK: &str = ".lock";

/// The prefix of the control sockets. Only administrators can create pipes below it.
const PIPES: &str = r"\\.\pipe\ProtectedPrefix\Administrators\weft";

/// Returns the path of an interface's pipe: one, whatever the runtime directory is, as a name has one device.
pub fn control_socket(_: &Path, interface: &InterfaceName) -> PathBuf {
    PathBuf::from(format!(r"{PIPES}\{interface}"))
}

/// Returns the prefix of the pipes.
pub fn place_of_sockets(_: &Path) -> PathBuf {
    PathBuf::from(PIPES)
}

pub(super) fn interfaces(_: &Path) -> io::Result<Vec<InterfaceName>> {
    Ok(pipe::names_below(PIPES)?.iter().filter_map(|name| name.parse().ok()).collect())
}

pub(super) fn user() -> u32 {
    0
}

pub(super) fn make(instance: &Path) -> io::Result<()> {
    std::fs::create_dir_all(instance)
}

/// Does nothing: services have no separate user.
pub(super) fn adopt(_: &Path) -> Result<(), UntrustedError> {
    Ok(())
}

/// Always false: users are not distinguished here.
pub fn is_anothers(_: &Path) -> bool {
    false
}

/// Returns the trusted users: every user who may write to the directory.
pub fn users(_: &Path) -> Result<Users, UntrustedError> {
    Ok(Users::of_process())
}

/// Opens the file that is locked while a daemon reads the records of other interfaces and writes its own.
pub fn lock(directory: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(directory.join(LOCK))
}

/// Opens a file of at most `most` bytes; `None` if the file or its directory is missing.
pub fn open_untrusted(path: &Path, access: Access, most: u64) -> Result<Option<File>, UntrustedError> {
    let is_written = access == Access::Create;
    let opened = File::options().read(true).write(is_written).create(is_written).truncate(false).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(UntrustedError::io(path)(error)),
    };
    let metadata = file.metadata().map_err(UntrustedError::io(path))?;
    if !metadata.is_file() {
        return Err(UntrustedError::Kind { path: path.to_owned(), kind: "no file" });
    }
    if metadata.len() > most {
        return Err(UntrustedError::Size { path: path.to_owned(), bytes: metadata.len(), most });
    }
    Ok(Some(file))
}
