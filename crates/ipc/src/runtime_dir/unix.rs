//! Owners and permissions in the runtime directory.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

#[cfg(any(target_os = "linux", target_os = "android"))]
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{getegid, geteuid};
use weft_config::InterfaceName;

use super::untrusted::{Access, UntrustedError, Users};

mod session;

pub(super) use session::of_user;

/// The mode of the runtime directory: all users can list the interfaces.
const MODE: u32 = 0o755;
/// The mode of an interface's directory: other users can see nothing in it.
const INSTANCE_MODE: u32 = 0o700;
/// Permission bits that the runtime directory must not have.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The file name of the control socket in its interface's directory.
pub(crate) const CONTROL_SOCKET: &str = "control.sock";

/// Returns the path of an interface's control socket in a runtime directory.
pub fn control_socket(directory: &Path, interface: &InterfaceName) -> PathBuf {
    super::instance(directory, interface).join(CONTROL_SOCKET)
}

/// Returns the directory that holds the control sockets of a runtime directory.
pub fn place_of_sockets(directory: &Path) -> PathBuf {
    directory.to_owned()
}

pub(super) fn interfaces(directory: &Path) -> io::Result<Vec<InterfaceName>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // The directory of another user cannot be read. It counts: connecting shows whether its interface runs.
    let may_run = |name: &InterfaceName| {
        let socket = fs::symlink_metadata(control_socket(directory, name));
        !socket.is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        })
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(names.filter(may_run).collect())
}

/// Returns the default directory. macOS has no /run and does not let it be created; both systems empty
/// /var/run when the machine starts.
pub(super) fn default() -> PathBuf {
    PathBuf::from(match cfg!(any(target_os = "macos", target_os = "freebsd")) {
        true => "/var/run/weft",
        false => "/run/weft",
    })
}

pub(super) fn user() -> u32 {
    geteuid().as_raw()
}

pub(super) fn make(instance: &Path) -> io::Result<()> {
    if let Some(directory) = instance.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        if let Some(parent) = directory.parent() {
            DirBuilder::new().recursive(true).mode(MODE).create(parent)?;
        }
        if session::is_temporary(directory) {
            make_one(directory, INSTANCE_MODE)?;
            // Another user may have been faster.
            session::check(directory)?;
        } else {
            make_one(directory, MODE)?;
        }
    }
    make_one(instance, INSTANCE_MODE)
}

/// Creates a directory with this mode, whatever the umask is.
fn make_one(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        // On a read-only file system the error for an existing directory is not EEXIST.
        Err(_) if path.is_dir() => Ok(()),
        // It was there, and its last user removed it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::symlink_metadata(path).is_err() => {
            Err(io::ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}

pub(super) fn leave(instance: &Path) {
    // Fails for a directory of the service manager, and for a directory that still contains something.
    let remove = |directory: &Path| drop(fs::remove_dir(directory));
    if !is_anothers(instance) {
        remove(instance);
        instance.parent().filter(|directory| session::is_temporary(directory)).into_iter().for_each(remove);
    }
}

pub(super) fn adopt(instance: &Path) -> Result<(), UntrustedError> {
    if users(instance)?.owner == Some(user()) {
        return Ok(());
    }
    let adopt = || {
        let directory = open_directory(instance, libc::O_NOFOLLOW)?;
        fchown(&directory, Some(user()), Some(getegid().as_raw()))?;
        directory.set_permissions(Permissions::from_mode(INSTANCE_MODE))
    };
    adopt().map_err(UntrustedError::io(instance))
}

/// Reports whether the file belongs to another user than the user of this process.
pub fn is_anothers(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.uid() != user())
}

/// Returns the users that the files and sockets of an interface may belong to: root, the user of this
/// process, and the owner of the interface's directory. It is an error if other users could have created that
/// directory.
pub fn users(instance: &Path) -> Result<Users, UntrustedError> {
    let above =
        instance.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let own = user();
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let directory = match fs::metadata(above) {
        Ok(directory) => directory,
        Err(error) if missing(&error) => return Ok(Users { own, owner: None }),
        Err(error) => return Err(UntrustedError::io(above)(error)),
    };
    let refused = |reason| UntrustedError::Directory { path: above.to_owned(), reason };
    if ![0, own].contains(&directory.uid()) {
        return Err(refused(format!("belongs to user {}", directory.uid())));
    }
    if directory.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(refused(format!(
            "has mode {:04o}, so that others may write to it",
            directory.mode() & 0o7777
        )));
    }
    match fs::symlink_metadata(instance) {
        Ok(directory) if directory.is_dir() => Ok(Users { own, owner: Some(directory.uid()) }),
        Ok(file) => Err(UntrustedError::Directory {
            path: above.to_owned(),
            reason: format!("has {} in place of the directory {}", kind(&file), instance.display()),
        }),
        Err(error) if missing(&error) => Ok(Users { own, owner: None }),
        Err(error) => Err(UntrustedError::io(instance)(error)),
    }
}

/// Returns the user that listens at the other end of a connection: its user at the time of listen(2).
pub(crate) fn server_of(stream: &UnixStream) -> io::Result<u32> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let user = getsockopt(stream, sockopt::PeerCredentials)?.uid();
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let user = nix::unistd::getpeereid(stream)?.0.as_raw();
    Ok(user)
}

/// Opens a directory of this user alone, to lock it. What other users can open, they can lock for ever.
pub fn lock(directory: &Path) -> io::Result<File> {
    open_directory(directory, 0)
}

fn open_directory(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | flags).open(path)
}

/// Opens a file in the directory of an interface, which may belong to another user; `None` if the file or its
/// directory is missing. Does not wait for the other end of a FIFO, and follows no symbolic link. The file is
/// a regular file with one hard link and at most `most` bytes, and belongs to one of the interface's
/// [`users`].
pub fn open_untrusted(path: &Path, access: Access, most: u64) -> Result<Option<File>, UntrustedError> {
    let expected = users(path.parent().unwrap_or(Path::new(".")))?;
    let is_written = access == Access::Create;
    let mut options = OpenOptions::new();
    options.read(true).write(is_written).create(is_written).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // For a link, a socket or a directory, the error alone does not say why the file cannot be opened.
        Err(error) => {
            return Err(match fs::symlink_metadata(path) {
                Ok(file) if !file.is_file() => {
                    UntrustedError::Kind { path: path.to_owned(), kind: kind(&file) }
                }
                _ => UntrustedError::io(path)(error),
            });
        }
    };
    let path = || path.to_owned();
    let found = file.metadata().map_err(|error| UntrustedError::Io { path: path(), error })?;
    if !found.is_file() {
        return Err(UntrustedError::Kind { path: path(), kind: kind(&found) });
    }
    if !expected.trusts(found.uid()) {
        return Err(UntrustedError::Owner { path: path(), owner: found.uid(), expected });
    }
    if found.nlink() > 1 {
        return Err(UntrustedError::Links { path: path(), links: found.nlink() });
    }
    if found.len() > most {
        return Err(UntrustedError::Size { path: path(), bytes: found.len(), most });
    }
    Ok(Some(file))
}

fn kind(file: &Metadata) -> &'static str {
    let kind = file.file_type();
    match () {
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "a regular file",
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
