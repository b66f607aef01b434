//! Programs of the system (nft, pfctl, resolvconf, scutil, ifconfig, route), and systemd-resolved: how they
//! are run, and the time that they have.
//!
//! They take milliseconds, and seconds on a machine that is busy. One that hangs must not hold up each of its
//! calls: the calls of one piece of work have a time together, and one that has hung is left alone for a
//! while.

#![cfg_attr(windows, allow(dead_code, reason = "there are no such programs"))]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[cfg(unix)]
mod run;

#[cfg(unix)]
pub(crate) use run::{Ended, run};

/// The time that the calls of an end or a change have together: somebody waits for it.
pub(super) const OF_AN_EVENT: Duration = Duration::from_secs(8);
/// The time of the calls in what looks after an interface that is up: nothing else is done meanwhile.
const OF_A_LOOK: Duration = Duration::from_secs(5);
/// The time of a call when a program has hung, or the time of all calls is over.
const SHORT: Duration = Duration::from_secs(3);
/// The time that a call has in `weft down` where the daemon has tried the same a moment ago.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a program that has hung is not called again without a need.
const REST: Duration = Duration::from_secs(60);
/// How long it is told that a program has hung, if it is not called again.
const TOLD: Duration = Duration::from_secs(180);

thread_local! {
    /// The work of this thread.
    static WORK: Cell<Option<Work>> = const { Cell::new(None) };
}

/// The programs that have hung, and when they did last.
static HUNG: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Work {
    kind: Kind,
    began: Instant,
    limit: Duration,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A start, a change or an end, which began at this time. What has hung in it is not called again.
    Event(Instant),
    /// A kill switch is missing: what has hung before has as much time again.
    Restoration,
    /// What can wait: what has hung a while ago is not called.
    Look,
}

/// Does a part of a start, a change or an end that began at this time. A program that has hung since then is
/// not called again.
pub(super) fn event<T>(limit: Duration, began: Instant, work: impl FnOnce() -> T) -> T {
    within(Kind::Event(began), limit, work)
}

/// Follows a change of the network, which may come often.
pub(super) fn change<T>(work: impl FnOnce() -> T) -> T {
    within(Kind::Event(Instant::now()), OF_A_LOOK, work)
}

/// Restores what no packet may leave without.
pub(super) fn restoration<T>(work: impl FnOnce() -> T) -> T {
    within(Kind::Restoration, OF_A_LOOK, work)
}

/// Does what comes again and again while an interface is up.
pub(super) fn look<T>(work: impl FnOnce() -> T) -> T {
    within(Kind::Look, OF_A_LOOK, work)
}

/// Does work again that a daemon has not brought to its end, and has told of.
pub fn once_more<T>(work: impl FnOnce() -> T) -> T {
    within(Kind::Event(Instant::now()), AGAIN, work)
}

/// Work within work is a part of it.
fn within<T>(kind: Kind, limit: Duration, work: impl FnOnce() -> T) -> T {
    if WORK.get().is_some() {
        return work();
    }
    WORK.set(Some(Work { kind, began: Instant::now(), limit }));
    let result = work();
    WORK.set(None);
    result
}

/// Calls a program, which may take `usual` outside of work that has less time.
///
/// # Errors
/// That of the call. [`io::ErrorKind::TimedOut`]: it has hung in this call, or a while ago.
pub(super) fn call<T>(
    program: &str,
    usual: Duration,
    call: impl FnOnce(Duration) -> io::Result<T>,
) -> io::Result<T> {
    let Some(time) = time(program, usual) else { return Err(io::ErrorKind::TimedOut.into()) };
    let result = call(time);
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        hung().insert(program.to_owned(), Instant::now());
    } else {
        hung().remove(program);
    }
    result
}

/// Returns how long a program may take; `None`: it is not to be called.
fn time(program: &str, usual: Duration) -> Option<Duration> {
    let mut hung = hung();
    hung.retain(|_, last| last.elapsed() < TOLD);
    let last = hung.get(program).filter(|last| last.elapsed() < REST);
    let Some(Work { kind, began, limit }) = WORK.get() else {
        return last.is_none().then_some(usual);
    };
    let least = SHORT.min(limit);
    let left = limit.saturating_sub(began.elapsed()).max(least).min(usual);
    let is_again = |since| last.is_some_and(|last| *last >= since);
    match kind {
        Kind::Look => last.is_none().then_some(left),
        Kind::Restoration => (!is_again(began)).then_some(left),
        Kind::Event(since) if is_again(since) => None,
        Kind::Event(_) if hung.is_empty() => Some(left),
        Kind::Event(_) => Some(least.min(usual)),
    }
}

/// Reports whether a program has hung in work that began at this time.
pub(super) fn has_hung_since(began: Instant) -> bool {
    hung().values().any(|last| *last >= began)
}

/// Returns the programs of the system that have hung a while ago, and were not called with success since.
pub fn hung_programs() -> Vec<String> {
    let hung = hung();
    hung.iter().filter(|(_, last)| last.elapsed() < TOLD).map(|(program, _)| program.clone()).collect()
}

fn hung() -> MutexGuard<'static, BTreeMap<String, Instant>> {
    HUNG.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_hangs_is_called_again_by_what_cannot_wait_alone_and_has_less_time() {
        const USUAL: Duration = Duration::from_secs(30);
        let given = RefCell::new(Vec::new());
        let call = |program: &'static str, hangs: bool| {
            let ended = super::call(program, USUAL, |time| {
                given.borrow_mut().push((program, time.as_secs_f32().ceil() as u64));
                if hangs { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
            });
            ended.map_err(|error| error.kind())
        };
        let timed_out = Err(io::ErrorKind::TimedOut);
        let taken = || given.take();
        let began = Instant::now();
        event(OF_AN_EVENT, began, || {
            assert_eq!([call("a", false), call("a", true)], [Ok(()), timed_out]);
            assert_eq!([call("a", false), call("b", false)], [timed_out, Ok(())]);
            // Work within it.
            event(USUAL, Instant::now(), || assert_eq!(call("a", false), timed_out));
        });
        assert_eq!(taken(), [("a", 8), ("a", 8), ("b", 3)]);
        assert!(hung_programs().contains(&"a".to_owned()) && has_hung_since(began));
        // The same event, and what can wait.
        event(OF_AN_EVENT, began, || assert_eq!(call("a", false), timed_out));
        look(|| assert_eq!([call("a", false), call("b", false)], [timed_out, Ok(())]));
        assert_eq!([call("a", false), call("b", false)], [timed_out, Ok(())]);
        assert_eq!(taken(), [("b", 5), ("b", 30)]);
        // What cannot: a kill switch, another event, a command.
        restoration(|| assert_eq!([call("a", true), call("a", false)], [timed_out; 2]));
        event(OF_AN_EVENT, Instant::now(), || {
            assert_eq!([call("a", true), call("b", false)], [timed_out, Ok(())]);
        });
        once_more(|| assert_eq!(call("a", false), Ok(())));
        assert_eq!(taken(), [("a", 5), ("a", 3), ("b", 3), ("a", 1)]);
        // It has ended in time.
        look(|| assert_eq!(call("a", false), Ok(())));
        assert!(!hung_programs().contains(&"a".to_owned()));
    }
}
