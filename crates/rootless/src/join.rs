//! A command joins the tunnel of its file, or starts the process that runs it.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, geteuid, setsid};
use weft_config::{InterfaceName, exit};
use weft_confine::{EndProcessOnPanic, Role};
use weft_ipc::Connection;
use weft_ipc::holder::{state_of, with_state};
use weft_ipc::listener::{self, ListenError};
use weft_ipc::runtime_dir;

use crate::ask::{RootlessError, unexpected};
use crate::channel::Channel;
use crate::descriptors;
use crate::inside::Inside;
use crate::members::{Door, Members, TunnelState, Word, from_memory, knock, wait_for_ear};

/// The name of the socket in the directory of the interface.
const SOCKET: &str = "join.sock";
/// The mode of that directory: other users can see nothing in it.
const DIRECTORY_MODE: u32 = 0o700;
/// How long a command waits for a tunnel to hear it, and one that has ended for the tunnel to end with it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often another command may be faster: it starts a tunnel, or its tunnel ends and takes the directory
/// with it.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// The membership of this process in a tunnel. Dropping it leaves the tunnel, which ends with its last
/// member.
#[derive(Debug)]
pub struct Member {
    channel: Arc<Channel>,
    /// The process of the tunnel, if this one has started it.
    started: Option<Pid>,
    state: TunnelState,
    is_leaving: Arc<AtomicBool>,
    /// What ended the connection, if a thread hears it.
    last: Option<Receiver<Last>>,
}

/// What a member hears of its tunnel.
#[derive(Debug)]
pub enum News {
    /// It was changed.
    Changed(TunnelState),
    /// It was taken down.
    Down,
    /// It failed, or its process is gone.
    Failed(RootlessError),
}

/// What ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// The tunnel runs on.
    Left,
    /// The process of the tunnel has ended.
    Ended,
}

/// Joins the tunnel of this name that the user runs, or starts a process that runs it: `run` is called there,
/// and its result is told to the members. Without a directory no other command can join. Returns when the
/// tunnel is up, and a child of this process is in its namespaces. Call it before the first thread is
/// started, and before a key is read.
///
/// # Errors
/// Those of `run`; the namespaces cannot be entered.
pub fn join(
    directory: Option<&Path>,
    name: &InterfaceName,
    run: impl FnOnce(&Members) -> Result<(), exit::Error>,
) -> Result<(Member, Inside), RootlessError> {
    let mut directory = directory.map(|directory| runtime_dir::instance(directory, name));
    let mut run = Some(run);
    let mut tries = 0;
    loop {
        let (channel, theirs) = Channel::pair()?;
        match find(directory.as_deref()) {
            Ok(Found::Tunnel(connection)) => {
                let process = connection.server_process();
                knock(&connection, theirs)?;
                match wait(channel, name, process, None) {
                    // It was about to end: now it has.
                    Err(RootlessError::GoneEarly) => {}
                    joined => return joined,
                }
            }
            Ok(Found::None(door)) => {
                let run = run.take().ok_or_else(unexpected)?;
                let channels = Channels { members: channel, tunnels: theirs };
                let (channel, pid) = start(channels, door, run)?;
                return wait(channel, name, u32::try_from(pid.as_raw()).ok(), Some(pid));
            }
            Err(Missed::Silent(process)) => return Err(silent(name, process)),
            Err(Missed::Stranger(user, path)) => return Err(RootlessError::Stranger(user, path)),
            Err(Missed::Moment) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Err(missed) => {
                tracing::warn!("no other command can join this tunnel: {missed}");
                directory = None;
            }
        }
    }
}

fn silent(name: &InterfaceName, process: Option<u32>) -> RootlessError {
    let (name, seconds) = (name.to_string(), PATIENCE.as_secs());
    RootlessError::Silent { name, seconds, process: with_state(process) }
}

/// What there is of a tunnel.
enum Found {
    Tunnel(Connection),
    /// None, but a socket for it, unless there is no directory.
    None(Option<Door>),
}

/// Why neither a tunnel nor a socket for it is there.
#[derive(Debug, thiserror::Error)]
enum Missed {
    #[error("another process was faster, again and again")]
    Moment,
    #[error("the tunnel does not answer")]
    Silent(Option<u32>),
    #[error("user {0} listens on {path}", path = .1.display())]
    Stranger(u32, std::path::PathBuf),
    #[error(transparent)]
    Listen(ListenError),
}

fn find(directory: Option<&Path>) -> Result<Found, Missed> {
    let Some(directory) = directory else { return Ok(Found::None(None)) };
    let path = directory.join(SOCKET);
    let deadline = Instant::now() + PATIENCE;
    match Connection::connect(&path, deadline) {
        Ok(connection) => {
            match connection.server().map_err(|_| Missed::Moment)? {
                Some(user) if user != geteuid().as_raw() => return Err(Missed::Stranger(user, path)),
                _ => {}
            }
            wait_for_ear(&connection, deadline).map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => Missed::Silent(connection.server_process()),
                _ => Missed::Moment,
            })?;
            return Connection::connect(&path, deadline).map(Found::Tunnel).map_err(|_| Missed::Moment);
        }
        // More commands wait already than the socket takes.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(Missed::Silent(None)),
        Err(_) => {}
    }
    let unmade = |source| {
        Missed::Listen(ListenError::Io { action: "make the directory", path: directory.to_owned(), source })
    };
    match runtime_dir::make(directory) {
        // A tunnel that ended removed the one above.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Missed::Moment),
        made => made.map_err(unmade)?,
    }
    match listener::listen(&path, DIRECTORY_MODE) {
        Ok((socket, file)) => Ok(Found::None(Some(Door { socket, file }))),
        Err(ListenError::Served { .. }) => Err(Missed::Moment),
        // The directory was removed by a tunnel that ended.
        Err(ListenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(Missed::Moment)
        }
        Err(error) => Err(Missed::Listen(error)),
    }
}

/// Both ends of the connection between the first member and the tunnel.
struct Channels {
    members: Channel,
    tunnels: Channel,
}

/// Forks the process of the tunnel. It is in no session of a terminal, and has nothing of what this process
/// was given but standard error.
fn start(
    channels: Channels,
    door: Option<Door>,
    run: impl FnOnce(&Members) -> Result<(), exit::Error>,
) -> Result<(Channel, Pid), RootlessError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(RootlessError::Threads(threads));
    }
    let Channels { members, tunnels } = channels;
    // SAFETY: the process has a single thread, so the child is a complete copy, in which every function may
    // be called.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Parent { child } => {
            if let Some(Door { file, .. }) = door {
                // The child removes it.
                std::mem::forget(file);
            }
            Ok((members, child))
        }
        ForkResult::Child => {
            drop(members);
            let run = || {
                setsid()?;
                prctl::set_name(c"weft-tunnel")?;
                descriptors::close_inherited()?;
                let members = Members::new(tunnels, door)?;
                let result = run(&members);
                members.end(result);
                io::Result::Ok(())
            };
            let ended = catch_unwind(AssertUnwindSafe(run));
            std::process::exit(i32::from(!matches!(ended, Ok(Ok(())))))
        }
    }
}

/// Waits until the tunnel is up, which may take long unless its process is stopped, and enters its
/// namespaces.
fn wait(
    channel: Channel,
    name: &InterfaceName,
    process: Option<u32>,
    started: Option<Pid>,
) -> Result<(Member, Inside), RootlessError> {
    let is_stopped = || process.and_then(state_of).is_some_and(|state| state.starts_with('T'));
    while !channel.is_ready(PATIENCE)? {
        if is_stopped() {
            return Err(silent(name, process));
        }
    }
    let failed = |error| {
        // It has told everything that it had to tell.
        reap(started);
        Err(error)
    };
    let (memory, namespaces) = match channel.receive() {
        Ok((Word::Up, descriptors)) => {
            let [memory, user, network] = <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| unexpected())?;
            (memory, [user, network])
        }
        Ok((Word::Failed { message, code, is_forbidden }, _)) => {
            return failed(RootlessError::Tunnel { message, code, is_forbidden });
        }
        Ok((Word::Down, _)) => return failed(RootlessError::TakenDown),
        Ok(_) => return Err(unexpected().into()),
        Err(_) => return failed(RootlessError::GoneEarly),
    };
    let member = Member {
        channel: Arc::new(channel),
        started,
        state: from_memory(&memory)?,
        is_leaving: Arc::default(),
        last: None,
    };
    let inside = Inside::enter(namespaces)?;
    Ok((member, inside))
}

fn reap(started: Option<Pid>) {
    if let Some(pid) = started {
        while waitpid(pid, None) == Err(Errno::EINTR) {}
    }
}

impl Member {
    /// Returns what the tunnel said when this process joined it.
    pub fn state(&self) -> &TunnelState {
        &self.state
    }

    /// Reports whether this process has started the tunnel.
    pub fn has_started_it(&self) -> bool {
        self.started.is_some()
    }

    /// Hears what the tunnel says from now on, on a thread. Nothing comes after its end.
    ///
    /// # Errors
    /// The system cannot create the thread.
    pub fn hear(&mut self, mut on_news: impl FnMut(News) + Send + 'static) -> io::Result<()> {
        let (channel, process, is_leaving) =
            (Arc::clone(&self.channel), self.state.process, Arc::clone(&self.is_leaving));
        let (end, last) = mpsc::sync_channel(1);
        let hear = move || {
            let _guard = EndProcessOnPanic;
            weft_confine::thread(Role::Member);
            // What it calls is dropped before this process goes on to its end.
            let last = hear(&channel, process, move |news| {
                if !is_leaving.load(Ordering::Acquire) {
                    on_news(news);
                }
            });
            let _ = end.send(last);
        };
        std::thread::Builder::new().name("weft-member".to_owned()).spawn(hear)?;
        self.last = Some(last);
        Ok(())
    }
}

/// Hears everything that the tunnel says.
fn hear(channel: &Channel, process: u32, mut on_news: impl FnMut(News)) -> Last {
    let mut is_told = false;
    loop {
        match channel.receive() {
            Ok((Word::Up | Word::Changed, descriptors)) => {
                match descriptors.first().map(from_memory) {
                    Some(Ok(state)) => on_news(News::Changed(state)),
                    _ => tracing::warn!("cannot read what has changed in the tunnel"),
                }
                continue;
            }
            Ok((Word::Left, _)) => return Last::Left,
            Ok((Word::Down, _)) => on_news(News::Down),
            Ok((Word::Failed { message, code, is_forbidden }, _)) => {
                on_news(News::Failed(RootlessError::Tunnel { message, code, is_forbidden }));
            }
            Err(_) => {
                if !is_told {
                    on_news(News::Failed(RootlessError::Gone(process)));
                }
                return Last::Ended;
            }
        }
        is_told = true;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.is_leaving.store(true, Ordering::Release);
        if self.channel.finish().is_err() {
            return;
        }
        // The last member waits until nothing of the tunnel is left.
        if self.last.is_none() {
            // A failure to start the thread is that to wait.
            let _ = self.hear(|_| {});
        }
        let last = self.last.as_ref().map(|last| last.recv_timeout(PATIENCE));
        if last == Some(Ok(Last::Ended)) {
            reap(self.started);
        }
    }
}
