//! The listening socket and its file.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, umask};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::InterfaceName;
use crate::control::uapi::SOCKET_DIRECTORY;
use crate::exit;

/// How long others may take to make their sockets in the same directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_TICK: Duration = Duration::from_millis(5);

/// Why there is no socket to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A daemon answers on the socket.
    #[error("another daemon serves interface {name} on {}; end it first, or choose another name", path.display())]
    Served {
        /// The interface.
        name: InterfaceName,
        /// The socket's file.
        path: PathBuf,
    },
    /// Something else has the socket's name.
    #[error("{} is in the way: it is not a socket; remove it", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// The descriptor that was handed in cannot be used.
    #[error("the descriptor that was handed in for the UAPI is not a listening Unix socket: {0}")]
    Descriptor(#[source] io::Error),
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

impl SocketError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                exit::Code::Permission
            }
            Self::Descriptor(_) => exit::Code::Usage,
            _ => exit::Code::Failure,
        }
    }
}

/// A listening socket. Clients may connect from now on, and wait until it is served. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: UnixListener,
    pub(super) file: Option<SocketFile>,
}

impl Listener {
    /// Makes the socket of an interface where wg(8) looks for it, for its owner only. A socket that a daemon left
    /// behind is replaced.
    ///
    /// # Errors
    /// Those of [`SocketError`]; a daemon that answers is never disturbed.
    pub fn open(name: &InterfaceName) -> Result<Self, SocketError> {
        Self::open_in(Path::new(SOCKET_DIRECTORY), name)
    }

    /// The same in another directory.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_in(directory: &Path, name: &InterfaceName) -> Result<Self, SocketError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SocketError::Io { action, path, source }
        };
        let make = DirBuilder::new().recursive(true).mode(0o755).create(directory);
        make.map_err(failed("make the directory", directory))?;
        // Two daemons that both find a socket left behind must not replace each other's.
        let _lock = lock(directory).map_err(failed("lock the directory", directory))?;
        let path = directory.join(format!("{name}.sock"));
        let socket = match bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(&path, name)?;
                bind(&path)
            }
            other => other,
        };
        let socket = socket.map_err(failed("listen on", &path))?;
        socket.set_nonblocking(true).map_err(failed("listen on", &path))?;
        let file = SocketFile::at(path.clone()).map_err(failed("find", &path))?;
        Ok(Self { socket, file: Some(file) })
    }

    /// Takes over a listening socket that whoever started the daemon made. Its file is watched and removed like one
    /// of its own, if it can be seen from here.
    ///
    /// # Errors
    /// [`SocketError::Descriptor`] if it is none.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, SocketError> {
        let listens = nix::sys::socket::getsockopt(&descriptor, nix::sys::socket::sockopt::AcceptConn);
        let socket = UnixListener::from(descriptor);
        let address = socket.local_addr().map_err(SocketError::Descriptor)?;
        if !listens.map_err(|errno| SocketError::Descriptor(errno.into()))? {
            return Err(SocketError::Descriptor(io::Error::other("it does not listen")));
        }
        socket.set_nonblocking(true).map_err(SocketError::Descriptor)?;
        let path = address.as_pathname().filter(|path| path.is_absolute());
        let file = path.and_then(|path| SocketFile::at(path.to_owned()).ok());
        if file.is_none() {
            tracing::debug!("the socket that was handed in has no file here: nobody will notice its removal");
        }
        Ok(Self { socket, file })
    }
}

fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_TICK);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Binds and listens. Nobody but the owner may connect (unix(7): that needs the permission to write).
fn bind(path: &Path) -> io::Result<UnixListener> {
    // The mask is the whole process's: two threads at once would put back each other's.
    static MASK: Mutex<()> = Mutex::new(());
    let _one = MASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = umask(Mode::from_bits_truncate(0o077));
    let bound = UnixListener::bind(path);
    umask(before);
    bound
}

/// Removes a socket that nobody answers on.
fn remove_stale(path: &Path, name: &InterfaceName) -> Result<(), SocketError> {
    let failed = |action| move |source| SocketError::Io { action, path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(SocketError::InTheWay { path: path.to_owned() });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
    }
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    match connect(path) {
        Err(error) if refused(&error) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // A daemon whose queue of connections is full does not answer at once, and is there all the same.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed("connect to")(error)),
        _ => return Err(SocketError::Served { name: name.clone(), path: path.to_owned() }),
    }
    std::fs::remove_file(path).map_err(failed("remove"))
}

fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

/// The file of a socket. Dropping it removes the file, if it is still the same one.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: PathBuf) -> io::Result<Self> {
        let file = std::fs::symlink_metadata(&path)?;
        Ok(Self { path, identity: (file.dev(), file.ino()) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to the file. A file that cannot be looked at is taken for the same.
    pub(super) fn is_own(&self) -> bool {
        match std::fs::symlink_metadata(&self.path) {
            Ok(file) => (file.dev(), file.ino()) == self.identity,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_own()
            && let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}
