//! The command that runs at this moment. A process runs one command at a time. The log says what weft waits
//! for, and a signal to weft, or the end of the service's time, ends the command.

use std::fmt;
use std::io;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weft_config::{Hook, HookPhase, InterfaceName, without_keys};
use weft_confine::EndProcessOnPanic;

use super::process;

/// How long a command runs before the log says that weft waits for it.
const SILENCE: Duration = Duration::from_secs(4);
/// How long a command may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// What each command of PreDown and PostDown may take at least, also when the time of all of them is over.
const SHARE: Duration = Duration::from_secs(1);

static STATE: Mutex<State> = Mutex::new(State { interruptions: 0, end_by: None, command: None });
static CHANGED: Condvar = Condvar::new();

struct State {
    /// How often commands were interrupted.
    interruptions: u64,
    /// When the commands of PreDown and PostDown have to have ended.
    end_by: Option<Instant>,
    command: Option<Arc<CommandUnderWay>>,
}

/// A command that weft waits for.
#[derive(Debug)]
pub struct CommandUnderWay {
    /// When it runs.
    pub phase: HookPhase,
    /// When it was started.
    pub since: Instant,
    process: u32,
    place: String,
    command: String,
}

impl fmt::Display for CommandUnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, process, place, command, .. } = self;
        write!(f, "waiting for {} `{command}` ({place}, process {process})", phase.key())
    }
}

/// How a command ended.
pub(super) enum Ended {
    ByItself(ExitStatus),
    /// A signal to weft ended it.
    Interrupted,
    /// The time of the service was over.
    TooLate,
}

/// Returns the command that weft waits for at this moment.
pub fn command_under_way() -> Option<Arc<CommandUnderWay>> {
    lock().command.clone()
}

/// Ends the command that runs now. No command of PreUp and PostUp starts after this; each call ends one of
/// PreDown or PostDown.
pub fn interrupt_commands() {
    lock().interruptions += 1;
    CHANGED.notify_all();
}

/// Sets the time that the commands of PreDown and PostDown have together from now on.
pub fn limit_commands_of_the_end(time: Duration) {
    lock().end_by = Some(Instant::now() + time);
}

/// Reports whether a command of this phase is not to start.
pub(super) fn is_refused(phase: HookPhase) -> bool {
    is_of_the_start(phase) && lock().interruptions > 0
}

fn is_of_the_start(phase: HookPhase) -> bool {
    matches!(phase, HookPhase::PreUp | HookPhase::PostUp)
}

/// Waits for the end of a command that was just started, or ends it.
pub(super) fn wait(child: &mut Child, hook: &Hook, interface: &InterfaceName) -> io::Result<Ended> {
    let under_way = Arc::new(CommandUnderWay {
        phase: hook.phase,
        since: Instant::now(),
        process: child.id(),
        place: format!("{}:{}", hook.file.display(), hook.line),
        command: without_keys(&hook.command_for(interface)),
    });
    let has_ended = Arc::new(Mutex::new(false));
    let (id, ended) = (child.id(), Arc::clone(&has_ended));
    let wait = move || {
        let _guard = EndProcessOnPanic;
        process::wait_for_end(id);
        // Under the lock of what waits for it: else the news comes before the wait.
        let _state = lock();
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        CHANGED.notify_all();
    };
    lock().command = Some(Arc::clone(&under_way));
    let waited = match thread::Builder::new().name("weft-command".to_owned()).spawn(wait) {
        Ok(_) => until(&has_ended, child, &under_way),
        Err(error) => {
            tracing::debug!(%error, "a command cannot be interrupted");
            None
        }
    };
    lock().command = None;
    // Reaped here alone: until then its number is not that of another process.
    let status = child.wait()?;
    Ok(waited.unwrap_or(Ended::ByItself(status)))
}

/// Waits until the command has ended. Returns why it was ended.
fn until(has_ended: &Mutex<bool>, child: &Child, command: &CommandUnderWay) -> Option<Ended> {
    let is_of_the_start = is_of_the_start(command.phase);
    let mut state = lock();
    let seen = if is_of_the_start { 0 } else { state.interruptions };
    let limit = state.end_by.filter(|_| !is_of_the_start).map(|end| end.max(Instant::now() + SHARE));
    let mut tell_at = Some(command.since + SILENCE);
    let mut kill_at = None;
    let mut outcome = None;
    while !*has_ended.lock().unwrap_or_else(PoisonError::into_inner) {
        let now = Instant::now();
        if tell_at.is_some_and(|at| at <= now) {
            tell_at = None;
            tracing::warn!("{command}");
        }
        if outcome.is_none() {
            outcome = if state.interruptions > seen {
                Some(Ended::Interrupted)
            } else {
                limit.filter(|limit| *limit <= now).map(|_| Ended::TooLate)
            };
            if outcome.is_some() {
                process::end(child, false);
                kill_at = Some(now + GRACE);
            }
        } else if kill_at.is_some_and(|at| at <= now) {
            process::end(child, true);
            kill_at = None;
        }
        let limit = limit.filter(|_| outcome.is_none());
        let next = [tell_at, kill_at, limit].into_iter().flatten().min();
        // Without anything to do it waits for a change alone.
        let pause = next.map_or(Duration::MAX, |next| next.saturating_duration_since(now));
        state = CHANGED.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
    outcome
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
