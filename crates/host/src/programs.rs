//! The time that programs of the system have (nft, pfctl, resolvconf, scutil), and systemd-resolved.
//!
//! They take milliseconds, and seconds on a machine that is busy. One that hangs must not hold up each of its
//! calls: in one piece of work, such as an end, it is not called again, and the others have less time.

#![cfg_attr(windows, allow(dead_code, reason = "there are no such programs"))]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// The time that a call of an end has at most, and of what looks after the packet filter: nothing else is
/// done meanwhile.
pub(super) const OF_AN_END: Duration = Duration::from_secs(10);
/// The time of a call when another program has hung.
const SHORT: Duration = Duration::from_secs(3);
/// The time that a call has in `weft down` where the daemon has tried the same a moment ago.
const AGAIN: Duration = Duration::from_secs(1);

thread_local! {
    /// The work of this thread.
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

struct Work {
    limit: Duration,
    hung: Hung,
}

/// The programs that have not come to their end in time.
#[derive(Clone, Debug, Default)]
pub(super) struct Hung(BTreeSet<String>);

/// Does a piece of work, in which no call of a program takes longer than `limit`, and those not at all that
/// have hung. Work within work is a part of it.
pub(super) fn within<T>(limit: Duration, hung: &mut Hung, work: impl FnOnce() -> T) -> T {
    if WORK.with_borrow(Option::is_some) {
        return work();
    }
    WORK.set(Some(Work { limit, hung: std::mem::take(hung) }));
    let result = work();
    *hung = WORK.take().map(|work| work.hung).unwrap_or_default();
    result
}

/// Does work again that a daemon has not brought to its end, and has told of.
pub fn once_more<T>(work: impl FnOnce() -> T) -> T {
    within(AGAIN, &mut Hung::default(), work)
}

/// Calls a program, which may take `usual` outside of work that has less time.
///
/// # Errors
/// That of the call. [`io::ErrorKind::TimedOut`]: it has hung in this call, or in an earlier one of this
/// work.
pub(super) fn call<T>(
    program: &str,
    usual: Duration,
    call: impl FnOnce(Duration) -> io::Result<T>,
) -> io::Result<T> {
    let time = WORK.with_borrow(|work| match work {
        None => Some(usual),
        Some(work) if work.hung.0.contains(program) => None,
        Some(work) if work.hung.0.is_empty() => Some(work.limit.min(usual)),
        Some(work) => Some(work.limit.min(usual).min(SHORT)),
    });
    let result = time.map_or_else(|| Err(io::ErrorKind::TimedOut.into()), call);
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        WORK.with_borrow_mut(|work| {
            work.as_mut().map(|work| work.hung.0.insert(program.to_owned()));
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_not_called_again_in_the_same_work() {
        const USUAL: Duration = Duration::from_secs(30);
        let given = RefCell::new(Vec::new());
        let call = |program: &'static str, hangs: bool| {
            let ended = super::call(program, USUAL, |time| {
                given.borrow_mut().push((program, time));
                if hangs { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
            });
            ended.map_err(|error| error.kind())
        };
        let timed_out = Err(io::ErrorKind::TimedOut);
        let mut hung = Hung::default();
        // Without work each call counts for itself.
        assert_eq!([call("nft", true), call("nft", false)], [timed_out, Ok(())]);
        within(OF_AN_END, &mut hung, || {
            assert_eq!([call("nft", false), call("nft", true)], [Ok(()), timed_out]);
            assert_eq!([call("nft", false), call("other", false)], [timed_out, Ok(())]);
            // Work within it.
            within(USUAL, &mut Hung::default(), || assert_eq!(call("nft", false), timed_out));
        });
        // What follows the work.
        within(OF_AN_END, &mut hung, || assert_eq!(call("nft", false), timed_out));
        once_more(|| assert_eq!(call("nft", false), Ok(())));
        let expected = [
            ("nft", USUAL),
            ("nft", USUAL),
            ("nft", OF_AN_END),
            ("nft", OF_AN_END),
            ("other", SHORT),
            ("nft", AGAIN),
        ];
        assert_eq!(given.take(), expected);
    }
}
