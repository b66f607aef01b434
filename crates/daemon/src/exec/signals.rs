//! Signals are passed on to the command, except those of the terminal, which it gets itself.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use weft_confine::EndProcessOnPanic;
use weft_rootless::ENTRY_FAILED;

/// Signals that end a program, or that it may have a meaning for.
const FORWARDED: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// The command, which signals are for.
#[derive(Clone, Debug)]
pub(super) struct Target {
    state: Arc<Mutex<State>>,
    /// The signals that were blocked when weft started: the command is started with these.
    mask: SigSet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    NotStarted,
    /// The tunnel ended before the command was started.
    Cancelled,
    Runs(Pid),
    Ended,
}

impl Target {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns the command. A signal that arrives meanwhile waits for it.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mask = self.mask;
        let unblock = move || Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?);
        // SAFETY: between fork and exec the closure makes a system call only.
        unsafe { command.pre_exec(unblock) };
        let mut state = self.state();
        if *state == State::Cancelled {
            return Err(io::Error::from_raw_os_error(ENTRY_FAILED));
        }
        let child = command.spawn()?;
        *state = State::Runs(Pid::from_raw(child.id().cast_signed()));
        Ok(child)
    }

    /// Waits for the end of the command. Until it is reaped, its number is not another's.
    pub(super) fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = Pid::from_raw(child.id().cast_signed());
        while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        *self.state() = State::Ended;
        child.wait()
    }

    /// Passes a signal on. Before there is a command, it ends weft.
    pub(super) fn signal(&self, signal: Signal) {
        let state = self.state();
        match *state {
            State::Runs(pid) => drop(kill(pid, signal)),
            State::NotStarted | State::Cancelled => std::process::exit(128 + signal as i32),
            State::Ended => {}
        }
    }

    /// Tells the command that its network is gone.
    pub(super) fn hang_up(&self) {
        let mut state = self.state();
        match *state {
            State::Runs(pid) => drop(kill(pid, Signal::SIGHUP)),
            State::NotStarted => *state = State::Cancelled,
            State::Cancelled | State::Ended => {}
        }
    }
}

/// Signals that wait.
#[derive(Debug)]
pub(super) struct Blocked {
    signals: SigSet,
    before: SigSet,
}

impl Blocked {
    /// Blocks the signals in this thread and those that it starts from now on.
    pub(super) fn new() -> io::Result<Self> {
        let signals: SigSet = FORWARDED.into_iter().collect();
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before))?;
        Ok(Self { signals, before })
    }

    /// Starts a thread that passes the signals on until the end of the process.
    pub(super) fn forward(self) -> io::Result<Target> {
        let target = Target { state: Arc::default(), mask: self.before };
        let passed_on = target.clone();
        let pass_on = move || {
            let _guard = EndProcessOnPanic;
            loop {
                match next(&self.signals) {
                    // The kernel sent it: the terminal, whose foreground processes all get it.
                    Ok((_, code)) if code > 0 => {}
                    Ok((signal, _)) => passed_on.signal(signal),
                    Err(Errno::EINTR) => {}
                    Err(errno) => {
                        tracing::warn!(error = errno.desc(), "signals are not passed on any more");
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().name("weft-signals".to_owned()).spawn(pass_on)?;
        Ok(target)
    }
}

/// Waits for a signal, and returns it with its code (sigaction(2), `si_code`).
fn next(signals: &SigSet) -> Result<(Signal, i32), Errno> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: both structures outlive the call.
    let signal = Errno::result(unsafe { libc::sigwaitinfo(signals.as_ref(), info.as_mut_ptr()) })?;
    // SAFETY: the call succeeded and has filled it in; a zeroed one is valid too.
    let info = unsafe { info.assume_init() };
    Ok((Signal::try_from(signal)?, info.si_code))
}
