//! Signals are passed on to the command, except those of the terminal, which it gets itself.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpid, getppid};
use weft_confine::EndProcessOnPanic;
use weft_rootless::ENTRY_FAILED;

/// Signals that end a program, or that it may have a meaning for.
const FORWARDED: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// The command, which signals are for.
#[derive(Clone)]
pub(super) struct Target {
    state: Arc<Mutex<State>>,
    /// What weft was started with, and so is the command: the signals that are blocked, and the limits for
    /// descriptors.
    mask: SigSet,
    descriptors: (rlim_t, rlim_t),
    /// Ends weft while there is no command yet.
    end: Arc<dyn Fn(Signal) + Send + Sync>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    NotStarted,
    /// The tunnel ended before the command was started, perhaps by a signal.
    Cancelled(Option<Signal>),
    Runs(Pid),
    Ended,
}

impl Target {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns the command. A signal that arrives meanwhile waits for it. The command gets SIGHUP when the
    /// thread that spawns it ends.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let (mask, (soft, hard), parent) = (self.mask, self.descriptors, getpid());
        let prepare = move || {
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            // After everything that changes the rights of the process, which resets it.
            prctl::set_pdeathsig(Some(Signal::SIGHUP))?;
            if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH) }
        };
        let prepare = move || prepare().map_err(|_: Errno| io::Error::from_raw_os_error(ENTRY_FAILED));
        // SAFETY: between fork and exec the closure makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(prepare) };
        let mut state = self.state();
        if let State::Cancelled(_) = *state {
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

    /// Passes a signal on, unless the terminal sent it: all of its foreground processes get it. Before there
    /// is a command, it ends weft.
    fn signal(&self, signal: Signal, is_of_terminal: bool) {
        let mut state = self.state();
        match *state {
            State::Runs(pid) if !is_of_terminal => drop(kill(pid, signal)),
            State::Runs(_) | State::Ended => {}
            State::NotStarted => {
                *state = State::Cancelled(Some(signal));
                drop(state);
                (self.end)(signal);
            }
            State::Cancelled(_) => end_at_once(signal),
        }
    }

    /// Returns the signal that came before there was a command.
    pub(super) fn cancelled_by(&self) -> Option<Signal> {
        if let State::Cancelled(signal) = *self.state() { signal } else { None }
    }

    /// Tells the command that its network is gone.
    pub(super) fn hang_up(&self) {
        let mut state = self.state();
        match *state {
            State::Runs(pid) => drop(kill(pid, Signal::SIGHUP)),
            State::NotStarted => *state = State::Cancelled(None),
            State::Cancelled(_) | State::Ended => {}
        }
    }
}

/// Ends weft, as the signal would.
pub(super) fn end_at_once(signal: Signal) {
    std::process::exit(128 + signal as i32);
}

/// Signals that wait.
#[derive(Debug)]
pub(super) struct Blocked {
    signals: SigSet,
    before: SigSet,
    descriptors: (rlim_t, rlim_t),
}

impl Blocked {
    /// Blocks the signals in this thread and those that it starts from now on.
    pub(super) fn new() -> io::Result<Self> {
        let signals: SigSet = FORWARDED.into_iter().collect();
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before))?;
        Ok(Self { signals, before, descriptors: getrlimit(Resource::RLIMIT_NOFILE)? })
    }

    /// Starts a thread that passes the signals on until the end of the process. It calls `end` with one that
    /// comes before there is a command.
    pub(super) fn forward(self, end: impl Fn(Signal) + Send + Sync + 'static) -> io::Result<Target> {
        let Self { signals, before: mask, descriptors } = self;
        let target = Target { state: Arc::default(), mask, descriptors, end: Arc::new(end) };
        let passed_on = target.clone();
        let pass_on = move || {
            let _guard = EndProcessOnPanic;
            loop {
                match next(&signals) {
                    // What the kernel sends is of the terminal.
                    Ok((signal, code)) => passed_on.signal(signal, code > 0),
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
