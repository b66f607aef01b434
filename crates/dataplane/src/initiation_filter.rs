//! Protection from floods of initiations. When more arrive than there is time to read, the kernel drops
//! initiations without a cookie from one half of the sources, and in the next span from the other half.
//! Otherwise the socket overflows and drops messages at random, among them both messages that a peer needs to
//! prove its address. With the filter a retrying peer gets through at its first or second attempt, and always
//! if it has a cookie. Between two spans all sources are heard, so that a retry that is a little early or
//! late is heard too.

use std::time::{Duration, Instant};

use weft_udp::{Half, Udp};

/// How long one half is heard alone. A peer tries again after 5 s and up to a third of a second
/// (Rekey-Timeout, whitepaper, section 6.1): a span is no longer than the earliest retry, and a span with the
/// times before and after it no shorter than the latest one. So of two attempts, one is made while its half
/// is heard.
const SPAN: Duration = Duration::from_millis(4900);
/// How long all sources are heard between two spans.
const BETWEEN: Duration = Duration::from_millis(250);
/// The kernel filter stays on for this time after the last message that stayed unread.
const QUIET: Duration = Duration::from_secs(10);
/// The first span, if a new measurement has enlarged the budget: the filter may not be needed any more.
const TRIAL: Duration = Duration::from_secs(1);

/// The sources that are heard.
#[derive(Debug, Default)]
pub(super) struct InitiationFilter {
    on: Option<On>,
    measured_at: Option<Instant>,
    /// When the filter was switched off last: messages left unread before are no flood.
    off_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct On {
    /// The half that is heard; `None` between two spans.
    heard: Option<Half>,
    /// The half of the next span.
    next: Half,
    until: Instant,
    /// How long no message may have stayed unread for the filter to be switched off.
    quiet: Duration,
}

impl InitiationFilter {
    /// Runs once per turn. `unread_at` is the time at which messages were last left unread for lack of time.
    /// `measure` measures the time budget of handshakes again and returns whether it grew: during the first
    /// measurement another program may have slowed the core down.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        unread_at: Option<Instant>,
        udp: &mut impl Udp,
        measure: impl FnOnce() -> bool,
    ) {
        let Some(unread_at) = unread_at else { return };
        let unread_for = now.duration_since(unread_at);
        let on = match self.on {
            None if unread_for >= QUIET || self.off_at.is_some_and(|off_at| unread_at <= off_at) => return,
            None => {
                tracing::info!(
                    "more handshake messages arrive than can be read: half of the sources are heard at a time"
                );
                let is_due = self.measured_at.is_none_or(|at| now.duration_since(at) >= QUIET);
                if is_due {
                    self.measured_at = Some(now);
                }
                let (span, quiet) = if is_due && measure() { (TRIAL, TRIAL / 2) } else { (SPAN, QUIET) };
                Some(On { heard: Some(Half::Lower), next: Half::Upper, until: now + span, quiet })
            }
            Some(on) if now < on.until => return,
            Some(On { heard: None, next, .. }) => {
                Some(On { heard: Some(next), next: next.other(), until: now + SPAN, quiet: QUIET })
            }
            Some(on) if unread_for < on.quiet => Some(On { heard: None, until: now + BETWEEN, ..on }),
            Some(_) => {
                tracing::info!(
                    "fewer handshake messages arrive: initiations of all sources are accepted again"
                );
                self.off_at = Some(now);
                None
            }
        };
        udp.let_half_ask(on.and_then(|on| on.heard));
        self.on = on;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_kernel::FakeKernel;

    const LOWER: Option<Half> = Some(Half::Lower);
    const UPPER: Option<Half> = Some(Half::Upper);

    /// Runs ten turns a second for a range of seconds. `unread_at` returns the time at which messages were
    /// last left unread.
    fn run(
        filter: &mut InitiationFilter,
        kernel: &mut FakeKernel,
        start: Instant,
        seconds: std::ops::Range<u64>,
        grows: bool,
        unread_at: impl Fn(Instant) -> Option<Instant>,
    ) -> usize {
        let mut measurements = 0;
        for tenth in 10 * seconds.start..10 * seconds.end {
            let now = start + Duration::from_millis(100 * tenth);
            filter.turn(now, unread_at(now), kernel, || {
                measurements += 1;
                grows
            });
        }
        measurements
    }

    #[test]
    fn each_half_is_heard_for_a_span_until_ten_seconds_without_unread_messages() {
        let (mut filter, mut kernel, start) =
            (InitiationFilter::default(), FakeKernel::default(), Instant::now());
        assert_eq!(run(&mut filter, &mut kernel, start, 0..1, false, |_| None), 0);
        assert_eq!(run(&mut filter, &mut kernel, start, 1..15, false, Some), 1);
        assert_eq!(std::mem::take(&mut kernel.halves), [LOWER, None, UPPER, None, LOWER]);
        let last = start + Duration::from_millis(14_900);
        assert_eq!(run(&mut filter, &mut kernel, start, 15..50, false, |_| Some(last)), 0);
        assert_eq!(kernel.halves, [None, UPPER, None, LOWER, None]);
    }

    #[test]
    fn all_sources_are_heard_again_if_another_measurement_gives_enough_time() {
        let (mut filter, mut kernel, start) =
            (InitiationFilter::default(), FakeKernel::default(), Instant::now());
        let caught_up = start + Duration::from_millis(300);
        let unread_at = |now: Instant| Some(now.min(caught_up));
        assert_eq!(run(&mut filter, &mut kernel, start, 0..9, true, unread_at), 1);
        assert_eq!(kernel.halves, [LOWER, None]);
    }

    #[test]
    fn a_flood_that_the_larger_budget_cannot_read_goes_on_with_the_other_half() {
        let (mut filter, mut kernel, start) =
            (InitiationFilter::default(), FakeKernel::default(), Instant::now());
        assert_eq!(run(&mut filter, &mut kernel, start, 0..8, true, Some), 1);
        assert_eq!(kernel.halves, [LOWER, None, UPPER, None, LOWER]);
    }

    #[test]
    fn of_two_attempts_one_is_heard_whenever_they_are_made() {
        const EARLIEST: usize = 5000;
        const LATEST: usize = 5333;
        for grows in [false, true] {
            let (mut filter, mut kernel) = (InitiationFilter::default(), FakeKernel::default());
            let start = Instant::now();
            // What is heard in each millisecond.
            let heard: Vec<Option<Half>> = (0..60_000)
                .map(|millis| {
                    let now = start + Duration::from_millis(millis);
                    filter.turn(now, Some(now), &mut kernel, || grows);
                    *kernel.halves.last().unwrap()
                })
                .collect();
            let is_heard = |at: usize, half| heard[at].is_none_or(|heard| heard == half);
            for (first, half) in (0..50_000).flat_map(|at| [(at, Half::Lower), (at, Half::Upper)]) {
                let retries = [EARLIEST, LATEST].map(|after| is_heard(first + after, half));
                assert!(is_heard(first, half) || retries == [true; 2], "{half:?} at {first} ms");
            }
        }
    }
}
