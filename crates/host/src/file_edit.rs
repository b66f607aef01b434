//! Edits of a configuration file by a command: one at a time, whole or not at all, and of nothing but the
//! text that the command has read.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_config::exit;
use weft_ipc::holder::{Held, Holder};
use zeroize::Zeroizing;

use super::platform;

/// How long another edit may take, with the reload that belongs to it.
const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(20);

/// Why a file could not be edited. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum FileEditError {
    /// The system refused something.
    #[error("{}: cannot {action} it: {error}; nothing was changed{}", file.display(), advice(error))]
    File {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The path of the file.
        file: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Its owner has no permission to write, which says that it is not to be changed.
    #[error("{}: the file is read-only; nothing was changed: `chmod u+w` lets it be edited", .0.display())]
    ReadOnly(PathBuf),
    /// Another command edits it for longer than it should.
    #[error("{}: another process{} edits it; nothing was changed: try again", .0.display(), .1)]
    Busy(PathBuf, Holder),
    /// The text is no longer the one that was read.
    #[error("{}: the file was edited meanwhile; nothing was changed: try again", .0.display())]
    Changed(PathBuf),
}

impl From<FileEditError> for exit::Error {
    fn from(error: FileEditError) -> Self {
        let code = match &error {
            FileEditError::File { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                exit::Code::Permission
            }
            // As every command that reads it.
            FileEditError::File { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                exit::Code::Configuration
            }
            _ => exit::Code::Failure,
        };
        Self::new(code, error)
    }
}

fn advice(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied { "; run weft as root" } else { "" }
}

/// A file that no other edit changes while this value lives. A command of an older weft locks the directory,
/// which other users can lock too: beside one, [`FileEditError::Changed`] keeps what it has written.
#[derive(Debug)]
pub struct FileEdit {
    file: PathBuf,
    text: Zeroizing<String>,
    _lock: Option<Lock>,
}

/// A file beside the one that is edited, since each edit replaces that. Only its owner can open it, and it is
/// removed when it is dropped.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Locks; `None` where nothing can be written, and so nothing edited.
    fn within(path: PathBuf, patience: Duration) -> Result<Option<Self>, TryLockError> {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let deadline = Instant::now() + patience;
        loop {
            let file = match platform::open_for_lock(&path) {
                Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {
                    return Ok(None);
                }
                opened => opened.map_err(TryLockError::Error)?,
            };
            match platform::try_lock(&file) {
                // The edit before this one may have removed the file meanwhile.
                Ok(()) if platform::is_same_file(&file, &path) => return Ok(Some(Self { path, file })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(INTERVAL),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if platform::is_same_file(&self.file, &self.path) {
            let _left = std::fs::remove_file(&self.path);
        }
    }
}

impl FileEdit {
    /// Waits until no other command edits the file, and reads it.
    pub fn begin(file: &Path) -> Result<Self, FileEditError> {
        Self::begin_within(file, PATIENCE)
    }

    /// As [`Self::begin`], with another time to wait.
    pub(super) fn begin_within(file: &Path, patience: Duration) -> Result<Self, FileEditError> {
        let failed = |action| move |error| FileEditError::File { action, file: file.to_owned(), error };
        // A symbolic link stays, and its target is replaced.
        let target = file.canonicalize().map_err(failed("find"))?;
        let mut path = target.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let lock = Lock::within(path.clone(), patience).map_err(|error| match error {
            TryLockError::WouldBlock => FileEditError::Busy(file.to_owned(), Holder::of(Held::Lock(&path))),
            TryLockError::Error(error) => failed("lock")(error),
        })?;
        let text = weft_config::read_regular_text(&target).map_err(failed("read"))?;
        Ok(Self { file: target, text, _lock: lock })
    }

    /// Returns the path of the file, behind symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Returns the text of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Replaces the text of the file.
    ///
    /// # Errors
    /// The file is read-only, was changed by another program since it was read, or cannot be replaced.
    pub fn replace(&mut self, text: Zeroizing<String>) -> Result<(), FileEditError> {
        refuse_read_only(&self.file)?;
        self.save(text)
    }

    /// As [`Self::replace`], also if the file is read-only: `SaveConfig` stands in the file, and allows it.
    pub(super) fn save(&mut self, text: Zeroizing<String>) -> Result<(), FileEditError> {
        let file = || self.file.clone();
        match platform::replace(&self.file, Some(&self.text), &text) {
            Ok(true) => self.text = text,
            Ok(false) => return Err(FileEditError::Changed(file())),
            Err(error) => return Err(FileEditError::File { action: "replace", file: file(), error }),
        }
        Ok(())
    }
}

/// Refuses a file that its owner may not write: for root it would be no obstacle.
pub(super) fn refuse_read_only(file: &Path) -> Result<(), FileEditError> {
    let metadata = std::fs::metadata(file).map_err(|error| FileEditError::File {
        action: "read",
        file: file.to_owned(),
        error,
    })?;
    if is_read_only(&metadata) { Err(FileEditError::ReadOnly(file.to_owned())) } else { Ok(()) }
}

fn is_read_only(metadata: &std::fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        metadata.permissions().mode() & 0o200 == 0
    }
    #[cfg(not(unix))]
    metadata.permissions().readonly()
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn new(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.to_owned())
    }

    #[test]
    fn a_file_that_may_not_be_changed_or_was_changed_meanwhile_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wg0.conf");
        let set = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(&file, "before").unwrap();
        set(0o400);
        let read_only = FileEdit::begin(&file).unwrap().replace(new("after"));
        assert!(matches!(read_only, Err(FileEditError::ReadOnly(_))), "{read_only:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
        set(0o600);
        let mut edit = FileEdit::begin(&file).unwrap();
        std::fs::write(&file, "by hand").unwrap();
        let changed = edit.replace(new("after"));
        assert!(matches!(changed, Err(FileEditError::Changed(_))), "{changed:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "by hand");
        drop(edit);
        let link = directory.path().join("link.conf");
        symlink("wg0.conf", &link).unwrap();
        let mut edit = FileEdit::begin(&link).unwrap();
        edit.replace(new("one")).unwrap();
        edit.replace(new("two")).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn edits_of_one_file_come_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wg0.conf");
        std::fs::write(&file, "").unwrap();
        // Other users can open these, and so lock them.
        let strangers = [directory.path(), &file].map(|path| File::open(path).unwrap());
        strangers.iter().for_each(|stranger| stranger.lock().unwrap());
        let mut first = FileEdit::begin(&file).unwrap();
        first.replace(new("a")).unwrap();
        // The file is another one now, and still that of the first.
        let second = FileEdit::begin_within(&file, Duration::ZERO);
        assert!(matches!(second, Err(FileEditError::Busy(..))), "{second:?}");
        drop(first);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut edit = FileEdit::begin(&file).unwrap();
                    let text = format!("{}b", edit.text());
                    edit.replace(new(&text)).unwrap();
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "abbbbbbbb");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "a lock is left");
    }

    #[test]
    fn a_lock_that_others_can_open_or_have_put_there_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (file, lock) = (directory.path().join("wg0.conf"), directory.path().join("wg0.conf.lock"));
        std::fs::write(&file, "").unwrap();
        let set = |mode| std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(&lock, "").unwrap();
        set(0o644);
        let open = FileEdit::begin(&file);
        assert!(matches!(&open, Err(FileEditError::File { action: "lock", .. })), "{open:?}");
        std::fs::remove_file(&lock).unwrap();
        symlink(&file, &lock).unwrap();
        let link = FileEdit::begin(&file);
        assert!(matches!(&link, Err(FileEditError::File { action: "lock", .. })), "{link:?}");
        std::fs::remove_file(&lock).unwrap();
        // What a crash has left.
        std::fs::write(&lock, "").unwrap();
        set(0o600);
        drop(FileEdit::begin(&file).unwrap());
        assert!(!lock.exists());
    }
}
