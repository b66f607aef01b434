//! A child in the namespaces, and weft's end of the connection to it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid};
use weft_config::exit;
use weft_host::routes::RouteError;

use crate::channel::{Channel, Reply, Request};
use crate::descriptors;
use crate::probe::Refused;

/// Why there is no network without root.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    /// The system does not let this user make namespaces, or enter them.
    #[error("{0}")]
    Refused(Refused),
    /// The process has threads already.
    #[error("namespaces are made before the first thread is started; {0} run")]
    Threads(usize),
    /// The keeper cannot be started, or is gone.
    #[error("the process that keeps the namespaces cannot be asked: {0}")]
    Keeper(#[from] io::Error),
    /// The tunnel could not be brought up, or failed.
    #[error("{message}")]
    Tunnel {
        /// What failed.
        message: String,
        /// The exit code for it.
        code: exit::Code,
        /// Whether the system allows no such tunnel: [`RootlessError::is_forbidden`].
        is_forbidden: bool,
    },
    /// The tunnel was taken down before it was up.
    #[error("the tunnel was taken down")]
    TakenDown,
    /// The process of the tunnel is gone.
    #[error("process {0}, which ran the tunnel, has ended without a word: it was killed")]
    Gone(u32),
    /// The process of the tunnel ended before the tunnel was up.
    #[error("the process that brings the tunnel up has ended without a word")]
    GoneEarly,
    /// The process of the tunnel is stopped, or hangs.
    #[error(
        "{name} does not answer within {seconds} s: its daemon{process} hangs, or the machine is overloaded"
    )]
    Silent {
        /// The name of the tunnel.
        name: String,
        /// The time limit, in seconds.
        seconds: u64,
        /// The process and its state, in parentheses; empty if the system does not tell.
        process: String,
    },
    /// A tunnel of the same name belongs to another user.
    #[error("user {0} listens on {path}, and not this one: end it, and remove the socket", path = .1.display())]
    Stranger(u32, std::path::PathBuf),
    /// This process is in the namespaces already.
    #[error("this command is in the tunnel already: run the other one without `weft exec`")]
    InsideAlready,
    /// The keeper could not do what it was asked for.
    #[error("{message}")]
    Inside {
        /// What failed, and what to do.
        message: String,
        /// Whether a permission is missing.
        is_permission: bool,
        /// Error number, if it matters: ENODEV if there is no TUN driver for this user.
        errno: i32,
    },
    /// There may be no device of either kind.
    #[error(
        "{tun}; and a veth pair cannot take its place: {veth}; `weft exec --with-proxy` and `weft proxy --stack own` \
         need no device; or run the tunnel as root (`sudo weft up`)"
    )]
    NoDevice {
        /// Why there is no TUN, and what to do.
        tun: String,
        /// Why there is no veth pair, and what to do.
        veth: Box<RootlessError>,
        /// Whether a permission is missing.
        is_permission: bool,
    },
    /// The network of the namespace cannot be configured.
    #[error(transparent)]
    Routes(#[from] RouteError),
}

impl RootlessError {
    /// Reports whether the system allows no tunnel in namespaces, whatever its configuration is.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NoDevice { .. } | Self::Tunnel { is_forbidden: true, .. })
    }

    /// Returns the exit code for the error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Refused(_)
            | Self::Inside { is_permission: true, .. }
            | Self::NoDevice { is_permission: true, .. } => exit::Code::Permission,
            Self::Routes(error) => error.exit_code(),
            Self::Tunnel { code, .. } => *code,
            Self::Threads(_)
            | Self::Keeper(_)
            | Self::TakenDown
            | Self::Gone(_)
            | Self::GoneEarly
            | Self::Silent { .. }
            | Self::Stranger(..)
            | Self::InsideAlready
            | Self::Inside { .. }
            | Self::NoDevice { .. } => exit::Code::Failure,
        }
    }
}

impl From<RootlessError> for exit::Error {
    fn from(error: RootlessError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

/// A child that is in the namespaces.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) pid: Pid,
    connection: Arc<Connection>,
}

/// The connection to a child, which any thread may use.
#[derive(Debug)]
pub(crate) struct Connection {
    /// `None` once the child has to end.
    channel: Mutex<Option<Channel>>,
}

impl Keeper {
    /// Forks a child that runs `run`, which has to answer [`Reply::Inside`] first. Call it before the first
    /// thread is started. The child keeps no descriptor but the channel and those in `kept`. Returns the
    /// descriptors of its answer too.
    pub(crate) fn fork(
        kept: &[RawFd],
        run: impl FnOnce(&Channel, Pid) -> io::Result<()>,
    ) -> Result<(Self, Vec<OwnedFd>), RootlessError> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(RootlessError::Threads(threads));
        }
        let (channel, childs) = Channel::pair()?;
        let parent = getpid();
        // SAFETY: the process has a single thread, so the child is a complete copy, in which every function
        // may be called.
        let pid = match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let run = || {
                    descriptors::close_all_but(&[kept, &[childs.as_fd().as_raw_fd()]].concat())?;
                    run(&childs, parent)
                };
                let ended = catch_unwind(AssertUnwindSafe(run));
                // SAFETY: the call does not return. What this process would do at its end is for its parent
                // to do.
                unsafe { libc::_exit(i32::from(!matches!(ended, Ok(Ok(()))))) }
            }
        };
        drop(childs);
        // From here on the child is waited for.
        let keeper = Self { pid, connection: Arc::new(Connection { channel: Mutex::new(Some(channel)) }) };
        match keeper.connection.with(Channel::receive)? {
            (Reply::Inside, namespaces) => Ok((keeper, namespaces)),
            (Reply::Refused { step, errno }, _) => {
                Err(RootlessError::Refused(Refused::explain(step, Errno::from_raw(errno))))
            }
            _ => Err(unexpected().into()),
        }
    }

    /// Returns what other threads may ask with.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The child ends when its channel does.
        drop(self.connection.channel.lock().unwrap_or_else(PoisonError::into_inner).take());
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }
}

impl Connection {
    /// Has a conversation, of one thread at a time.
    fn with<T, E: From<io::Error>>(&self, talk: impl FnOnce(&Channel) -> Result<T, E>) -> Result<T, E> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        talk(channel.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?)
    }

    /// Asks for something, and returns the warnings and the descriptors of that many answers.
    pub(crate) fn ask(
        &self,
        request: &Request,
        answers: usize,
    ) -> Result<(Vec<String>, Vec<OwnedFd>), RootlessError> {
        self.with(|channel| {
            channel.send(request, &[])?;
            let (mut warnings, mut descriptors) = (Vec::new(), Vec::new());
            for _ in 0..answers {
                match channel.receive()? {
                    (Reply::Done { warnings: more }, received) => {
                        warnings.extend(more);
                        descriptors.extend(received);
                    }
                    (Reply::Failed { message, is_permission, errno }, _) => {
                        return Err(RootlessError::Inside { message, is_permission, errno });
                    }
                    (Reply::Refused { step, errno }, _) => {
                        return Err(RootlessError::Refused(Refused::explain(step, Errno::from_raw(errno))));
                    }
                    (Reply::Inside, _) => return Err(unexpected().into()),
                }
            }
            Ok((warnings, descriptors))
        })
    }

    /// Makes a socket in the namespace.
    pub(crate) fn socket(&self, domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
        self.with(|channel| {
            channel.send(&Request::Socket { domain, kind, protocol }, &[])?;
            match channel.receive()? {
                (Reply::Done { .. }, mut sockets) => sockets.pop().ok_or_else(unexpected),
                (Reply::Failed { errno, .. }, _) => Err(io::Error::from_raw_os_error(errno)),
                _ => Err(unexpected()),
            }
        })
    }
}

pub(crate) fn unexpected() -> io::Error {
    io::Error::other("it did something else")
}
