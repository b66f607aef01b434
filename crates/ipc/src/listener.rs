//! A Unix socket that a daemon listens on: made for its owner alone, over what a dead daemon left, and removed at the
//! end if it is still ours.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::runtime_dir::{self, UntrustedError};

/// Only the owner may connect.
const MODE: u32 = 0o600;
/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long others may take to make their sockets in the same directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_TICK: Duration = Duration::from_millis(5);

/// Why nobody can listen there.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A daemon answers on the socket.
    #[error(
        "another daemon serves interface {} on {}; end it first, or choose another name", interface(path), path.display()
    )]
    Served {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has the socket's name.
    #[error("{} is in the way: it is not a socket; remove it", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// Others may change what is in the runtime directory.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ListenError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// What kind of error the operating system gave.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Served { .. } => io::ErrorKind::AddrInUse,
            Self::InTheWay { .. } => io::ErrorKind::AlreadyExists,
            Self::Untrusted(UntrustedError::Io { error, .. }) => error.kind(),
            Self::Untrusted(_) => io::ErrorKind::Other,
            Self::Io { source, .. } => source.kind(),
        }
    }
}

/// The interface that a socket is for: what its directory is called, or its file in a directory that several share.
fn interface(path: &Path) -> std::borrow::Cow<'_, str> {
    let is_control = path.file_name() == Some(OsStr::new(runtime_dir::CONTROL_SOCKET));
    let name = if is_control { path.parent().and_then(Path::file_name) } else { path.file_stem() };
    name.unwrap_or(OsStr::new("?")).to_string_lossy()
}

/// The file of a socket. Dropping it removes the file, if it is still the same one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file that is there now.
    ///
    /// # Errors
    /// When there is none.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        let file = fs::symlink_metadata(&path)?;
        Ok(Self { path, identity: (file.dev(), file.ino()) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to the file. A file that cannot be looked at is taken for the same.
    pub fn is_own(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(file) => (file.dev(), file.ino()) == self.identity,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_own()
            && let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Listens on `path`, which only its owner may connect to. The directory is made if it is missing, with the rights
/// `directory_mode`; a socket that nobody answers on is replaced. The socket does not block.
///
/// # Errors
/// Those of [`ListenError`]; a daemon that answers is never disturbed.
pub fn listen(path: &Path, directory_mode: u32) -> Result<(UnixListener, SocketFile), ListenError> {
    let failed = |action| ListenError::io(action, path);
    let directory = directory_of(path);
    make_directory(directory, directory_mode).map_err(ListenError::io("make the directory", directory))?;
    let _lock = lock(directory)?;
    remove_stale(path)?;
    // wg(8) removes a socket that refuses it, and one that is bound refuses until it listens: it gets its name when it
    // does.
    let unfinished = unfinished(path);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(ListenError::io("remove", &unfinished)(error));
        }
        _ => {}
    }
    let socket = bind(&unfinished).map_err(failed("bind the socket"))?;
    let finish = || {
        socket.listen(BACKLOG).map_err(failed("listen on"))?;
        fs::rename(&unfinished, path).map_err(failed("name the socket"))?;
        SocketFile::at(path.to_owned()).map_err(failed("find the socket"))
    };
    let file = finish().inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
    socket.set_nonblocking(true).map_err(failed("listen on"))?;
    Ok((socket.into(), file))
}

/// The directories above are for others to pass through.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// A socket whose file has the rights of [`MODE`] from its first moment on, whatever the umask is: Linux
/// gives it those of the socket. Elsewhere it gets them before anything can connect, which is when the socket
/// listens.
fn bind(path: &Path) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    protect(&socket);
    socket.bind(&address)?;
    let make_private = |file: fs::Metadata| match file.mode() & 0o777 {
        MODE => Ok(()),
        _ => fs::set_permissions(path, fs::Permissions::from_mode(MODE)),
    };
    let protected = fs::symlink_metadata(path).and_then(make_private);
    protected.inspect_err(|_| drop(fs::remove_file(path)))?;
    Ok(socket)
}

/// Gives a socket that is not bound yet the rights that its file is to have.
fn protect(socket: &Socket) {
    // Not every system lets them be changed.
    let _ = fchmod(socket, Mode::S_IRUSR | Mode::S_IWUSR);
}

/// Removes a socket that no process listens on; says whether there was one.
///
/// # Errors
/// Those of [`ListenError`]: [`ListenError::Served`] where a process does.
pub fn remove_dead(path: &Path) -> Result<bool, ListenError> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    let _lock = lock(directory_of(path))?;
    remove_stale(path)
}

/// What a socket is called until it listens; nobody looks for a name that does not end in `.sock`.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Two daemons that both find a socket left behind must not replace each other's.
fn lock(directory: &Path) -> Result<File, ListenError> {
    let failed = || ListenError::io("lock the directory", directory);
    let file = File::open(directory).map_err(failed())?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => std::thread::sleep(LOCK_TICK),
            Err(error) => return Err(failed()(error.into())),
        }
    }
}

/// Removes a socket that nobody answers on. With the directory locked.
fn remove_stale(path: &Path) -> Result<bool, ListenError> {
    let failed = |action| ListenError::io(action, path);
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ListenError::InTheWay { path: path.to_owned() });
        }
        Ok(_) => {}
        Err(error) if gone(&error) => return Ok(false),
        Err(error) => return Err(failed("look at")(error)),
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if gone(&error) => return Ok(false),
        // A daemon whose queue of connections is full does not answer at once, and is there all the same.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed("connect to")(error)),
        _ => return Err(ListenError::Served { path: path.to_owned() }),
    }
    match fs::remove_file(path) {
        Err(error) if gone(&error) => Ok(false),
        removed => removed.map(|()| true).map_err(failed("remove the socket of a dead daemon,")),
    }
}

fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

#[cfg(test)]
#[path = "listener/tests.rs"]
mod tests;
