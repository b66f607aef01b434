//! What standard output is, and which other users can access the file behind it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hang_up::is_hung_up;

/// Whether standard output was closed when this process began.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Called before `main`: there the standard library has put the null device in the place of what was closed.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions, which are called with three arguments at most.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: the call takes no pointer.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
    }
    look
};

/// Returns the error of a write if standard output was closed when this process began.
pub(super) fn closed() -> Option<io::Error> {
    WAS_CLOSED.load(Ordering::Relaxed).then(|| io::Error::from_raw_os_error(libc::EBADF))
}

fn file() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Returns the permission bits of standard output, if it is a regular file with any permission for all users.
pub(crate) fn open_to_all() -> Option<u32> {
    let metadata = file().and_then(|file| file.metadata()).ok()?;
    let mode = metadata.permissions().mode() & 0o777;
    (metadata.is_file() && mode & 0o007 != 0).then_some(mode)
}

/// Reports whether what is printed is lost: standard output is the null device. That also takes the place of
/// a descriptor that was closed when this process began.
pub(crate) fn is_lost() -> bool {
    let is_null = |own: &fs::Metadata| {
        let null = fs::metadata("/dev/null");
        own.file_type().is_char_device() && null.is_ok_and(|null| null.rdev() == own.rdev())
    };
    file().and_then(|file| file.metadata()).is_ok_and(|own| is_null(&own))
}

/// Makes sure of what was printed: in a file it is on the disk, and the reader of a pipe is still there.
pub(super) fn settle() -> io::Result<()> {
    let file = file()?;
    if is_hung_up(&file) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) }
}
