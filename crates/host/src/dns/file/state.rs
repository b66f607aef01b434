//! The state of a path: a file, a symbolic link or nothing; and how to restore it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::system_file;

/// The beginning of the first line of every file that weft writes for the C library.
pub(super) const MARK: &str = "# Written by weft for ";
/// What is around the path of the former content, in a comment.
pub(super) const BACKUP_IS: &str = "# What was here before is ";
pub(super) const AND_COMES_BACK: &str = " and comes back";
pub(super) const WHEN: &str = "# when these interfaces are taken down (`weft down`, also after a crash).";

/// The state of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileState {
    File {
        content: Vec<u8>,
        mode: u32,
        owner: Option<(u32, u32)>,
    },
    /// A symbolic link, which may be dangling, and the content of its target.
    Link {
        target: PathBuf,
        content: Vec<u8>,
    },
    /// Nothing.
    Missing,
}

impl FileState {
    /// Makes a file of this process's user, readable by all users.
    pub(super) fn file(content: Vec<u8>) -> Self {
        Self::File { content, mode: 0o644, owner: None }
    }

    /// Reads the state of a path.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Missing),
            Err(error) => return Err(error),
        };
        if metadata.is_symlink() {
            let content = system_file::read(path).unwrap_or_default();
            return Ok(Self::Link { target: fs::read_link(path)?, content });
        }
        Ok(Self::with_metadata(&metadata, system_file::read(path)?))
    }

    /// Reads the state of an open file. `path` leads to it.
    pub(super) fn of_file(file: &File, path: &Path) -> io::Result<Self> {
        Ok(Self::with_metadata(&file.metadata()?, system_file::read(path)?))
    }

    fn with_metadata(metadata: &fs::Metadata, content: Vec<u8>) -> Self {
        let owner = Some((metadata.uid(), metadata.gid()));
        Self::File { content, mode: metadata.mode() & 0o7777, owner }
    }

    pub(super) fn content(&self) -> &[u8] {
        match self {
            Self::File { content, .. } | Self::Link { content, .. } => content,
            Self::Missing => &[],
        }
    }

    /// Returns the first line in words for people: many programs say there that they wrote it.
    pub(super) fn beginning(&self) -> String {
        let text = String::from_utf8_lossy(self.content());
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let line: String =
            line.chars().filter(|character| !weft_config::is_unprintable(*character)).take(80).collect();
        match self {
            Self::Missing => "nothing".to_owned(),
            Self::Link { target, .. } => format!("a link to {}", target.display()),
            Self::File { .. } => format!("a file that begins with `{line}`"),
        }
    }

    /// Reports whether weft wrote it. weft writes files, and never through links. Another program may have
    /// put lines before the mark.
    pub(super) fn is_marked(&self) -> bool {
        let is_mark = |line: &[u8]| line.starts_with(MARK.as_bytes());
        matches!(self, Self::File { content, .. } if content.split(|&byte| byte == b'\n').any(is_mark))
    }

    /// Reports whether there is nothing, or a file that says nothing.
    pub(super) fn is_blank(&self) -> bool {
        !matches!(self, Self::Link { .. }) && self.content().iter().all(u8::is_ascii_whitespace)
    }

    /// Returns the path of the former content that a file of weft's names.
    pub(super) fn named_backup(&self) -> Option<PathBuf> {
        let text = std::str::from_utf8(self.content()).ok().filter(|_| self.is_marked())?;
        let path = text.lines().find_map(|line| line.strip_prefix(BACKUP_IS)?.strip_suffix(AND_COMES_BACK));
        path.map(PathBuf::from)
    }

    /// Returns the file without the comments of weft.
    pub(super) fn without_mark(&self) -> Self {
        match self {
            Self::File { content, mode, owner } => {
                let is_ours = |line: &[u8]| {
                    [MARK, BACKUP_IS, WHEN].iter().any(|ours| line.starts_with(ours.as_bytes()))
                };
                let lines = content.split_inclusive(|&byte| byte == b'\n');
                let content = lines.filter(|line| !is_ours(line)).flatten().copied().collect();
                Self::File { content, mode: *mode, owner: *owner }
            }
            other => other.clone(),
        }
    }

    /// Returns a file with another content. Mode and owner of a file stay; a link or a missing file becomes a
    /// new file.
    pub(super) fn with_content(&self, content: Vec<u8>) -> Self {
        match self {
            Self::File { mode, owner, .. } => Self::File { content, mode: *mode, owner: *owner },
            _ => Self::file(content),
        }
    }

    /// Brings the path into this state, atomically where the system allows that. A file that is a mount
    /// point, as in containers, cannot be replaced and is written in place.
    pub(super) fn put(&self, path: &Path) -> io::Result<()> {
        let temporary = beside(path);
        let replaced = self.make(&temporary).and_then(|is_made| match is_made {
            true => fs::rename(&temporary, path).and_then(|()| sync_directory(path)),
            false => remove(path),
        });
        let Err(error) = replaced else { return Ok(()) };
        let _ = fs::remove_file(&temporary);
        match self {
            Self::File { content, .. } if may_be_written_in_place(&error) && is_file(path) => {
                write_in_place(path, content)
            }
            _ => Err(error),
        }
    }

    /// Brings a path that other programs read into this state. A file is written in place: were it replaced,
    /// the mounts over it in other mount namespaces, such as those of `ip netns exec`, would disappear.
    pub(super) fn put_over(&self, path: &Path) -> io::Result<()> {
        let is_one_file =
            fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1);
        if is_one_file && self.write_over(path).is_ok() {
            return Ok(());
        }
        self.put(path)
    }

    /// Writes the content of a file in place. The path may lead to the file over a link.
    pub(super) fn write_over(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::File { content, .. } => write_in_place(path, content),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Creates it at a temporary path, where only the leftover of a crash may be. Returns false for a missing
    /// file, of which there is nothing to create.
    fn make(&self, path: &Path) -> io::Result<bool> {
        remove(path)?;
        match self {
            Self::Missing => return Ok(false),
            Self::Link { target, .. } => std::os::unix::fs::symlink(target, path)?,
            Self::File { content, mode, owner } => {
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                file.write_all(content)?;
                if let Some((user, group)) = owner {
                    std::os::unix::fs::fchown(&file, Some(*user), Some(*group))?;
                }
                file.set_permissions(fs::Permissions::from_mode(*mode))?;
                file.sync_all()?;
            }
        }
        Ok(true)
    }
}

/// Removes what a process that was killed while it brought the path into a state has left beside it. Where
/// that is not permitted, none has left anything.
pub(super) fn remove_leftover(path: &Path) {
    let _ = remove(&beside(path));
}

/// Returns the temporary path. It is always the same, so that leftovers of crashes do not accumulate.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".weft");
    path.with_file_name(name)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Reports whether writing in place may succeed. EBUSY: the file is a mount point. The other errors: its
/// directory cannot be written to, but the file perhaps can.
fn may_be_written_in_place(error: &io::Error) -> bool {
    let codes = [libc::EBUSY, libc::EXDEV, libc::EROFS, libc::EACCES, libc::EPERM];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Writes the content at once, with empty lines in place of the rest of a longer one, before it sets the
/// length: a reader never finds half of it. After a failure, as on a full disk, the file is as it was.
fn write_in_place(path: &Path, content: &[u8]) -> io::Result<()> {
    let before = system_file::read(path)?;
    let mut padded = content.to_vec();
    padded.resize(content.len().max(before.len()), b'\n');
    let file = OpenOptions::new().write(true).open(path)?;
    let written = file.write_all_at(&padded, 0).and_then(|()| file.set_len(content.len() as u64));
    if written.is_err() {
        let _ = file.write_all_at(&before, 0).and_then(|()| file.set_len(before.len() as u64));
    }
    written.and_then(|()| file.sync_all())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
