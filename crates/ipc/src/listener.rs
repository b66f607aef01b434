//! A Unix socket that a daemon listens on. Only its owner may connect. It replaces the socket of a dead
//! daemon, and its file is removed at the end, unless another daemon has replaced it.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::Source;
use crate::holder::{Held, Holder, unfinished, unfinished_at_random};
use crate::runtime_dir::{self, UntrustedError};

/// Only the owner may connect.
const MODE: u32 = 0o600;
/// The number of clients that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long other daemons may hold the lock on the directory while they create their sockets.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_TICK: Duration = Duration::from_millis(5);

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A daemon answers on the socket.
    #[error(
        "another daemon serves interface {} on {}{holder}; end it first, or choose another name",
        interface(path), path.display()
    )]
    Served {
        /// The path of the socket.
        path: PathBuf,
        holder: Holder,
    },
    /// A file that is not a socket has the socket's name.
    #[error("{} is in the way: it is not a socket; remove it", path.display())]
    InTheWay {
        /// The path of the file.
        path: PathBuf,
    },
    /// Other users may change the contents of the runtime directory.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl ListenError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// Returns the kind of the operating system's error, or the closest kind for the other errors.
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

/// Returns the interface that a socket belongs to: the name of its directory for a control socket, else the
/// stem of its file name.
fn interface(path: &Path) -> std::borrow::Cow<'_, str> {
    let is_control = path.file_name() == Some(OsStr::new(runtime_dir::CONTROL_SOCKET));
    let name = if is_control { path.parent().and_then(Path::file_name) } else { path.file_stem() };
    name.unwrap_or(OsStr::new("?")).to_string_lossy()
}

/// The file of a socket. Dropping it removes the file, unless it was replaced. Drop it before the socket is
/// closed: the number of its inode is not given to another file as long as the socket is open, and no other
/// daemon takes it for that of a dead one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Refers to the file that exists at `path` now.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        let file = fs::symlink_metadata(&path)?;
        Ok(Self { path, identity: (file.dev(), file.ino()) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reports whether the path still leads to this file. True also if the file cannot be examined.
    pub fn is_own(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(file) => (file.dev(), file.ino()) == self.identity,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // No other daemon makes a socket of this name between the look and the removal.
        let _lock = lock(directory_of(&self.path));
        if self.is_own()
            && let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Listens on `path`; only its owner may connect. Creates the directory with mode `directory_mode` if it is
/// missing, and replaces a socket that refuses connections. The socket is non-blocking.
///
/// # Errors
/// Those of [`ListenError`]. The socket of a daemon that answers is left as it is.
pub fn listen(path: &Path, directory_mode: u32) -> Result<(UnixListener, SocketFile), ListenError> {
    let failed = |action| ListenError::io(action, path);
    let directory = directory_of(path);
    make_directory(directory, directory_mode).map_err(ListenError::io("make the directory", directory))?;
    let _lock = lock(directory)?;
    remove_stale(path)?;
    // wg(8) removes a socket that refuses a connection, and a bound socket refuses connections until it
    // listens. So the socket is bound under another name, and renamed once it listens.
    let (socket, unfinished) = bind_unfinished(path).map_err(failed("bind the socket"))?;
    let finish = || {
        socket.listen(BACKLOG).map_err(failed("listen on"))?;
        fs::rename(&unfinished, path).map_err(failed("name the socket"))?;
        SocketFile::at(path.to_owned()).map_err(failed("find the socket"))
    };
    let file = finish().inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
    socket.set_nonblocking(true).map_err(failed("listen on"))?;
    Ok((socket.into(), file))
}

/// Names this process to clients as the one that listens, in place of that which made the socket and forked.
///
/// # Errors
/// Those of listen(2).
pub fn listen_as_this_process(socket: &UnixListener) -> io::Result<()> {
    socket2::SockRef::from(socket).listen(BACKLOG)
}

/// Creates a directory with this mode. Parents are created with mode 0755, so that other users can pass
/// through.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Binds a socket under a name that it has until it listens. The file of a daemon that died is replaced; one
/// that cannot be, as that of another user in /tmp, is not in the way.
fn bind_unfinished(path: &Path) -> io::Result<(Socket, PathBuf)> {
    let usual = unfinished(path);
    let removed = match fs::remove_file(&usual) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    if let Ok(socket) = removed.and_then(|()| bind(&usual)) {
        return Ok((socket, usual));
    }
    let other = unfinished_at_random(path);
    Ok((bind(&other)?, other))
}

/// Binds a socket. On Linux its file has mode [`MODE`] from the moment it exists, whatever the umask is,
/// because the file inherits the mode of the socket. Elsewhere the mode is set before the socket listens, and
/// so before a client can connect.
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

/// Sets the mode of an unbound socket, which its file inherits.
fn protect(socket: &Socket) {
    // Not every system can change the mode of a socket.
    let _ = fchmod(socket, Mode::S_IRUSR | Mode::S_IWUSR);
}

/// Removes a socket that no process listens on. Reports whether there was one.
///
/// # Errors
/// Those of [`ListenError`]: [`ListenError::Served`] if a process listens.
pub fn remove_dead(path: &Path) -> Result<bool, ListenError> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    let _lock = lock(directory_of(path))?;
    remove_stale(path)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks the directory: two daemons that both find a dead daemon's socket must not replace each other's.
/// Where other users can open it, they can hold its lock for as long as they want: it is not waited for, and
/// the claim of the interface alone keeps two daemons apart (`host/src/record.rs`).
fn lock(directory: &Path) -> Result<File, ListenError> {
    let failed = || ListenError::io("lock the directory", directory);
    let file = File::open(directory).map_err(failed())?;
    let is_shared = is_shared(&file.metadata().map_err(failed())?);
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if is_shared => {
                let holder = Holder::of(Held::Lock(directory));
                tracing::debug!(
                    "another process{holder} keeps {} locked: going on without",
                    directory.display()
                );
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => thread::sleep(LOCK_TICK),
            Err(error) => return Err(failed()(error.into())),
        }
    }
}

/// Reports whether other users can open a directory.
fn is_shared(directory: &fs::Metadata) -> bool {
    directory.mode() & 0o044 != 0 || directory.uid() != nix::unistd::geteuid().as_raw()
}

/// Removes a socket that no process listens on. The caller holds the lock on the directory.
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
        // Connecting to a live daemon with a full backlog fails with EAGAIN.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed("connect to")(error)),
        _ => {
            let holder = Holder::of(Held::Socket(path));
            return Err(ListenError::Served { path: path.to_owned(), holder });
        }
    }
    match fs::remove_file(path) {
        Err(error) if gone(&error) => Ok(false),
        removed => removed.map(|()| true).map_err(failed("remove the socket of a dead daemon,")),
    }
}

/// Accepts a client of a socket that [`listen`] has made.
///
/// # Errors
/// Those of accept(2).
pub async fn accept(socket: &tokio::net::UnixListener) -> io::Result<(tokio::net::UnixStream, Source)> {
    let (stream, _) = socket.accept().await?;
    let source = Source::from(&stream);
    Ok((stream, source))
}

fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

#[cfg(test)]
#[path = "listener/tests.rs"]
mod tests;
