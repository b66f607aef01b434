//! Stands in for a kernel that refuses one system call of a process, or for one that kills the process before
//! it (seccomp_unotify(2)). For tests that let a process fail, or end, at each of its calls in turn.

use std::io::{self, IoSliceMut, PipeReader, Read as _, Write as _, pipe};
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::JoinHandle;

use libc::{c_int, c_long, sock_filter};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::SockRef;

use crate::refusal::{LOAD, RESULT, UNLESS_EQUAL, statement};

/// Goes on if one of these bits is set.
const UNLESS_ANY: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;

/// Opening a file to write to it.
const WRITES: c_int = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT;

/// The request of ioctl(2) that creates a TUN, or attaches a queue of it.
const TUNSETIFF: u32 = 0x4004_54ca;

/// The number of an argument, and a comparison of its low word with a value.
type Argument = (usize, u32, u32);

/// Calls that may change something outside of the process, with what one argument has to have.
const CALLS: &[(c_long, Option<Argument>)] = &[
    (libc::SYS_sendto, None),
    (libc::SYS_sendmsg, None),
    (libc::SYS_execve, None),
    (libc::SYS_openat, Some((2, UNLESS_ANY, WRITES as u32))),
    (libc::SYS_ioctl, Some((1, UNLESS_EQUAL, TUNSETIFF))),
    (libc::SYS_renameat, None),
    (libc::SYS_renameat2, None),
    (libc::SYS_unlinkat, None),
    (libc::SYS_mkdirat, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, None),
];

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// The call does nothing, and returns this error.
    Refuse(c_int),
    /// The process is killed before the call. If a process that it has started makes the call, that one goes
    /// on.
    Kill,
}

/// A process of which the calls are watched that change something outside of it: messages to the kernel and
/// to local sockets, files, programs, devices. So are those of the processes that it starts.
#[derive(Debug)]
pub struct Interception(JoinHandle<io::Result<()>>);

impl Interception {
    /// Watches the process of a command, from the moment in which it executes its program. `decide` gets a
    /// description of each call, on a separate thread.
    ///
    /// # Errors
    /// There is no room for a pipe or a thread.
    pub fn of(
        command: &mut Command,
        mut decide: impl FnMut(&str) -> Verdict + Send + 'static,
    ) -> io::Result<Self> {
        let (told, mut tell) = pipe()?;
        let (mut waits, go) = pipe()?;
        let mut program = program();
        let begin = move || {
            let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            // SAFETY: the kernel copies the program, which lives until the call returns.
            let listener = unsafe {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                    &raw const filter,
                )
            };
            if listener < 0 {
                return Err(io::Error::last_os_error());
            }
            tell.write_all(&nix::unistd::getpid().as_raw().to_ne_bytes())?;
            tell.write_all(&(listener as RawFd).to_ne_bytes())?;
            waits.read_exact(&mut [0])
        };
        // SAFETY: between fork and exec the closure only makes system calls.
        unsafe { command.pre_exec(begin) };
        let watch = move || {
            let mut go = go;
            let (process, listener) = listener_of(told)?;
            go.write_all(&[0])?;
            drop(go);
            watch(process, &listener, &mut decide)
        };
        Ok(Self(std::thread::Builder::new().name("interception".to_owned()).spawn(watch)?))
    }

    /// Waits until the process, and all that it has started, have ended.
    ///
    /// # Errors
    /// The kernel has no such filters, or the process could not be watched.
    ///
    /// # Panics
    /// If `decide` did.
    pub fn wait(self) -> io::Result<()> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Returns the program that reports the [`CALLS`].
fn program() -> Vec<sock_filter> {
    let number = offset_of!(libc::seccomp_data, nr) as u32;
    let mut program = Vec::new();
    for (call, argument) in CALLS {
        let check = argument.map_or(0, |_| 2);
        program.push(statement(LOAD, number));
        program.push(sock_filter { jf: 1 + check, ..statement(UNLESS_EQUAL, *call as u32) });
        if let Some((place, comparison, value)) = argument {
            let low_word = if cfg!(target_endian = "big") { 4 } else { 0 };
            let start = offset_of!(libc::seccomp_data, args) + 8 * place + low_word;
            program.push(statement(LOAD, start as u32));
            program.push(sock_filter { jf: 1, ..statement(*comparison, *value) });
        }
        program.push(statement(RESULT, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(statement(RESULT, libc::SECCOMP_RET_ALLOW));
    program
}

/// Takes the process, and the descriptor that reports its calls, from that process.
fn listener_of(mut told: PipeReader) -> io::Result<(Pid, OwnedFd)> {
    let mut number = || {
        let mut bytes = [0; 4];
        told.read_exact(&mut bytes).map(|()| i32::from_ne_bytes(bytes))
    };
    let (process, listener) = (number()?, number()?);
    Ok((Pid::from_raw(process), descriptor_of(process, listener)?))
}

/// Returns a copy of a descriptor of a process.
fn descriptor_of(process: i32, number: RawFd) -> io::Result<OwnedFd> {
    let process = rustix::process::Pid::from_raw(process).ok_or(Errno::ESRCH)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

mod calls {
    nix::ioctl_readwrite!(receive, b'!', 0, libc::seccomp_notif);
    nix::ioctl_readwrite!(respond, b'!', 1, libc::seccomp_notif_resp);
}

fn watch(process: Pid, listener: &OwnedFd, decide: &mut dyn FnMut(&str) -> Verdict) -> io::Result<()> {
    loop {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Without this flag, the last process has ended.
        if !ready[0].revents().unwrap_or(PollFlags::empty()).contains(PollFlags::POLLIN) {
            return Ok(());
        }
        // SAFETY: numbers may be zero.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes the structure, which is long enough.
        match unsafe { calls::receive(listener.as_raw_fd(), &raw mut call) } {
            Ok(_) => {}
            // It was killed meanwhile.
            Err(Errno::ENOENT | Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let verdict = describe(&call).map_or(Verdict::Allow, |call| decide(&call));
        let mut response = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        match verdict {
            Verdict::Allow => {}
            Verdict::Refuse(errno) => (response.error, response.flags) = (-errno, 0),
            // Its call is never made: a process that was killed does not go on.
            Verdict::Kill => kill(process, Signal::SIGKILL)?,
        }
        // SAFETY: the kernel reads the structure.
        match unsafe { calls::respond(listener.as_raw_fd(), &raw mut response) } {
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Describes a call; `None` if it changes nothing.
fn describe(call: &libc::seccomp_notif) -> Option<String> {
    let memory = Memory(Pid::from_raw(call.pid.cast_signed()));
    let arguments = &call.data.args;
    let path = |name: &str, argument: usize| {
        let path = memory.text(arguments[argument]);
        (!path.starts_with("/dev/")).then(|| format!("{name} {path}"))
    };
    match c_long::from(call.data.nr) {
        libc::SYS_ioctl => Some("ioctl TUNSETIFF".to_owned()),
        // A program is looked for in many places where it is not.
        libc::SYS_execve => path("execve", 0).filter(|call| memory.has_file(&call["execve ".len()..])),
        libc::SYS_openat => path("openat", 1),
        libc::SYS_renameat | libc::SYS_renameat2 => path("rename", 1),
        libc::SYS_unlinkat => path("unlink", 1),
        libc::SYS_mkdirat => path("mkdir", 1),
        libc::SYS_sendto => memory.message(arguments[0], arguments[1]),
        libc::SYS_sendmsg => {
            let pieces = memory.word(arguments[1] + offset_of!(libc::msghdr, msg_iov) as u64)?;
            let first = memory.word(pieces + offset_of!(libc::iovec, iov_base) as u64)?;
            memory.message(arguments[0], first)
        }
        // The older calls of x86-64: rename, unlink, mkdir and rmdir.
        other => path(&format!("call {other}"), 0),
    }
}

/// The memory of a thread that waits in a call.
struct Memory(Pid);

impl Memory {
    fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let from = RemoteIoVec { base: usize::try_from(address).ok()?, len: N };
        let read = process_vm_readv(self.0, &mut [IoSliceMut::new(&mut bytes)], &[from]);
        (read == Ok(N)).then_some(bytes)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.read(address).map(u64::from_ne_bytes)
    }

    /// Returns the text that ends with a zero.
    fn text(&self, address: u64) -> String {
        let bytes = (address..).map_while(|address| self.read::<1>(address));
        let bytes = bytes.map(|[byte]| byte).take_while(|byte| *byte != 0).take(libc::PATH_MAX as usize);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    }

    /// Reports whether its process has a file.
    fn has_file(&self, path: &str) -> bool {
        std::fs::metadata(format!("/proc/{}/root{path}", self.0)).is_ok_and(|file| file.is_file())
    }

    /// Describes a message that a socket sends. Questions to the kernel change nothing.
    fn message(&self, socket: u64, address: u64) -> Option<String> {
        let process = std::fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        let process = process.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let socket = descriptor_of(process, RawFd::try_from(socket).ok()?).ok()?;
        let peer = getsockopt(&socket, PeerCredentials);
        let socket = SockRef::from(&socket);
        match i32::from(socket.domain().ok()?) {
            // By these its threads, and its signal handlers, wake each other.
            libc::AF_UNIX if peer.is_ok_and(|peer| peer.pid() == process) => None,
            libc::AF_UNIX => Some("message to a local socket".to_owned()),
            libc::AF_NETLINK => {
                let start = address + offset_of!(libc::nlmsghdr, nlmsg_type) as u64;
                let kind = u16::from_ne_bytes(self.read(start)?);
                let protocol = socket.protocol().ok()?.map_or(0, i32::from);
                let changes = match protocol {
                    // Each object has four messages in a row: new, delete, get, set.
                    libc::NETLINK_ROUTE => kind % 4 != libc::RTM_GETLINK % 4,
                    // Changes come in batches.
                    libc::NETLINK_NETFILTER => c_int::from(kind) == libc::NFNL_MSG_BATCH_BEGIN,
                    _ => false,
                };
                changes.then(|| format!("message {kind} of netlink {protocol}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Runs a script, and gives what was watched, and its output.
    fn watched(
        script: &str,
        mut decide: impl FnMut(&str) -> Verdict + Send + 'static,
    ) -> (Vec<String>, String) {
        let (sender, calls) = mpsc::channel();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let tell = move |call: &str| {
            sender.send(call.to_owned()).unwrap();
            decide(call)
        };
        let interception = Interception::of(&mut command, tell).unwrap();
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => {
                crate::here::not_run(&error.to_string());
                return (Vec::new(), String::new());
            }
        };
        drop(command);
        interception.wait().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (calls.iter().collect(), String::from_utf8(said).unwrap())
    }

    #[test]
    fn a_process_is_refused_a_call_or_killed_before_it_and_what_it_started_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let (calls, said) = watched(&format!("cat /dev/null > {}; echo end", path("a")), |_| Verdict::Allow);
        if calls.is_empty() {
            return;
        }
        assert_eq!(said, "end\n");
        assert!(
            calls[0].starts_with("execve") && calls.contains(&format!("openat {}", path("a"))),
            "{calls:?}"
        );

        let refuse = |call: &str| match call.starts_with("openat") {
            true => Verdict::Refuse(libc::ENOSPC),
            false => Verdict::Allow,
        };
        let (_, said) = watched(&format!("echo > {}; echo end", path("b")), refuse);
        assert!(said.contains("No space left on device") || said.contains("cannot create"), "{said}");

        let kill = |call: &str| match call.contains("mkdir") {
            true => Verdict::Kill,
            false => Verdict::Allow,
        };
        let script = format!("echo begin; mkdir {0}; echo end; mkdir {1}", path("c"), path("d"));
        let (_, said) = watched(&script, kill);
        assert_eq!(said, "begin\n");
        assert!(!directory.path().join("d").exists());
    }
}
