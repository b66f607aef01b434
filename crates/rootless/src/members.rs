//! The commands that use a tunnel, as the process of the tunnel has them. Each is a connection; its end is
//! the end of the command's membership, and the tunnel ends with the last one.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::dup2_stderr;
use serde::{Deserialize, Serialize};
use weft_config::{Dns, exit};
use weft_confine::{EndProcessOnPanic, Role};
use weft_ipc::Connection;
use weft_ipc::listener::{self, SocketFile};
use weft_ipc::runtime_dir;

use crate::ask::RootlessError;
use crate::channel::Channel;
use crate::namespace::Namespace;

/// Connections without a first message so far. The oldest one gives way.
const MOST_CALLERS: usize = 64;
/// A process without a free descriptor does not keep a processor busy.
const PAUSE: Duration = Duration::from_millis(10);

/// What the members of a tunnel know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelState {
    /// The process that runs it.
    pub process: u32,
    /// The file that it was brought up from.
    pub file: PathBuf,
    /// A hash of the text that is in force.
    pub text_hash: u64,
    /// The options that it was brought up with.
    pub options: Vec<String>,
    /// The file's name servers.
    pub dns: Dns,
    /// The prefixes of each of its peers.
    pub allowed_ips: Vec<Vec<IpNet>>,
}

/// The first message of a member, over the socket of the tunnel, with its end of a channel and its standard
/// error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {}

/// What the tunnel says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It is up: a [`TunnelState`] in memory, and the user and the network namespace.
    Up,
    /// It was changed: a [`TunnelState`] in memory.
    Changed,
    /// It was taken down.
    Down,
    /// It could not be brought up, or failed.
    Failed { message: String, code: exit::Code, is_forbidden: bool },
    /// The member has left, and the tunnel runs on.
    Left,
}

/// The socket that members connect to.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) socket: UnixListener,
    pub(crate) file: SocketFile,
}

/// The members of the tunnel that this process runs.
#[derive(Debug)]
pub struct Members {
    state: Arc<Mutex<State>>,
    door: Option<Door>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The oldest one first: standard error of this process is that of the first.
    members: Vec<Arc<Guest>>,
    /// Commands that came while it ends. They hear nothing but the end of their connection.
    late: Vec<Arc<Guest>>,
    /// Their processes.
    processes: Arc<Mutex<Vec<u32>>>,
}

#[derive(Debug)]
enum Phase {
    Starting,
    /// The current [`TunnelState`] in memory, and the namespaces.
    Up(OwnedFd, Arc<[OwnedFd; 2]>),
    /// A command that connects now waits for the end of this process, and starts another one.
    Ending,
}

#[derive(Debug)]
struct Guest {
    channel: Channel,
    stderr: OwnedFd,
    process: u32,
}

impl Members {
    pub(crate) fn new(first: Channel, door: Option<Door>) -> io::Result<Self> {
        if let Some(door) = &door {
            // The first command has made the socket, and forked this process.
            listener::listen_as_this_process(&door.socket)?;
        }
        let first = Guest::new(first, io::stderr().as_fd().try_clone_to_owned()?)?;
        let state = State {
            phase: Phase::Starting,
            processes: Arc::new(Mutex::new(vec![first.process])),
            members: vec![Arc::new(first)],
            late: Vec::new(),
        };
        Ok(Self { state: Arc::new(Mutex::new(state)), door })
    }

    /// Lets members come and go, on a thread. `on_last` is called once, when the last one has left.
    ///
    /// # Errors
    /// The system cannot create the thread.
    pub fn serve(&self, on_last: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let state = Arc::clone(&self.state);
        let door = self.door.as_ref().map(|door| door.socket.try_clone()).transpose()?;
        let serve = move || {
            let _guard = EndProcessOnPanic;
            weft_confine::thread(Role::Member);
            if let Err(error) = serve(&state, door.as_ref()) {
                tracing::error!("cannot follow the commands that use the tunnel: {error}");
            }
            on_last();
        };
        std::thread::Builder::new().name("weft-members".to_owned()).spawn(serve).map(drop)
    }

    /// Returns the processes of the members, as they are at any time.
    pub fn processes(&self) -> Arc<Mutex<Vec<u32>>> {
        Arc::clone(&lock(&self.state).processes)
    }

    /// Tells the members that the tunnel is up.
    ///
    /// # Errors
    /// The system has no memory for the message.
    pub fn up(&self, tunnel: &TunnelState, namespace: &Namespace) -> io::Result<()> {
        let memory = in_memory(tunnel)?;
        let mut state = lock(&self.state);
        if let Phase::Starting = state.phase {
            state.phase = Phase::Up(memory, Arc::clone(namespace.descriptors()));
            state.members.iter().for_each(|guest| state.welcome(guest));
        }
        Ok(())
    }

    /// Returns what tells the members of a change: it gets the new state from the present one.
    pub fn changes(&self) -> impl Fn(&dyn Fn(&mut TunnelState)) -> io::Result<()> + Send + 'static {
        let state = Arc::clone(&self.state);
        move |change| {
            let mut state = lock(&state);
            let Phase::Up(memory, _) = &mut state.phase else { return Ok(()) };
            let mut tunnel = from_memory(memory)?;
            change(&mut tunnel);
            *memory = in_memory(&tunnel)?;
            if let Phase::Up(memory, _) = &state.phase {
                state.members.iter().for_each(|guest| guest.tell(&Word::Changed, &[memory.as_fd()]));
            }
            Ok(())
        }
    }

    /// Returns what is to be called as soon as the tunnel ends, for whatever reason: no command joins it from
    /// then on.
    pub fn ending(&self) -> impl FnOnce() + Send + 'static {
        let state = Arc::clone(&self.state);
        move || lock(&state).phase = Phase::Ending
    }

    /// Tells the members how the tunnel ended. Their connections end with this process.
    pub(crate) fn end(self, result: Result<(), exit::Error>) {
        let word = match result {
            Ok(()) => Word::Down,
            Err(error) => Word::Failed {
                message: error.to_string(),
                code: error.code(),
                is_forbidden: error.cause().is_some_and(RootlessError::is_forbidden),
            },
        };
        let mut state = lock(&self.state);
        state.phase = Phase::Ending;
        state.members.iter().for_each(|guest| guest.tell(&word, &[]));
        drop(state);
        // Everything else is gone already: a command that finds no socket may start another tunnel.
        if let Some(Door { file, .. }) = self.door {
            let directory = file.path().parent().map(Path::to_owned);
            drop(file);
            directory.iter().for_each(|directory| runtime_dir::leave(directory));
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A thread that panics ends the process.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until the last member has left.
fn serve(state: &Mutex<State>, door: Option<&UnixListener>) -> io::Result<()> {
    // Connections without a message so far, the oldest one first. None is waited for alone.
    let mut callers: Vec<Channel> = Vec::new();
    loop {
        let mut guests = lock(state).members.clone();
        let descriptors = door.iter().map(|door| door.as_fd()).chain(callers.iter().map(Channel::as_fd));
        let descriptors = descriptors.chain(guests.iter().map(|guest| guest.channel.as_fd()));
        let mut ready = wait(descriptors)?.into_iter();
        let mut is_ready = || ready.next() == Some(true);
        let door = door.filter(|_| is_ready());
        let (heard, silent): (Vec<_>, _) = callers.into_iter().partition(|_| is_ready());
        callers = silent;
        guests.retain(|_| is_ready());
        for caller in heard {
            match hear(&caller) {
                Ok(guest) => lock(state).add(Arc::new(guest)),
                // A command asks whether it is heard.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => tracing::debug!("a command cannot use the tunnel: {error}"),
            }
        }
        match door.map(UnixListener::accept) {
            Some(Ok((stream, _))) => {
                callers.drain(..(callers.len() + 1).saturating_sub(MOST_CALLERS));
                callers.push(OwnedFd::from(stream).into());
            }
            Some(Err(error)) => {
                tracing::debug!("a command cannot use the tunnel: {error}");
                std::thread::sleep(PAUSE);
            }
            None => {}
        }
        for guest in guests {
            if lock(state).remove(&guest)? {
                return Ok(());
            }
        }
    }
}

/// Waits until there is something at one of these, and reports at which.
fn wait<'fd>(descriptors: impl Iterator<Item = BorrowedFd<'fd>>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    while let Err(errno) = poll(&mut polled, PollTimeout::NONE) {
        if errno != Errno::EINTR {
            return Err(errno.into());
        }
    }
    Ok(polled.iter().map(|polled| polled.any().unwrap_or(true)).collect())
}

fn hear(caller: &Channel) -> io::Result<Guest> {
    let (Hello {}, descriptors) = caller.receive()?;
    let [channel, stderr] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "another message was expected"))?;
    Guest::new(channel.into(), stderr)
}

impl State {
    fn add(&mut self, guest: Arc<Guest>) {
        if let Phase::Ending = self.phase {
            self.late.push(guest);
            return;
        }
        self.welcome(&guest);
        self.members.push(guest);
        self.show();
    }

    fn welcome(&self, guest: &Guest) {
        if let Phase::Up(memory, namespaces) = &self.phase {
            let [user, network] = &**namespaces;
            guest.tell(&Word::Up, &[memory.as_fd(), user.as_fd(), network.as_fd()]);
        }
    }

    /// Removes a member, and reports whether it was the last: its connection ends with this process then.
    fn remove(&mut self, guest: &Arc<Guest>) -> io::Result<bool> {
        if let [_] = self.members[..] {
            self.phase = Phase::Ending;
            return Ok(true);
        }
        guest.tell(&Word::Left, &[]);
        self.members.retain(|other| !Arc::ptr_eq(other, guest));
        if let Some(oldest) = self.members.first() {
            // What weft logs has to be seen, and must not keep a pipe of the one that left open.
            dup2_stderr(&oldest.stderr)?;
        }
        self.show();
        Ok(false)
    }

    fn show(&self) {
        let processes = self.members.iter().map(|guest| guest.process).collect();
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }
}

impl Guest {
    fn new(channel: Channel, stderr: OwnedFd) -> io::Result<Self> {
        let process = channel.process()?;
        Ok(Self { channel, stderr, process })
    }

    /// Does not wait for a member that is stopped.
    fn tell(&self, word: &Word, descriptors: &[BorrowedFd<'_>]) {
        if let Err(error) = self.channel.send_now(word, descriptors) {
            tracing::debug!(process = self.process, "cannot tell a command about its tunnel: {error}");
        }
    }
}

/// Writes the state into memory that has a descriptor: messages have a limited size.
fn in_memory(tunnel: &TunnelState) -> io::Result<OwnedFd> {
    let memory = memfd_create(c"weft-tunnel", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(&serde_json::to_vec(tunnel)?)?;
    Ok(file.into())
}

/// Reads the state. Several processes share the descriptor, and so its offset.
pub(crate) fn from_memory(memory: &OwnedFd) -> io::Result<TunnelState> {
    use std::os::unix::fs::FileExt as _;
    let mut file = File::from(memory.try_clone()?);
    // A confined thread may not ask for the metadata of files.
    let length = usize::try_from(file.seek(SeekFrom::End(0))?).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Connects to a tunnel, over its socket.
pub(crate) fn knock(connection: &Connection, channel: Channel) -> io::Result<()> {
    let channel = OwnedFd::from(channel);
    let stream = Channel::from(connection.as_fd().try_clone_to_owned()?);
    stream.send(&Hello {}, &[channel.as_fd(), io::stderr().as_fd()])
}

/// Waits until the tunnel hears the connection: it closes one that says nothing. Standard error of this
/// command would stay open in one that is not heard.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at the deadline.
pub(crate) fn wait_for_ear(connection: &Connection, deadline: Instant) -> io::Result<()> {
    Channel::from(connection.as_fd().try_clone_to_owned()?).finish()?;
    match connection.read(&mut [0], deadline) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        // Or the tunnel has ended.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_are_bounded_and_delay_no_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("join.sock");
        let (socket, file) = listener::listen(&path, 0o700).unwrap();
        let (_first, of_first) = Channel::pair().unwrap();
        let members = Members::new(of_first, Some(Door { socket, file })).unwrap();
        members.serve(|| {}).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let connect = || Connection::connect(&path, deadline).unwrap();
        let mut silent: Vec<_> = (0..=MOST_CALLERS).map(|_| connect()).collect();
        assert_eq!(silent.remove(0).read(&mut [0], deadline).unwrap(), 0, "the oldest one gives way");
        let command = connect();
        wait_for_ear(&connect(), deadline).unwrap();
        let (_second, of_second) = Channel::pair().unwrap();
        knock(&command, of_second).unwrap();
        while lock(&members.state).members.len() < 2 {
            std::thread::yield_now();
        }
        // Two have given way to the command and to its question.
        for silent in &silent[2..] {
            let mut polled = [PollFd::new(silent.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut polled, PollTimeout::ZERO).unwrap(), 0, "it was waited for, and closed");
        }
    }

    #[test]
    fn a_command_that_comes_while_the_tunnel_ends_hears_nothing_and_waits_for_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("join.sock");
        let (socket, file) = listener::listen(&path, 0o700).unwrap();
        let (first, of_first) = Channel::pair().unwrap();
        let members = Members::new(of_first, Some(Door { socket, file })).unwrap();
        members.serve(|| {}).unwrap();
        members.ending()();
        let (late, of_late) = Channel::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let connect = || Connection::connect(&path, deadline).unwrap();
        wait_for_ear(&connect(), deadline).unwrap();
        knock(&connect(), of_late).unwrap();
        while lock(&members.state).late.is_empty() {
            assert_eq!(lock(&members.state).members.len(), 1, "it has joined");
            std::thread::yield_now();
        }
        members.end(Ok(()));
        assert!(matches!(first.receive(), Ok((Word::Down, _))));
        let mut polled = [PollFd::new(late.as_fd(), PollFlags::POLLIN)];
        assert_eq!(
            poll(&mut polled, PollTimeout::ZERO).unwrap(),
            0,
            "the end of this process is what it hears"
        );
    }
}
