//! A program in a pseudoterminal.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::termios::{ControlModes, InputModes, LocalModes, OutputModes, Winsize, tcgetattr, tcsetwinsize};
use weft_lab::{terminal, until, wait_until};

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
        let (terminal, slave) = terminal::open().unwrap();
        set_size(&terminal, columns, rows);
        let before = settings(&slave);
        terminal::attach(&mut command, &slave).unwrap();
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
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

    /// Waits until this text is in the output behind its first `from` bytes.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str, from: usize) {
        until(text, || self.output().get(from..).is_some_and(|new| new.contains(text)));
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

/// Makes the terminal this size.
fn set_size(terminal: &File, columns: u16, rows: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// Flags of input, output, control and local processing (termios(3)).
type Settings = (InputModes, OutputModes, ControlModes, LocalModes);

fn settings(terminal: &OwnedFd) -> Settings {
    let termios = tcgetattr(terminal).unwrap();
    (termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes)
}

impl Drop for Pty {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
