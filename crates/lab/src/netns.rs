//! A network namespace with an owner in this process, and ways to run code and programs in it.

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::{Domain, Socket};

use super::link;
use super::waiting::wait_until_ok;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of this process. Clones share it; it is removed with the last clone, thread and socket
/// in it.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    fd: OwnedFd,
    /// The namespace's thread, which spawns children: a child's parent-death signal is bound to the thread
    /// that spawned it, and the caller's thread may end earlier.
    keeper: Mutex<Sender<Job>>,
}

impl Namespace {
    /// Creates a namespace with its loopback interface up. The name appears in thread names and errors only.
    ///
    /// Needs CAP_SYS_ADMIN: root, or an earlier [`super::enter_user_namespace`].
    pub fn new(name: &str) -> io::Result<Self> {
        let namespace = Self::kept(name, make)?;
        link::set_up(&namespace, "lo")?;
        // Makes link-local addresses usable at once, too. If this fails they are only a second or two late.
        let _ = namespace.set_sysctl("net/ipv6/conf/default/accept_dad", "0");
        Ok(namespace)
    }

    /// Opens the network namespace that a process is in, which may be one of another user namespace.
    pub fn of_process(name: &str, pid: u32) -> io::Result<Self> {
        Self::kept(name, move || {
            let fd = OwnedFd::from(std::fs::File::open(format!("/proc/{pid}/ns/net"))?);
            enter(fd.as_fd())?;
            Ok(fd)
        })
    }

    /// Opens the network namespace of a process's packet socket. No process may be in it.
    pub fn of_packet_socket(name: &str, pid: u32) -> io::Result<Self> {
        /// From <linux/sockios.h>: the network namespace of a socket.
        const SIOCGSKNS: libc::Ioctl = 0x894c;
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the process has no packet socket");
        let process = Pid::from_raw(pid.cast_signed()).ok_or_else(missing)?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        let numbers = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
        let numbers = numbers.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let taken = numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
        let is_packets = |socket: &Socket| socket.domain().is_ok_and(|domain| domain == Domain::PACKET);
        let socket = taken.map(Socket::from).find(is_packets).ok_or_else(missing)?;
        Self::kept(name, move || {
            // SAFETY: the call takes no argument.
            let fd = Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) })?;
            // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            enter(fd.as_fd())?;
            Ok(fd)
        })
    }

    /// Starts the thread of a namespace, which enters it.
    fn kept(name: &str, enter: impl FnOnce() -> io::Result<OwnedFd> + Send + 'static) -> io::Result<Self> {
        let (keeper, jobs) = channel();
        let (made, answer) = channel();
        thread::Builder::new().name(format!("ns-{name}")).spawn(move || {
            let fd = enter();
            let failed = fd.is_err();
            if made.send(fd).is_err() || failed {
                return;
            }
            keep(&jobs);
        })?;
        let fd = answer.recv().map_err(|_| io::Error::other("the namespace's thread ended"))??;
        Ok(Self(Arc::new(Inner { name: name.to_owned(), fd, keeper: Mutex::new(keeper) })))
    }

    /// Returns the name given to [`Self::new`].
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Moves the calling thread into the namespace; threads that it starts from now on inherit it.
    pub fn enter(&self) -> io::Result<()> {
        enter(self.0.fd.as_fd())
    }

    /// Runs `work` on a new thread inside the namespace and waits for it. A panic in `work` is resumed in the
    /// caller.
    ///
    /// # Panics
    ///
    /// When the system cannot start a thread, or does not let it enter the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let run = || {
            self.enter().expect("a namespace that was made can be entered");
            work()
        };
        on_a_thread(run)
    }

    /// Starts a thread with this name inside the namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        thread_name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<io::Result<T>>> {
        let namespace = self.clone();
        thread::Builder::new().name(thread_name.to_owned()).spawn(move || {
            namespace.enter()?;
            // The handle would keep the namespace's own thread alive; the kernel keeps the namespace as long
            // as this thread is in it.
            drop(namespace);
            Ok(work())
        })
    }

    /// Returns a command: its child runs in the namespace and is killed when the thread that spawned it
    /// ends. Spawn it from a thread that outlives the child, or with [`Self::start`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let namespace = self.clone();
        let parent = nix::unistd::getpid();
        let prepare = move || {
            enter(namespace.0.fd.as_fd())?;
            nix::sys::prctl::set_pdeathsig(Some(nix::sys::signal::Signal::SIGKILL))?;
            // The parent may have died before the signal was set.
            if nix::unistd::getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
        };
        // SAFETY: between fork and exec the closure only makes system calls: no allocation, no lock.
        unsafe { command.pre_exec(prepare) };
        command
    }

    /// Spawns a command from the namespace's own thread, so that the child dies with the namespace's last
    /// clone or with this process, whichever ends first.
    pub fn start(&self, mut command: Command) -> io::Result<Child> {
        let (sender, answer) = channel();
        let job: Job = Box::new(move || {
            let _ = sender.send(command.spawn());
        });
        let gone = || io::Error::other("the namespace's thread ended");
        self.0.keeper.lock().unwrap_or_else(PoisonError::into_inner).send(job).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }

    /// Binds a UDP socket in the namespace. Retries while the port is in use: a port that this process has
    /// just closed stays in use while a child forked by another thread has not yet executed its program,
    /// which closes the descriptor.
    ///
    /// # Panics
    ///
    /// When the port stays in use (see [`wait_until_ok`]), and at once for any other error.
    #[track_caller]
    pub fn bind_udp(&self, address: impl ToSocketAddrs) -> UdpSocket {
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().expect("an address").collect();
        wait_until_ok(|| match self.run(|| UdpSocket::bind(&addresses[..])) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(format!("{addresses:?}: {error}")),
            bound => Ok(bound.unwrap_or_else(|error| panic!("{addresses:?}: {error}"))),
        })
    }

    /// Writes a value below `/proc/sys`, as the namespace sees it: `set_sysctl("net/ipv4/ip_forward", "1")`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/proc/sys/{name}");
        self.run(|| std::fs::write(&path, value))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot set {name} to {value}: {error}")))
    }

    /// Reads a value below `/proc/sys`, as the namespace sees it.
    pub fn sysctl(&self, name: &str) -> io::Result<String> {
        let path = format!("/proc/sys/{name}");
        Ok(self.run(|| std::fs::read_to_string(&path))?.trim().to_owned())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl AsRawFd for Namespace {
    fn as_raw_fd(&self) -> i32 {
        self.0.fd.as_raw_fd()
    }
}

/// Runs `work` on a new thread with the name of this one, and waits for it. A panic is resumed here.
pub(super) fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let thread = match thread::current().name() {
        Some(name) => thread::Builder::new().name(name.to_owned()),
        None => thread::Builder::new(),
    };
    thread::scope(|scope| thread.spawn_scoped(scope, work).expect("a thread can be started").join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn make() -> io::Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EPERM => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "making a network namespace needs root or a user namespace (CAP_SYS_ADMIN)",
        ),
        _ => io::Error::from(errno),
    })?;
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
}

fn keep(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode() -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino()
    }

    #[test]
    fn threads_in_a_namespace_and_their_threads_share_it() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("t").unwrap();
        let inside = namespace.run(inode);
        assert_ne!(inside, inode());
        let nested = namespace.spawn("t-outer", || thread::spawn(inode).join().unwrap()).unwrap();
        assert_eq!(nested.join().unwrap().unwrap(), inside);
    }

    #[test]
    fn a_child_runs_inside_and_dies_with_the_namespace() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("t").unwrap();
        let output = namespace.command("readlink").arg("/proc/self/ns/net").output().unwrap();
        let inside = namespace.run(inode);
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("net:[{inside}]"));

        let mut command = namespace.command("sleep");
        command.arg("60");
        let mut child = namespace.start(command).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        drop(namespace);
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }

    #[test]
    fn loopback_is_up_and_sysctls_are_the_namespaces_own() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("t").unwrap();
        namespace.run(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
            assert_eq!(socket.recv(&mut [0; 4]).unwrap(), 1);
        });
        if let Err(error) = namespace.set_sysctl("net/ipv4/ip_forward", "1") {
            crate::here::not_run(&error.to_string());
            return;
        }
        assert_eq!(namespace.sysctl("net/ipv4/ip_forward").unwrap(), "1");
    }
}
