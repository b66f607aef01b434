//! A directory of the host with some files of weft's: no change of the host's directory brings the host's
//! files back.
//!
//! A file that is mounted over another one is gone as soon as the host renames something over that name, as
//! tools do that replace a file. So a tmpfs covers the whole directory, and its other entries lead to the
//! host's. Files are links into a second mount of the host's directory: they are looked up there each time,
//! so that a file which the host replaces is replaced here. Directories are mounted, since a relative link
//! below them may lead above this one. Overlayfs would keep a file that the host has replaced (its lower
//! layers may not change), and does not show what is mounted below a layer.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileType, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The entry of the view that leads to the host's directory. It may be passed through and not listed:
/// programs that search the directory find everything once.
const WAY: &str = ".weft";
/// The host's directory, in [`WAY`].
const HOST: &str = "host";
/// A link before it gets its name, in [`WAY`].
const UNFINISHED: &str = "unfinished";
/// Directories that may be covered for a moment, while nothing else runs in the mount namespace.
const COVERABLE: [&str; 5] = ["/tmp", "/var/tmp", "/mnt", "/srv", "/opt"];
const NO_PATH: Option<&Path> = None;

/// The view of a directory in the mount namespace of this process.
#[derive(Debug)]
pub(crate) struct View {
    /// Where it is mounted: read-only, lest a command loses what it writes there.
    at: PathBuf,
    /// The same tmpfs, without what is mounted in it, and writable.
    entries: Entries,
    /// Names that are not the host's.
    own: Vec<&'static str>,
}

/// A directory by its descriptor: it has no path.
#[derive(Debug)]
struct Entries(File);

impl Entries {
    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()).join(name)
    }
}

impl View {
    /// Covers a directory by one with these files, by name and text, in the place of the host's.
    pub(crate) fn cover(directory: &Path, files: &[(&'static str, String)]) -> io::Result<Self> {
        let scratch = Scratch::cover(directory)?;
        let entries = Entries(File::open(&scratch.0)?);
        mount(Some(&scratch.0), &scratch.0, NO_PATH, MsFlags::MS_BIND, NO_PATH)?;
        let own = files.iter().map(|(name, _)| *name).chain([WAY]).collect();
        let mut view = Self { at: scratch.0.clone(), entries, own };
        view.fill(directory, files)?;
        mount(Some(&view.at), directory, NO_PATH, MsFlags::MS_MOVE, NO_PATH)?;
        directory.clone_into(&mut view.at);
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | RESTRICTED;
        mount(NO_PATH, directory, NO_PATH, flags, NO_PATH)?;
        Ok(view)
    }

    fn fill(&self, directory: &Path, files: &[(&'static str, String)]) -> io::Result<()> {
        let way = self.entries.path(WAY);
        fs::create_dir(&way)?;
        fs::create_dir(way.join(HOST))?;
        fs::set_permissions(&way, PermissionsExt::from_mode(0o111))?;
        bind(directory, &self.at.join(WAY).join(HOST))?;
        for (name, text) in files {
            let path = self.entries.path(name);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
            file.set_permissions(PermissionsExt::from_mode(0o644))?;
            file.write_all(text.as_bytes())?;
        }
        self.follow_all()
    }

    /// Returns the host's directory.
    pub(crate) fn host(&self) -> PathBuf {
        self.at.join(WAY).join(HOST)
    }

    /// Makes the entries those that the host has now.
    pub(crate) fn follow_all(&self) -> io::Result<()> {
        for directory in [self.host(), self.entries.path("")] {
            for entry in fs::read_dir(directory)? {
                self.follow(&entry?.file_name())?;
            }
        }
        Ok(())
    }

    /// Makes an entry that which the host has now.
    pub(crate) fn follow(&self, name: &OsStr) -> io::Result<()> {
        if self.own.iter().any(|own| name == *own) {
            return Ok(());
        }
        let name = Path::new(name);
        let shown =
            fs::symlink_metadata(self.host().join(name)).and_then(|entry| self.show(name, entry.file_type()));
        match shown {
            Err(error) if is_missing(&error) => self.remove(name),
            // What cannot be shown as it is must not hide the others.
            Err(_) => self.link(name, &Path::new(WAY).join(HOST).join(name)),
            Ok(()) => Ok(()),
        }
    }

    fn show(&self, name: &Path, kind: FileType) -> io::Result<()> {
        let host = self.host().join(name);
        if kind.is_dir() {
            self.mount(name, &host)
        } else if kind.is_symlink() {
            // It leads where it does on the host, also if it is relative, and is to be read as there.
            self.link(name, &fs::read_link(host)?)
        } else {
            self.link(name, &Path::new(WAY).join(HOST).join(name))
        }
    }

    fn mount(&self, name: &Path, host: &Path) -> io::Result<()> {
        let (entry, shown) = (self.entries.path(name), self.at.join(name));
        let identity = |path: &Path| fs::metadata(path).map(|directory| (directory.dev(), directory.ino()));
        let is_directory = fs::symlink_metadata(&entry).is_ok_and(|entry| entry.is_dir());
        if is_directory && identity(&shown)? == identity(host)? {
            return Ok(());
        }
        self.remove(name)?;
        DirBuilder::new().mode(0o755).create(entry)?;
        bind(host, &shown)
    }

    fn link(&self, name: &Path, target: &Path) -> io::Result<()> {
        let (entry, unfinished) = (self.entries.path(name), self.entries.path(WAY).join(UNFINISHED));
        match fs::symlink_metadata(&entry) {
            Ok(present) if present.is_symlink() && fs::read_link(&entry)? == target => return Ok(()),
            Ok(present) if present.is_dir() => self.remove(name)?,
            Ok(_) | Err(_) => {}
        }
        remove_file(&unfinished)?;
        symlink(target, &unfinished)?;
        fs::rename(unfinished, entry)
    }

    fn remove(&self, name: &Path) -> io::Result<()> {
        let entry = self.entries.path(name);
        match fs::symlink_metadata(&entry) {
            Ok(present) if present.is_dir() => {
                // Each time that the host replaced it there may be one more.
                while umount2(&self.at.join(name), MntFlags::MNT_DETACH).is_ok() {}
                fs::remove_dir(entry)
            }
            _ => remove_file(&entry),
        }
    }
}

const RESTRICTED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Covers a directory by an empty one.
pub(crate) fn hide(directory: &Path) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), directory, Some("tmpfs"), RESTRICTED, Some("mode=755"))?)
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    // What the host has mounted below may not be left out.
    Ok(mount(Some(from), to, NO_PATH, MsFlags::MS_BIND | MsFlags::MS_REC, NO_PATH)?)
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if !is_missing(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// A directory in memory, in which a view is made before it covers the host's.
struct Scratch(PathBuf);

impl Scratch {
    /// Covers a directory that does not lead to another one.
    fn cover(other: &Path) -> io::Result<Self> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for directory in COVERABLE.iter().map(Path::new) {
            if other.starts_with(directory) {
                continue;
            }
            match hide(directory) {
                Ok(()) => return Ok(Self(directory.to_owned())),
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A view that was moved from here, and its descriptor, stay.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
