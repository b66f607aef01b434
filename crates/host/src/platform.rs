//! What differs between systems: files that only their owner may read, and processes.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_ipc::holder::unfinished_at_random;

#[cfg(any(test, windows))]
mod access_list;
#[cfg_attr(unix, path = "platform/unix.rs")]
#[cfg_attr(not(unix), path = "platform/windows.rs")]
mod files;
#[cfg(target_os = "linux")]
#[path = "platform/linux.rs"]
mod process;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
#[path = "platform/bsd.rs"]
mod process;

#[cfg(windows)]
#[path = "platform/windows/process.rs"]
mod process;

pub(super) use files::{
    is_open_to_all, is_same_file, keep_access, open_for_lock, other_owner, sync_directory, try_lock,
    try_lock_shared, write_private,
};
pub(super) use process::has_lost_its_device;

/// Replaces a file whole or not at all by a new one with its owner, group and mode; without a file, by one of
/// mode 0600. The target of a symbolic link is replaced, and the link stays.
///
/// Returns false, and changes nothing, if the file no longer has the text `before`: that is looked at last,
/// since a slow disk takes long for the new file.
pub(super) fn replace(file: &Path, before: Option<&str>, text: &str) -> io::Result<bool> {
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let is_other = Cell::new(false);
    let put = put(&target, text.as_bytes(), |new| {
        keep_access(new, &target)?;
        let Some(before) = before else { return Ok(()) };
        is_other.set(*weft_config::read_regular_text(&target)? != *before);
        if is_other.get() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
    });
    if is_other.get() {
        return Ok(false);
    }
    put?;
    if let Some(directory) = target.parent() {
        // A failure is ignored: the new text is in place, though a power failure may bring back the old text.
        let _ = sync_directory(directory);
    }
    Ok(true)
}

/// Puts a new file that only its owner may read at this path, whole or not at all.
pub(super) fn put_private(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, |_| Ok(()))
}

/// Puts a new file that only its owner may read at this path, whole or not at all, where there is nothing,
/// and waits for the disk.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::AlreadyExists`] if there is something.
pub fn put_new_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = unfinished_at_random(path);
    let put = write_private(&temporary, content).and_then(|_| match std::fs::hard_link(&temporary, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            // A file has one name there, as on FAT.
            File::create_new(path)?;
            std::fs::rename(&temporary, path).inspect_err(|_| drop(std::fs::remove_file(path)))
        }
        linked => linked,
    });
    let _ = std::fs::remove_file(&temporary);
    put?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    // A failure is ignored: not every file system can.
    let _ = sync_directory(directory.unwrap_or(Path::new(".")));
    Ok(())
}

/// Puts a new file at this path, whole or not at all, when `prepare` has succeeded with it.
fn put(path: &Path, content: &[u8], prepare: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let (temporary, file) = write_beside(path, content)?;
    let prepared = prepare(&file).and_then(|()| match is_same_file(&file, &temporary) {
        true => Ok(()),
        // In a directory of another user: what took its place would be the new file.
        false => Err(io::Error::other(format!("another program has replaced {}", temporary.display()))),
    });
    // Windows renames no open file.
    drop(file);
    let renamed = prepared.and_then(|()| std::fs::rename(&temporary, path));
    renamed.inspect_err(|_| drop(std::fs::remove_file(&temporary))).map_err(|error| match error.kind() {
        // Written in place, a full disk or a crash would leave half of it.
        io::ErrorKind::ResourceBusy => io::Error::new(
            error.kind(),
            "something is mounted over it, as over a file that a container is given; mount its directory instead",
        ),
        _ => error,
    })
}

/// Writes the content to a private file beside a path. Its name is the same each time, so that what a crash
/// leaves does not accumulate; where another user has taken that name, it is one that none can foresee.
fn write_beside(path: &Path, content: &[u8]) -> io::Result<(PathBuf, File)> {
    let write = |temporary: PathBuf| match write_private(&temporary, content) {
        Ok(file) => Ok((temporary, file)),
        Err(error) => {
            // On a full disk it would take room.
            let _ = std::fs::remove_file(&temporary);
            Err(error)
        }
    };
    let mut usual = path.as_os_str().to_owned();
    usual.push(".new");
    let usual = PathBuf::from(usual);
    write(usual.clone()).or_else(|error| {
        let is_taken = std::fs::symlink_metadata(&usual).is_ok();
        if is_taken { write(unfinished_at_random(path)) } else { Err(error) }
    })
}

/// A process: its id, and its start time in the system's units, which distinguishes it from a later process
/// with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process id.
    pub id: u32,
    /// The start time; 0 if the system does not report it.
    pub started: u64,
}

impl Process {
    /// Whether the system has a signal by which a process can be told to end.
    pub const TAKES_SIGNALS: bool = cfg!(unix);

    /// Tells the process to end and waits. Returns whether it has ended within `patience`. Where there are no
    /// signals, this only waits: the process has to be told over its control socket before.
    ///
    /// # Errors
    /// This process may not tell it to end.
    pub fn end(self, patience: Duration) -> io::Result<bool> {
        process::end(self, patience)
    }

    /// Returns the current process.
    pub(super) fn this() -> Self {
        let id = std::process::id();
        Self { id, started: process::started(id).unwrap_or_default() }
    }

    /// Reports whether it is seen to be in another network namespace than this thread.
    pub fn is_elsewhere(&self) -> bool {
        crate::netns::is_elsewhere(self.id)
    }

    /// Reports whether it belongs to this user; true if the system does not report its user.
    pub(super) fn is_of(&self, user: u32) -> bool {
        process::user(self.id).is_none_or(|is| is == user)
    }

    /// Reports whether it still runs; true if the system does not report start times. Of a process that is
    /// hidden from this user (`hidepid`, `ProtectProc=`) its id alone is known.
    pub(super) fn is_alive(&self) -> bool {
        match process::started(self.id) {
            Some(started) => started == self.started,
            None => self.started == 0 || files::is_hidden(self.id),
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn what_is_in_the_way_of_a_new_file_neither_stops_nor_misleads_it() {
        type Entry = fn(&Path, &Path);
        let entries: [(&str, Entry); 5] = [
            ("nothing", |_, _| {}),
            ("what a crash left", |path, _| fs::write(path, "old").unwrap()),
            ("a link to another file", |path, precious| symlink(precious, path).unwrap()),
            ("a FIFO", |path, _| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
            // As a file that this user may not remove from /tmp.
            ("what cannot be removed", |path, _| fs::create_dir_all(path.join("full")).unwrap()),
        ];
        for (what, make) in entries {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            fs::write(at("precious"), "precious").unwrap();
            make(&at("wg0.conf.new"), &at("precious"));
            write_private(&at("wg0.conf"), b"before").unwrap();
            assert!(!replace(&at("wg0.conf"), Some("edited"), "after").unwrap());
            assert!(replace(&at("wg0.conf"), Some("before"), "after").unwrap());
            assert_eq!(fs::read_to_string(at("wg0.conf")).unwrap(), "after", "{what}");
            assert_eq!(fs::metadata(at("wg0.conf")).unwrap().permissions().mode() & 0o777, 0o600, "{what}");
            assert_eq!(fs::read_to_string(at("precious")).unwrap(), "precious", "{what}");
            let left = fs::read_dir(directory.path()).unwrap().count();
            assert_eq!(left, 2 + usize::from(what == "what cannot be removed"), "{what}");
        }
    }

    #[test]
    fn what_takes_the_place_of_a_new_file_has_none_of_its_rights() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        fs::write(at("wg0.conf"), "before").unwrap();
        fs::set_permissions(at("wg0.conf"), fs::Permissions::from_mode(0o644)).unwrap();
        write_private(&at("precious"), b"precious").unwrap();
        // As the user whom the directory belongs to.
        let replaced = put(&at("wg0.conf"), b"after", |new| {
            fs::remove_file(at("wg0.conf.new"))?;
            symlink(at("precious"), at("wg0.conf.new"))?;
            keep_access(new, &at("wg0.conf"))
        });
        assert!(replaced.unwrap_err().to_string().contains("another program has replaced"));
        assert_eq!((mode("precious"), fs::read_to_string(at("wg0.conf")).unwrap()), (0o600, "before".into()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_new_file_has_the_owner_the_group_and_the_mode_of_the_one_that_it_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wg0.conf");
        fs::write(&file, "before").unwrap();
        let is_root = nix::unistd::geteuid().is_root();
        for (owner, group, mode) in [(0, 0, 0o600), (0, 7, 0o640), (12, 7, 0o660), (12, 0, 0o644)] {
            if is_root {
                chown(&file, Some(owner), Some(group)).unwrap();
            }
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let access = |metadata: fs::Metadata| (metadata.uid(), metadata.gid(), metadata.mode());
            let before = access(fs::metadata(&file).unwrap());
            assert!(replace(&file, None, "after").unwrap());
            assert_eq!(access(fs::metadata(&file).unwrap()), before);
        }
    }

    /// Linux: the mode of such a file is no more than the most that its list allows.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_new_file_has_the_access_list_of_the_one_that_it_replaces_and_not_that_of_the_directory() {
        use rustix::fs::{XattrFlags, getxattr, setxattr};
        const OF_FILE: &str = "system.posix_acl_access";
        // Version 2; the owner, user 12, the group, the mask and others, each with rights and an id.
        let entries: [(u16, u16, u32); 5] =
            [(1, 6, u32::MAX), (2, 4, 12), (4, 0, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)];
        let encoded = entries.iter().flat_map(|(tag, rights, id)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        });
        let list: Vec<u8> = 2_u32.to_le_bytes().into_iter().chain(encoded).collect();
        let list_of = |path: &Path| {
            let mut list = [0; 256];
            getxattr(path, OF_FILE, &mut list).map(|length| list[..length].to_vec()).ok()
        };
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["with", "without"] {
            write_private(&at(name), b"before").unwrap();
        }
        setxattr(at("with"), OF_FILE, &list, XattrFlags::empty()).unwrap();
        setxattr(directory.path(), "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
        for (name, expected) in [("with", Some(list)), ("without", None)] {
            assert!(replace(&at(name), None, "after").unwrap());
            assert_eq!(list_of(&at(name)), expected, "{name}");
        }
    }
}
