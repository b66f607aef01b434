//! Files where access is decided by lists and not by permission bits.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _};
use std::path::Path;

use weft_ipc::security::{Descriptor, Owner, access_of};
use windows_sys::Win32::Foundation::{
    ERROR_IO_PENDING, ERROR_LOCK_VIOLATION, GENERIC_WRITE, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, CREATE_NEW, CreateFileW, FILE_ATTRIBUTE_NORMAL, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE, FILE_SHARE_READ,
    GetFileInformationByHandle, LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::access_list::lets_all_read;

/// SYSTEM, the administrators and the owner may do everything, others nothing; nothing is inherited from the
/// directory (SDDL, \[MS-DTYP\] 2.5.1).
const PRIVATE: &str = "D:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FA;;;OW)";
/// The number of every user that may not own the files of weft: users have no numbers on Windows.
const ANOTHER: u32 = u32::MAX;
/// The byte that is locked. A locked byte cannot be read by other processes, so it is behind all of the
/// content.
const LOCKED: u64 = 1 << 62;

/// Returns a number if an open file belongs neither to SYSTEM, nor to the administrators, nor to the user of
/// this process.
pub(crate) fn other_owner(file: &File) -> Option<u32> {
    match Owner::of(file) {
        Ok(Owner::System | Owner::Administrators | Owner::Own) => None,
        Ok(Owner::Other) | Err(_) => Some(ANOTHER),
    }
}

/// Reports whether all users may read a file.
pub(crate) fn is_open_to_all(path: &Path) -> bool {
    File::open(path).and_then(|file| access_of(&file)).is_ok_and(|list| lets_all_read(&list))
}

/// Reports whether the path still leads to this open file.
pub(crate) fn is_same_file(file: &File, path: &Path) -> bool {
    let named = OpenOptions::new()
        .access_mode(FILE_READ_ATTRIBUTES)
        .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS)
        .open(path);
    let Ok(named) = named else { return false };
    let (open, named) = (identity(file), identity(&named));
    open.is_some() && open == named
}

/// Returns the volume of a file and its number there.
fn identity(file: &File) -> Option<(u32, u32, u32)> {
    let mut information = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and the structure outlives the call.
    let known = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut information) };
    let BY_HANDLE_FILE_INFORMATION { dwVolumeSerialNumber, nFileIndexHigh, nFileIndexLow, .. } = information;
    (known != 0).then_some((dwVolumeSerialNumber, nFileIndexHigh, nFileIndexLow))
}

/// Returns false: a process that is asked for its start time answers.
pub(crate) fn is_hidden(_: u32) -> bool {
    false
}

/// Opens a file to lock it, beside one that other users cannot change.
pub(crate) fn open_for_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Locks a file, unless another process has locked it.
pub(crate) fn try_lock(file: &File) -> Result<(), TryLockError> {
    lock(file, LOCKFILE_EXCLUSIVE_LOCK)
}

/// Takes a shared lock on a file, unless another process has the exclusive lock.
pub(crate) fn try_lock_shared(file: &File) -> Result<(), TryLockError> {
    lock(file, 0)
}

/// Locks until the file is closed.
fn lock(file: &File, kind: u32) -> Result<(), TryLockError> {
    let mut place = OVERLAPPED::default();
    place.Anonymous.Anonymous.Offset = LOCKED as u32;
    place.Anonymous.Anonymous.OffsetHigh = (LOCKED >> 32) as u32;
    // SAFETY: the handle is open, and the structure outlives the call, which does not wait.
    let is_locked = unsafe {
        LockFileEx(file.as_raw_handle(), kind | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &raw mut place)
    };
    if is_locked != 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(ERROR_LOCK_VIOLATION | ERROR_IO_PENDING) => Err(TryLockError::WouldBlock),
        _ => Err(TryLockError::Error(error)),
    }
}

/// Writes a new file that only its owner and administrators may read, in place of an existing file, and waits
/// for the disk.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = create_private(path)?;
    file.write_all(content)?;
    file.sync_all()?;
    Ok(file)
}

/// Leaves the new file private.
#[allow(clippy::unnecessary_wraps, reason = "it can fail elsewhere")]
pub(crate) fn keep_access(_new: &File, _replaced: &Path) -> io::Result<()> {
    Ok(())
}

/// Creates a file, which never has other rights.
fn create_private(path: &Path) -> io::Result<File> {
    let access = Descriptor::parse(PRIVATE)?;
    let attributes = access.attributes();
    let path: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    // SAFETY: the path ends with a zero, and the attributes and their descriptor outlive the call.
    let handle = unsafe {
        CreateFileW(
            path.as_ptr(),
            GENERIC_WRITE,
            FILE_SHARE_READ | FILE_SHARE_DELETE,
            &raw const attributes,
            CREATE_NEW,
            FILE_ATTRIBUTE_NORMAL,
            std::ptr::null_mut(),
        )
    };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just opened it, and nothing else has it.
    Ok(unsafe { File::from_raw_handle(handle) })
}

/// Does nothing: directories are not synced here.
pub(crate) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_private_file_takes_the_place_of_a_file_that_all_may_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wg0.conf");
        std::fs::write(&file, "old").unwrap();
        write_private(&file, b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert!(!is_open_to_all(&file));
        let opened = File::open(&file).unwrap();
        assert_eq!(other_owner(&opened), None);
        let access = access_of(&opened).unwrap();
        assert!(access.contains("(A;;FA;;;SY)"), "{access}");
        // Everyone, users, authenticated users, interactive users.
        for trustee in ["WD", "BU", "AU", "IU"] {
            assert!(!access.contains(&format!(";;;{trustee})")), "{access}");
        }
    }

    #[test]
    fn a_file_is_told_from_another_one_of_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("lock"), directory.path().join("old"));
        let file = File::create(&path).unwrap();
        assert!(is_same_file(&file, &path));
        std::fs::rename(&path, &moved).unwrap();
        assert!(!is_same_file(&file, &path), "there is none");
        let _other = File::create(&path).unwrap();
        assert!(!is_same_file(&file, &path));
        assert!(is_same_file(&file, &moved));
    }

    #[test]
    fn a_locked_file_can_be_read_by_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "12 34\n").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (held, mut other) = (open(), open());
        try_lock(&held).unwrap();
        assert!(matches!(try_lock(&other), Err(TryLockError::WouldBlock)));
        assert!(matches!(try_lock_shared(&other), Err(TryLockError::WouldBlock)));
        let mut text = String::new();
        // Windows would not give a locked byte; Wine does.
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "12 34\n");
        drop(held);
        try_lock_shared(&other).unwrap();
        try_lock_shared(&open()).unwrap();
    }
}
