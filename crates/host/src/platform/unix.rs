//! Files and processes, as Unix has them.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// Returns false: the configuration's loader looks at permission bits.
pub(crate) fn is_open_to_all(_: &Path) -> bool {
    false
}

/// Returns the owner of an open file, if that is not the effective user of this process. The path is not
/// used: in another user's directory it may lead to another file by now.
pub(crate) fn other_owner(file: &File) -> Option<u32> {
    let owner = file.metadata().ok()?.uid();
    (owner != nix::unistd::geteuid().as_raw()).then_some(owner)
}

/// Reports whether there is a process of this id, which belongs to another user.
pub(crate) fn is_hidden(id: u32) -> bool {
    let id = i32::try_from(id).ok().filter(|id| *id > 0).map(nix::unistd::Pid::from_raw);
    id.is_some_and(|id| nix::sys::signal::kill(id, None) == Err(nix::errno::Errno::EPERM))
}

/// Reports whether the path still leads to this open file.
pub(crate) fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Opens a file to lock it, which no other user can open.
pub(crate) fn open_for_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if found.uid() == nix::unistd::geteuid().as_raw() && found.is_file() && found.mode() & 0o077 == 0 {
        return Ok(file);
    }
    Err(io::Error::other(format!("{} is not private to this user: remove it", path.display())))
}

/// Locks a file, unless another process has locked it.
pub(crate) fn try_lock(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}

/// Takes a shared lock on a file, unless another process has the exclusive lock.
pub(crate) fn try_lock_shared(file: &File) -> Result<(), TryLockError> {
    file.try_lock_shared()
}

/// Writes a new file that only its owner may read, in place of an existing file, and waits for the disk.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()?;
    Ok(file)
}

/// Gives a new private file the owner, the group and the permissions of the one that it is to replace, if
/// there is one. After a failure it must not replace it: others than before could read it, or could not. The
/// path of the new file is not used: in another user's directory it may lead to another file by now.
pub(crate) fn keep_access(new: &File, replaced: &Path) -> io::Result<()> {
    let wanted = match std::fs::metadata(replaced) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let now = new.metadata()?;
    // Only what differs: to change it needs a privilege.
    let owner = (now.uid() != wanted.uid()).then(|| wanted.uid());
    let group = (now.gid() != wanted.gid()).then(|| wanted.gid());
    let is_for_group = wanted.mode() & 0o070 != 0;
    if let Err(error) = fchown(new, owner, group)
        && (owner.is_some() || group.is_some() && is_for_group)
    {
        let (owner, group) = (wanted.uid(), wanted.gid());
        let why = format!("a new file cannot get its owner and group, {owner}:{group}: {error}");
        return Err(io::Error::new(error.kind(), why));
    }
    copy_access_list(replaced, new)?;
    new.set_permissions(Permissions::from_mode(wanted.mode() & 0o777))
}

/// Gives a file the access list of another, or none: it has that of its directory, which the mode would bring
/// into force, and the mode of a file with a list is not what its group may do.
#[cfg(target_os = "linux")]
fn copy_access_list(from: &Path, to: &File) -> io::Result<()> {
    use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr};
    use rustix::io::Errno;
    const NAME: &str = "system.posix_acl_access";
    /// The most that Linux keeps in an attribute.
    const MAX_BYTES: usize = 1 << 16;
    let mut list = vec![0; MAX_BYTES];
    let copied = match getxattr(from, NAME, &mut list[..]) {
        Ok(length) => fsetxattr(to, NAME, &list[..length], XattrFlags::empty()),
        Err(Errno::NODATA | Errno::NOTSUP) => fremovexattr(to, NAME),
        Err(error) => Err(error),
    };
    match copied {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

/// The lists of other systems are apart from the mode.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
fn copy_access_list(_: &Path, _: &File) -> io::Result<()> {
    Ok(())
}

/// Waits until the names in a directory are on the disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
