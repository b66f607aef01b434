//! Files that a command writes where its user says, perhaps as root below a directory in which other users
//! may make entries.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::unistd::geteuid;

/// Permission bits that let other users make entries in a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bit that lets users remove their own entries alone.
const STICKY: u32 = 0o1000;
/// How often an entry may change while it is looked at.
const ATTEMPTS: u32 = 8;

/// Opens a file to write it from its start, and makes it with this mode if it is missing.
///
/// In a directory of another user, or one that others may write to, such as /tmp, an entry that is there may
/// be a trap: a link to a file of this user, a file that another user reads along, or a FIFO. There the entry
/// has to be this user's or that of the directory's owner, a regular file with one name or a FIFO, and this
/// user's if it is a link.
///
/// # Errors
/// Those of open(2), and one that names what is in the way.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let place = fs::metadata(directory.unwrap_or(Path::new(".")))?;
    let mut options = OpenOptions::new();
    options.write(true).mode(mode);
    if is_ours(place.uid()) && place.mode() & WRITABLE_BY_OTHERS == 0 {
        return options.create(true).truncate(true).open(path);
    }
    for _ in 0..ATTEMPTS {
        match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
        let entry = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entry => entry?,
        };
        refuse(&entry, &place)?;
        if entry.is_symlink() {
            // None but this user and the directory's can have made it; it is followed as it is.
            return options.create(true).truncate(true).open(path);
        }
        let file = options.clone().custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY).open(path)?;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != (entry.dev(), entry.ino()) {
            continue;
        }
        if opened.is_file() {
            file.set_len(0)?;
        }
        return Ok(file);
    }
    Err(io::Error::other("another process replaces it again and again"))
}

fn is_ours(user: u32) -> bool {
    [0, geteuid().as_raw()].contains(&user)
}

fn refuse(entry: &Metadata, place: &Metadata) -> io::Result<()> {
    let kind = entry.file_type();
    let is_sticky = place.mode() & STICKY != 0;
    let is_trusted = is_ours(entry.uid()) || !is_sticky && entry.uid() == place.uid();
    let reason = match () {
        () if !is_trusted || kind.is_symlink() && !is_ours(entry.uid()) => {
            let what = if kind.is_symlink() { "a symbolic link" } else { "a file" };
            format!("it is {what} of user {} in a directory of others", entry.uid())
        }
        () if kind.is_file() && entry.nlink() > 1 => {
            format!("it has {} names in a directory of others", entry.nlink())
        }
        () if kind.is_symlink() || kind.is_file() || kind.is_fifo() => return Ok(()),
        () => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{reason}: choose another name, or remove it first"),
    ))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
