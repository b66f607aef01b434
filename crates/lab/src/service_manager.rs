//! A stand-in for systemd with one service: it keeps the descriptors that the service stores
//! (sd_pid_notify_with_fds(3)), hands them to its next process, and tells it over a private bus what it is
//! about to do.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};

use crate::inherit;

mod systemd;

use systemd::Bus;

/// The first descriptor of those that are handed over.
const FIRST: RawFd = 3;

/// What the service manager is about to do with the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Nothing,
    Restart,
    Stop,
}

/// What it was told, and what it keeps.
pub struct Shared {
    inner: Mutex<Inner>,
}

struct Inner {
    doing: Doing,
    store: Vec<(String, OwnedFd)>,
    /// How many descriptors it takes.
    room: usize,
    /// The barriers that are still closed, while it is slow.
    barriers: Option<Vec<OwnedFd>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn doing(&self) -> Doing {
        self.lock().doing
    }

    /// The names in the store, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().store.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }
}

/// The service manager.
pub struct Manager {
    pub shared: Arc<Shared>,
    directory: PathBuf,
    bus: Bus,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
    runs: u32,
}

impl Manager {
    /// Starts it with its sockets, and the runtime directory of the service, in `directory`.
    ///
    /// # Errors
    /// dbus-daemon is not installed, or does not start.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let inner = Inner { doing: Doing::Nothing, store: Vec::new(), room: 64, barriers: None };
        let shared = Arc::new(Shared { inner: Mutex::new(inner) });
        let bus = Bus::start(directory, &shared)?;
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path)?;
        let told = Arc::clone(&shared);
        let take = move || while take_message(&socket, &told) {};
        let thread = std::thread::Builder::new().name("notify".to_owned()).spawn(take)?;
        let directory = directory.to_owned();
        Ok(Self { shared, directory, bus, socket: path, thread: Some(thread), runs: 0 })
    }

    /// Sets what it is about to do with the service.
    pub fn set(&self, doing: Doing) {
        self.shared.lock().doing = doing;
    }

    /// It takes no more descriptors than these.
    pub fn set_room(&self, room: usize) {
        self.shared.lock().room = room;
    }

    /// From now on it does what it is told, and does not say that it has.
    pub fn be_slow(&self) {
        self.shared.lock().barriers = Some(Vec::new());
    }

    /// It says so again.
    pub fn catch_up(&self) {
        self.shared.lock().barriers = None;
    }

    /// Puts something into the store, without a sender.
    pub fn put(&self, name: &str, descriptor: OwnedFd) {
        self.shared.lock().store.push((name.to_owned(), descriptor));
    }

    /// What is in the store under a name.
    pub fn get(&self, name: &str) -> Option<OwnedFd> {
        let inner = self.shared.lock();
        let (_, descriptor) = inner.store.iter().find(|(kept, _)| kept == name)?;
        Some(copy(descriptor))
    }

    /// Closes what is in the store under a name.
    pub fn forget(&self, name: &str) {
        self.shared.lock().store.retain(|(kept, _)| kept != name);
    }

    /// There is no bus, for the processes that are started from now on.
    pub fn forget_bus(&mut self) {
        self.bus.address = format!("unix:path={}", self.directory.join("no-bus").display());
    }

    /// Closes everything in the store, as when the service has really ended.
    pub fn empty(&self) {
        self.shared.lock().store.clear();
    }

    /// A new run of the service begins.
    pub fn begin_run(&mut self) {
        self.runs += 1;
    }

    /// What every process of this run has in its environment.
    pub fn environment(&self, command: &mut Command) {
        command.env("INVOCATION_ID", format!("{:032x}", self.runs));
        command.env("DBUS_SYSTEM_BUS_ADDRESS", &self.bus.address);
        command.env("WEFT_RUNTIME_DIR", self.directory.join("run"));
        command.env_remove("RUST_LOG").env_remove("RUNTIME_DIRECTORY").env_remove("NOTIFY_SOCKET");
    }

    /// The main process gets the descriptors in the store. The command is a shell's: `exec "$@"` of its
    /// arguments.
    pub fn hand_over(&self, command: &mut Command) {
        self.environment(command);
        command.env("NOTIFY_SOCKET", &self.socket).env("FDSTORE", "64");
        let store: Vec<(String, OwnedFd)> = {
            let inner = self.shared.lock();
            inner.store.iter().map(|(name, fd)| (name.clone(), copy(fd))).collect()
        };
        if store.is_empty() {
            return;
        }
        let names: Vec<&str> = store.iter().map(|(name, _)| name.as_str()).collect();
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        inherit(command, FIRST, store.into_iter().map(|(_, fd)| fd).collect());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let end = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"END", &self.socket));
        if end.is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn copy(descriptor: &OwnedFd) -> OwnedFd {
    descriptor.try_clone().expect("a process has room for the few descriptors of a store")
}

/// Takes one message of sd_notify(3). False: it was the last.
fn take_message(socket: &UnixDatagram, shared: &Shared) -> bool {
    let mut bytes = [0; 4096];
    let mut space = nix::cmsg_space!([RawFd; 4]);
    let (len, descriptors) = {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags)
            .expect("an open socket receives");
        let mut descriptors = Vec::new();
        for part in message.cmsgs().expect("there is room for all descriptors of a message") {
            if let ControlMessageOwned::ScmRights(numbers) = part {
                // SAFETY: the kernel has just made them for this process.
                descriptors.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
        }
        (message.bytes, descriptors)
    };
    let text = std::str::from_utf8(&bytes[..len]).expect("sd_notify(3) sends text");
    let has = |line: &str| text.lines().any(|other| other == line);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
    let mut inner = shared.lock();
    if has("FDSTORE=1") {
        assert!(has("FDPOLL=0"), "systemd would close a socket that has an error: {text}");
        for descriptor in descriptors {
            if inner.store.len() < inner.room {
                inner.store.push((name.to_owned(), descriptor));
            }
        }
    } else if has("FDSTOREREMOVE=1") {
        inner.store.retain(|(kept, _)| kept != name);
    } else if has("BARRIER=1")
        && let Some(barriers) = &mut inner.barriers
    {
        barriers.extend(descriptors);
    }
    // What came with a barrier is closed here.
    !has("END")
}
