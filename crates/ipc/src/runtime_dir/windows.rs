//! The runtime directory on Windows: only SYSTEM, the administrators and its owner may use it and what is in
//! it. The control sockets are named pipes outside of it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use weft_config::InterfaceName;

use windows_sys::Win32::Storage::FileSystem::{
    CreateDirectoryW, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT, READ_CONTROL,
};

use super::untrusted::{Access, UntrustedError, Users};
use crate::pipe;
use crate::security::{Descriptor, Owner};

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

/// Users may make files below `%ProgramData%`, so the directory has separate access rights: SYSTEM, the
/// administrators and its owner may do everything, others nothing; what is in it inherits that (SDDL,
/// \[MS-DTYP\] 2.5.1).
const PRIVATE: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW)";

pub(super) fn default() -> PathBuf {
    let data = std::env::var_os("ProgramData").unwrap_or_else(|| r"C:\ProgramData".into());
    Path::new(&data).join(r"weft\run")
}

pub(super) fn of_user() -> Result<PathBuf, UntrustedError> {
    Ok(default())
}

pub(super) fn leave(instance: &Path) {
    if !is_anothers(instance) {
        // Fails for a directory that still contains a file.
        let _ = fs::remove_dir(instance);
    }
}

pub(super) fn make(instance: &Path) -> io::Result<()> {
    let directory = instance.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    match make_private(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_owner(directory)?,
        made => made?,
    }
    match fs::create_dir(instance) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && instance.is_dir() => Ok(()),
        made => made,
    }
}

fn make_private(directory: &Path) -> io::Result<()> {
    let descriptor = Descriptor::parse(PRIVATE)?;
    let attributes = descriptor.attributes();
    let path: Vec<u16> = directory.as_os_str().encode_wide().chain([0]).collect();
    // SAFETY: the path ends with a zero, and both it and the descriptor outlive the call.
    let made = unsafe { CreateDirectoryW(path.as_ptr(), &raw const attributes) };
    if made == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Another user may have made the directory first, and may change what is in it.
fn check_owner(directory: &Path) -> Result<(), UntrustedError> {
    let opened = OpenOptions::new()
        .access_mode(READ_CONTROL)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
        .open(directory)
        .map_err(UntrustedError::io(directory))?;
    let refused =
        |reason: &str| UntrustedError::Directory { path: directory.to_owned(), reason: reason.to_owned() };
    if !opened.metadata().map_err(UntrustedError::io(directory))?.is_dir() {
        return Err(refused("is no directory"));
    }
    match Owner::of(&opened).map_err(UntrustedError::io(directory))? {
        Owner::Other => Err(refused("belongs to another user")),
        Owner::System | Owner::Administrators | Owner::Own => Ok(()),
    }
}

/// Does nothing: services have no separate user.
pub(super) fn adopt(_: &Path) -> Result<(), UntrustedError> {
    Ok(())
}

/// Always false: users are not distinguished here.
pub fn is_anothers(_: &Path) -> bool {
    false
}

/// Returns the trusted users. Users have no numbers here: what belongs to others is not opened.
///
/// # Errors
/// The runtime directory belongs to another user.
pub fn users(instance: &Path) -> Result<Users, UntrustedError> {
    if let Some(directory) = instance.parent().filter(|directory| directory.exists()) {
        check_owner(directory)?;
    }
    Ok(Users::of_process())
}

/// Opens the file that is locked in place of a directory.
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
    if Owner::of(&file).map_err(UntrustedError::io(path))? == Owner::Other {
        return Err(UntrustedError::Kind { path: path.to_owned(), kind: "another user's" });
    }
    if !metadata.is_file() {
        return Err(UntrustedError::Kind { path: path.to_owned(), kind: "no file" });
    }
    if metadata.len() > most {
        return Err(UntrustedError::Size { path: path.to_owned(), bytes: metadata.len(), most });
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_are_made_once_and_what_is_in_them_is_read_back() {
        let place = tempfile::tempdir().unwrap();
        let instance = place.path().join(r"weft\run\wg0");
        for _ in 0..2 {
            make(&instance).unwrap();
        }
        users(&instance).unwrap();
        let path = instance.join("record.json");
        assert!(open_untrusted(&path, Access::Read, 10).unwrap().is_none());
        assert!(open_untrusted(&path, Access::Create, 10).unwrap().is_some());
        fs::write(&path, "0123456789").unwrap();
        assert!(open_untrusted(&path, Access::Read, 10).unwrap().is_some());
        let error = open_untrusted(&path, Access::Read, 9).unwrap_err();
        assert!(matches!(error, UntrustedError::Size { bytes: 10, most: 9, .. }), "{error}");
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        fs::write(&run, "").unwrap();
        let error = make(&run.join("wg0")).unwrap_err().to_string();
        assert!(error.contains("is no directory"), "{error}");
        assert!(users(&run.join("wg0")).is_err());
    }

    #[test]
    fn the_default_is_below_the_data_of_all_users() {
        assert!(default().ends_with(r"weft\run"), "{}", default().display());
    }
}
