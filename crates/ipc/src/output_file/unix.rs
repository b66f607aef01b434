//! Files in directories that other users may write to.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::geteuid;

use super::End;
use crate::holder::unfinished_at_random;

/// Permission bits that let other users make entries in a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bit that lets users remove their own entries alone.
const STICKY: u32 = 0o1000;
/// How often an entry may change while it is looked at, and how many links lead from one to the next.
const ATTEMPTS: u32 = 32;

/// How long a FIFO may be without a program that reads it: a window may have to open first.
const NO_READER: Duration = Duration::from_secs(10);
/// The time between two looks for it.
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn open(path: &Path, mode: u32) -> io::Result<(File, End)> {
    open_within(path, mode, NO_READER)
}

/// Opens a file. A FIFO is waited for.
fn open_within(path: &Path, mode: u32, patience: Duration) -> io::Result<(File, End)> {
    let mut path = path.to_owned();
    for _ in 0..ATTEMPTS {
        if weft_config::is_descriptor(&path) {
            // The other end of a pipe that is open already does not come back.
            let file = open_there(&path, OpenOptions::new().append(true), 0, Duration::ZERO)?;
            return Ok((file, End::InPlace));
        }
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let place = fs::metadata(directory)?;
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, End::New(path))),
        }
        let entry = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entry => entry?,
        };
        if !is_ours(place.uid()) || place.mode() & WRITABLE_BY_OTHERS != 0 {
            refuse(&entry, &place)?;
        }
        if entry.is_symlink() {
            // What it leads to is looked at in the same way.
            path = directory.join(fs::read_link(&path)?);
            continue;
        }
        let flags = libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file = open_there(&path, OpenOptions::new().write(true), flags, patience)?;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != (entry.dev(), entry.ino()) {
            continue;
        }
        return Ok(match replacement(&path, &opened) {
            _ if !opened.is_file() => (file, End::InPlace),
            Some((file, unfinished)) => (file, End::Beside { unfinished, earlier: path }),
            None => (file, End::ToEmpty),
        });
    }
    Err(io::Error::other("links lead in a circle, or another process replaces it again and again"))
}

/// Opens what is there. The system would wait for the reader of a FIFO without end.
fn open_there(path: &Path, options: &mut OpenOptions, flags: i32, patience: Duration) -> io::Result<File> {
    let begin = Instant::now();
    loop {
        match options.custom_flags(flags | libc::O_NONBLOCK).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                if !fs::metadata(path)?.file_type().is_fifo() {
                    return Err(error);
                }
                if begin.elapsed() >= patience {
                    return Err(io::Error::other("it is a FIFO, and no program reads it"));
                }
                sleep(LOOK);
            }
            opened => {
                let file = opened?;
                let status = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
                fcntl(&file, FcntlArg::F_SETFL(status - OFlag::O_NONBLOCK))?;
                return Ok(file);
            }
        }
    }
}

/// Makes a file beside an earlier one, with its owner and mode; `None` if it cannot take its place.
fn replacement(path: &Path, earlier: &Metadata) -> Option<(File, PathBuf)> {
    if !earlier.is_file() || earlier.nlink() > 1 {
        return None;
    }
    let unfinished = unfinished_at_random(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).ok()?;
    let adopt = || {
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != (earlier.uid(), earlier.gid()) {
            fchown(&file, Some(earlier.uid()), Some(earlier.gid()))?;
        }
        file.set_permissions(earlier.permissions())
    };
    match adopt() {
        Ok(()) => Some((file, unfinished)),
        Err(_) => {
            let _ = fs::remove_file(unfinished);
            None
        }
    }
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
