//! Which file /etc/resolv.conf is. The path leads to different files in different mount namespaces, which may
//! share weft's directory: `ip netns exec NAME` mounts /etc/netns/NAME/resolv.conf over it. So the state in
//! weft's directory belongs to one file.
//!
//! A file that is a mount point can be written, but not replaced: its device and inode identify it. Another
//! file may be replaced by any program, and is identified by its directory.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::super::super::{DnsError, Places};
use super::failure;
use super::state::{FileState, remove_leftover};
use crate::netns;
use crate::system_file;

/// A file that is or was /etc/resolv.conf in this mount namespace, and the place of its state.
pub(super) struct ResolvConf<'a> {
    places: &'a Places,
    /// The file that is mounted over the path, open: the mount disappears when another program replaces the
    /// file below it, in any mount namespace.
    bound: Option<Arc<File>>,
    /// The device and inode of the mounted file, or of the directory of the path.
    identity: (u64, u64),
}

impl<'a> ResolvConf<'a> {
    /// Finds the file that programs read. [`Places::bound`] holds each one that was mounted there. Where such
    /// a mount is gone, and the path leads to the file of another network namespace, it is the last one.
    pub(super) fn find(places: &'a Places) -> Result<Self, DnsError> {
        let path = &places.resolv_conf;
        let Some(target) = mount_at(path) else {
            let below = Self::below(places)?;
            let bound = Self::bound(places)?.pop();
            return Ok(bound.filter(|_| below.reader_elsewhere().is_some()).unwrap_or(below));
        };
        let file = open_mounted(&target).map_err(|error| failure("read", path, error))?;
        let found = Self::of(places, Some(Arc::new(file)))?;
        let mut bound = places.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |known: &Arc<File>| known.metadata().is_ok_and(|file| id(&file) == found.identity);
        if let Some(file) = found.bound.as_ref().filter(|_| !bound.iter().any(is_known)) {
            bound.push(file.clone());
        }
        Ok(found)
    }

    /// Returns the other files that were found: other mounts, and the file below them.
    pub(super) fn others(&self) -> Result<Vec<Self>, DnsError> {
        let mut files = Self::bound(self.places)?;
        files.push(Self::below(self.places)?);
        files.retain(|file| file.state() != self.state());
        Ok(files)
    }

    fn bound(places: &'a Places) -> Result<Vec<Self>, DnsError> {
        let bound = places.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.iter().map(|file| Self::of(places, Some(file.clone()))).collect()
    }

    /// Returns the file of the path that is no mount point.
    fn below(places: &'a Places) -> Result<Self, DnsError> {
        Self::of(places, None)
    }

    fn of(places: &'a Places, bound: Option<Arc<File>>) -> Result<Self, DnsError> {
        let metadata = match &bound {
            Some(file) => file.metadata(),
            None => fs::metadata(directory_of(&places.resolv_conf)),
        };
        let metadata = metadata.map_err(|error| failure("read", &places.resolv_conf, error))?;
        Ok(Self { places, bound, identity: id(&metadata) })
    }

    /// Reports whether a mount lies over the file, which cannot be reached then.
    pub(super) fn is_covered(&self) -> bool {
        self.bound.is_none() && mount_at(&self.places.resolv_conf).is_some()
    }

    /// Returns a process in another network namespace that reads this same file.
    pub(super) fn reader_elsewhere(&self) -> Option<u32> {
        netns::ancestors_elsewhere().find(|&process| self.is_read_by(process))
    }

    /// Reports whether the path leads to another file than the one that was mounted there.
    pub(super) fn has_lost_its_mount(&self) -> bool {
        let path = fs::metadata(&self.places.resolv_conf).map(|file| (file.dev(), file.ino()));
        self.bound.is_some() && path.ok() != Some(self.identity)
    }

    fn is_read_by(&self, process: u32) -> bool {
        let path = &self.places.resolv_conf;
        let path = if self.bound.is_some() { path } else { directory_of(path) };
        seen_by(process, path) == Some(self.identity)
    }

    pub(super) fn read(&self) -> Result<FileState, DnsError> {
        let path = &self.places.resolv_conf;
        let read = match &self.bound {
            Some(file) => FileState::of_file(file, &reopening(file)),
            None => FileState::read(path),
        };
        read.map_err(|error| failure("read", path, error))
    }

    /// Reads what was there before the first layer. The content of a link is what it leads to now.
    pub(super) fn read_backup(&self) -> Result<FileState, DnsError> {
        let backup = self.backup();
        let state = FileState::read(&backup).map_err(|error| failure("read", &backup, error))?;
        Ok(match state {
            FileState::Link { target, .. } => {
                let leads_to = directory_of(&self.places.resolv_conf).join(&target);
                FileState::Link { content: system_file::read(&leads_to).unwrap_or_default(), target }
            }
            other => other,
        })
    }

    /// Returns what has to be writable: the file, or its directory if there is no file or a link.
    pub(super) fn written(&self) -> &Path {
        let path = &self.places.resolv_conf;
        let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
        if self.bound.is_some() || is_file { path } else { directory_of(path) }
    }

    pub(super) fn put(&self, state: &FileState) -> Result<(), DnsError> {
        let path = &self.places.resolv_conf;
        let put = match &self.bound {
            Some(file) => state.write_over(&reopening(file)),
            None => state.put_over(path),
        };
        put.map_err(|error| failure("write", path, error))
    }

    /// Returns the path of what was there before the first layer. If the path has no file, nothing was there.
    pub(super) fn backup(&self) -> PathBuf {
        self.state().join(BACKUP)
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.state().join(LAYERS)
    }

    fn state(&self) -> PathBuf {
        let (device, inode) = self.identity;
        let (major, minor) = (libc::major(device), libc::minor(device));
        self.places.state.join(format!("{}{major}:{minor}-{inode}", self.kind()))
    }

    /// Directories and mounted files may have the same numbers in the course of time.
    fn kind(&self) -> &'static str {
        if self.bound.is_some() { "file-" } else { "in-" }
    }

    pub(super) fn make_state(&self) -> Result<(), DnsError> {
        let state = self.state();
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&state)
            .map_err(|error| failure("write", &state, error))
    }

    /// Removes the state, and what a killed process left beside the file.
    pub(super) fn clear_state(&self) -> Result<(), DnsError> {
        for path in [self.layers(), self.backup()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failure("remove", &path, error));
                }
                _ => {}
            }
        }
        // On a failure an empty directory is left.
        let _ = fs::remove_dir(self.state());
        remove_leftover(&self.places.resolv_conf);
        Ok(())
    }

    /// Continues with the state that the content of the file names, if it is that of this file: its device
    /// may have another number after a restart of the machine.
    pub(super) fn adopt_state(&self, present: &FileState) -> Result<(), DnsError> {
        let named = present.named_backup();
        let Some(old) = named.as_deref().and_then(Path::parent) else { return Ok(()) };
        if old == self.state() || self.layers().exists() || !old.join(LAYERS).exists() {
            return Ok(());
        }
        let is_renumbered = old.parent() == Some(&self.places.state)
            && old.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                name.starts_with(self.kind()) && name.ends_with(&format!("-{}", self.identity.1))
            });
        // Else it is a copy of another file.
        if !is_renumbered {
            return Ok(());
        }
        self.make_state()?;
        // The layers last: until then the next call tries again.
        for (name, new) in [(BACKUP, self.backup()), (LAYERS, self.layers())] {
            match fs::rename(old.join(name), &new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failure("write", &new, error));
                }
                _ => {}
            }
        }
        let _ = fs::remove_dir(old);
        Ok(())
    }
}

/// Reports whether the path has the same directory for a process.
pub(in super::super) fn shares_directory(path: &Path, process: u32) -> bool {
    let directory = directory_of(path);
    let own = fs::metadata(directory).map(|metadata| (metadata.dev(), metadata.ino()));
    own.ok().is_some_and(|own| seen_by(process, directory) == Some(own))
}

/// Returns the device and inode of a path, as another process sees it.
fn seen_by(process: u32, path: &Path) -> Option<(u64, u64)> {
    let path = path.strip_prefix("/").unwrap_or(path);
    // A symbolic link would be followed from the root of this process.
    let metadata = fs::symlink_metadata(Path::new(&format!("/proc/{process}/root")).join(path)).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns the device and inode.
fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

const BACKUP: &str = "resolv.conf.before";
const LAYERS: &str = "layers.json";

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns a path that leads to an open file.
fn reopening(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns the file that the path leads to, if it is a mount point. A mount over a symbolic link is a mount
/// over its target.
fn mount_at(path: &Path) -> Option<PathBuf> {
    let target = fs::canonicalize(path).ok()?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").ok()?;
    // proc_pid_mountinfo(5): the fifth field is the mount point.
    let is_here = |line: &str| line.split(' ').nth(4).is_some_and(|at| Path::new(&unescaped(at)) == target);
    mounts.lines().any(is_here).then_some(target)
}

/// Opens a file that is a mount point. It can be unmounted nevertheless where a clone of the mount is
/// permitted.
fn open_mounted(path: &Path) -> io::Result<File> {
    // Opened for writing where that is permitted: in an overlay, a file has another inode from then on.
    let opened = OpenOptions::new().read(true).write(true).open(path).or_else(|_| File::open(path))?;
    let name = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the call reads the path, which ends with a zero and lives until after it.
    let clone = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, name.as_ptr(), flags) };
    let clone = libc::c_int::try_from(clone).ok().filter(|descriptor| *descriptor >= 0);
    // SAFETY: it is a new descriptor, which has no other owner.
    Ok(clone.map_or(opened, |descriptor| unsafe { File::from_raw_fd(descriptor) }))
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (digits, part.get(3..)) {
            (Some(byte), Some(rest)) => {
                plain.push(char::from(byte));
                plain += rest;
            }
            _ => plain += part,
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        for (written, plain) in
            [("/etc/resolv.conf", "/etc/resolv.conf"), ("/a\\040b\\134c", "/a b\\c"), ("/a\\04", "/a04")]
        {
            assert_eq!(unescaped(written), plain);
        }
    }
}
