//! Notifies the service manager's watchdog as long as packets can move and the interface can be changed: the
//! event loop took a turn, then every thread of the TUN answered, and the control thread does not work at one
//! thing for minutes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, LazyLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weft_confine::EndProcessOnPanic;
use weft_control::Handle;
use weft_tun::Pulse;

use super::notify;
use crate::interface::Interface;

/// How long the control thread may work at one thing. Everything that it waits for (look-ups, commands, the
/// kernel, other threads) has a limit of some seconds, and commands wait for it half as long.
const LONGEST_WORK: Duration = Duration::from_secs(120);
/// Times are counted from here.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Since when the control thread works at one thing.
#[derive(Clone, Debug, Default)]
pub struct Work(Arc<AtomicU64>);

impl Work {
    /// The control thread begins to work.
    pub fn begin(&self) {
        let now = BEGIN.elapsed().as_millis() as u64;
        self.0.store(now + 1, Ordering::Relaxed);
    }

    /// It waits for work.
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn lasts(&self, limit: Duration) -> bool {
        let begun = self.0.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_millis);
        begun.is_some_and(|begun| BEGIN.elapsed().saturating_sub(begun) > limit)
    }
}

/// Checks twice per watchdog timeout of the service manager (sd_watchdog_enabled(3)), and is idle otherwise.
/// Dropping it ends it.
#[derive(Debug)]
pub struct Watchdog {
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the watchdog, if the service manager expects notifications from this process. If no thread can
    /// be started, the service manager receives none, and restarts the service.
    pub fn start(interface: &Interface, work: &Work) -> Option<Self> {
        let timeout = notify::watchdog_timeout()?;
        let (handle, pulses) = (interface.handle().clone(), interface.opened().pulses.clone());
        let work = work.clone();
        let silent = move |patience| {
            let control = work.lasts(LONGEST_WORK).then(|| "the control thread".to_owned());
            silent(&handle, &pulses, patience).into_iter().chain(control).collect()
        };
        Self::start_with(timeout, silent, notify::alive)
            .inspect_err(|error| tracing::error!(%error, "cannot start a thread for the watchdog"))
            .ok()
    }

    fn start_with(
        timeout: Duration,
        silent: impl Fn(Duration) -> Vec<String> + Send + 'static,
        alive: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (end, ended) = mpsc::sync_channel(0);
        let body = move || {
            let _guard = EndProcessOnPanic;
            // The other half leaves time for late answers on a busy machine.
            while matches!(ended.recv_timeout(timeout / 2), Err(RecvTimeoutError::Timeout)) {
                let silent = silent(timeout / 4);
                if silent.is_empty() {
                    alive();
                } else {
                    tracing::error!(
                        "no answer from {}: the service manager's watchdog is not notified",
                        silent.join(", ")
                    );
                }
            }
        };
        let thread = thread::Builder::new().name("weft-watchdog".to_owned()).spawn(body)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A check in progress has time limits.
            weft_confine::join(thread);
        }
    }
}

/// Returns the names of threads that do not answer, within `patience` for the event loop and as long again
/// for the threads of the TUN.
fn silent(handle: &Handle, pulses: &[Pulse], patience: Duration) -> Vec<String> {
    let silent = handle.silent(patience);
    if silent.is_empty() {
        return pulses.iter().flat_map(|pulse| pulse.silent(patience)).collect();
    }
    let name = |number| match handle.packet_threads() {
        1 => "the event loop".to_owned(),
        _ => format!("the event loop of packet thread {number}"),
    };
    silent.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use weft_dataplane::Command;
    use weft_udp::UdpConfig;

    /// Answers come at once; the limit allows for a loaded machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn the_service_manager_is_told_only_while_everybody_answers() {
        let (asked, questions) = mpsc::channel();
        let (told, alive) = mpsc::channel();
        let is_stuck = Arc::new(AtomicBool::new(false));
        let stuck = Arc::clone(&is_stuck);
        let silent = move |_| {
            let is_stuck = stuck.load(Ordering::SeqCst);
            asked.send(is_stuck).unwrap();
            if is_stuck { vec!["weft-tun-r0".to_owned()] } else { Vec::new() }
        };
        let watchdog =
            Watchdog::start_with(Duration::from_millis(10), silent, move || told.send(()).unwrap()).unwrap();
        alive.recv_timeout(PATIENCE).unwrap();
        is_stuck.store(true, Ordering::SeqCst);
        // Checks before the thread got stuck may have succeeded.
        while !questions.recv_timeout(PATIENCE).unwrap() {}
        while alive.try_recv().is_ok() {}
        for _ in 0..5 {
            assert!(questions.recv_timeout(PATIENCE).unwrap());
        }
        assert!(alive.try_recv().is_err(), "it was told although a thread was stuck");
        is_stuck.store(false, Ordering::SeqCst);
        alive.recv_timeout(PATIENCE).unwrap();
        drop(watchdog);
        while questions.try_recv().is_ok() {}
        assert!(questions.recv().is_err(), "its thread has ended");
    }

    #[test]
    fn a_control_thread_that_works_at_one_thing_for_too_long_is_seen() {
        let work = Work::default();
        assert!(!work.lasts(Duration::ZERO), "it waits");
        work.begin();
        while !work.lasts(Duration::from_millis(1)) {}
        assert!(!work.lasts(PATIENCE), "not for long yet");
        work.end();
        assert!(!work.lasts(Duration::ZERO), "it waits again");
    }

    #[test]
    fn of_several_packet_threads_the_one_that_takes_no_turn_is_named() {
        let (handle, commands) = Handle::of_several(3, UdpConfig::default());
        let mut commands = commands.into_iter().map(Some).collect::<Vec<_>>();
        // The second takes nothing.
        let hanging = commands[1].take().unwrap();
        let turning = commands.into_iter().flatten().map(|mut commands| {
            std::thread::spawn(move || {
                while let Some(Command::Ping { answer }) = commands.blocking_recv() {
                    let _ = answer.send(());
                }
            })
        });
        let turning: Vec<_> = turning.collect();
        let found = silent(&handle, &[Pulse::default()], Duration::from_secs(2));
        assert_eq!(found, ["the event loop of packet thread 1"]);
        drop((handle, hanging));
        turning.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn an_event_loop_that_takes_no_turn_is_named() {
        let (handle, mut commands) = Handle::new();
        let pulses = [Pulse::default()];
        let turning = std::thread::spawn(move || {
            let Some(Command::Ping { answer }) = commands.blocking_recv() else { panic!("no question") };
            answer.send(()).unwrap();
            commands
        });
        assert_eq!(silent(&handle, &pulses, PATIENCE), Vec::<String>::new());
        let commands = turning.join().unwrap();
        // From here on no command is taken, however long the queue becomes.
        for _ in 0..100 {
            assert_eq!(silent(&handle, &pulses, Duration::from_millis(1)), ["the event loop"]);
        }
        drop(commands);
        assert_eq!(silent(&handle, &pulses, PATIENCE), ["the event loop"]);
    }
}
