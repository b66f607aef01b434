//! A program in a terminal of its own.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_lab::wait_until;

/// A program and its terminal. Dropping it kills the program.
pub(crate) struct Pty {
    child: Child,
    /// `None` once it has hung up.
    terminal: Option<File>,
    /// Keeps the terminal there after the program ended, so that its settings can be looked at.
    slave: OwnedFd,
    before: Settings,
    output: Arc<Mutex<Vec<u8>>>,
    is_hanging_up: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// How long the reader of the terminal waits for output before it looks whether it is to end.
const TURN: u8 = 20;

/// Makes a command ignore SIGHUP, as nohup(1) does.
pub(crate) fn ignore_hang_up(command: &mut Command) {
    let ignore = || {
        // SAFETY: the call takes two numbers.
        match unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec the closure only makes a system call.
    unsafe { command.pre_exec(ignore) };
}

impl Pty {
    /// Starts a command in a terminal of this size.
    pub(crate) fn spawn(mut command: Command, columns: u16, rows: u16) -> Self {
        let (terminal, slave) = terminal().unwrap();
        set_size(&terminal, columns, rows);
        let before = settings(&slave);
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let take_terminal = || {
            nix::unistd::setsid()?;
            // SAFETY: the ioctl takes a number; standard input is the terminal.
            match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec the closure only makes system calls.
        unsafe { command.pre_exec(take_terminal) };
        let child = command.spawn().unwrap();
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let mut from = terminal.try_clone().unwrap();
        let shared = Arc::clone(&output);
        let is_hanging_up = Arc::<AtomicBool>::default();
        let is_over = Arc::clone(&is_hanging_up);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !is_over.load(Ordering::Relaxed) {
                if poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], TURN) == Ok(0) {
                    continue;
                }
                let Ok(count @ 1..) = from.read(&mut bytes) else { return };
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..count]);
            }
        });
        let (terminal, reader) = (Some(terminal), Some(reader));
        Self { child, terminal, slave, before, output, is_hanging_up, reader }
    }

    /// Closes the terminal, as a connection does that breaks.
    pub(crate) fn hang_up(&mut self) {
        self.is_hanging_up.store(true, Ordering::Relaxed);
        self.reader.take().unwrap().join().unwrap();
        self.terminal = None;
    }

    fn terminal(&self) -> &File {
        self.terminal.as_ref().unwrap()
    }

    /// All that was written to the terminal so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits until the terminal got this text, after what it had got at `from`.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str, from: usize) {
        wait_until(text, || self.output().get(from..).is_some_and(|new| new.contains(text)).then_some(()));
    }

    /// Types.
    pub(crate) fn press(&mut self, keys: &str) {
        self.terminal().write_all(keys.as_bytes()).unwrap();
    }

    /// Makes the terminal another size, of which the program is told.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        set_size(self.terminal(), columns, rows);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the program ends.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_until("the program in the terminal to end", || self.child.try_wait().unwrap())
    }

    /// Whether the terminal is as it was before the program.
    pub(crate) fn is_restored(&self) -> bool {
        settings(&self.slave) == self.before
    }
}

/// The two ends of a new terminal, which no other process has: closing the first one is its end.
fn terminal() -> io::Result<(File, OwnedFd)> {
    let ours = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx")?;
    let unlocked: libc::c_int = 0;
    // SAFETY: the ioctl reads the number, which lives until after the call.
    if unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the ioctl takes a number.
    match unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags) } {
        // SAFETY: it was just opened, and nothing else has it.
        theirs @ 0.. => Ok((ours, unsafe { OwnedFd::from_raw_fd(theirs) })),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the ioctl reads the size, which lives until after the call.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Flags of input, output, control and local processing (termios(3)).
type Settings = [libc::tcflag_t; 4];

fn settings(terminal: &OwnedFd) -> Settings {
    // SAFETY: a termios of zeros is a valid one, and the call fills it in.
    let mut termios: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the termios is written to, and lives until after the call.
    let result = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut termios) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    [termios.c_iflag, termios.c_oflag, termios.c_cflag, termios.c_lflag]
}

impl Drop for Pty {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
