//! Protection from floods of initiations. When more arrive than there is time to read, the kernel drops
//! initiations without a cookie from one half of the sources, and in the next span from the other half.
//! Otherwise the socket overflows and drops messages at random, among them both messages that a peer needs to
//! prove its address. With the filter a retrying peer gets through at its first or second attempt, and always
//! if it has a cookie.

use std::time::{Duration, Instant};

use weft_udp::{Half, Udp};

/// How long one half of the sources is admitted. It equals the mean interval between the retries of a peer:
/// 5 s (Rekey-Timeout, whitepaper, section 6.1) plus a random part of a third of a second. So few retries
/// miss the span of their half.
const SPAN: Duration = Duration::from_millis(5167);
/// The filter is switched off after this time without a message left unread.
const QUIET: Duration = Duration::from_secs(10);
/// How long messages may stay unread after a measurement: with a larger budget the loop catches up within
/// this time.
const CATCH_UP: Duration = Duration::from_secs(1);

/// The half of the sources that is admitted.
#[derive(Debug, Default)]
pub(super) enum InitiationFilter {
    /// All sources are admitted.
    #[default]
    Off,
    /// All sources are admitted; the time budget of handshakes was measured at this time.
    Measured(Instant),
    On {
        half: Half,
        until: Instant,
    },
}

impl InitiationFilter {
    /// Runs once a turn. `unread_at` is the time at which messages were last left unread for lack of time.
    /// `measure` measures the time budget of handshakes again: during the first measurement another program
    /// may have slowed the core down.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        unread_at: Option<Instant>,
        udp: &mut impl Udp,
        measure: impl FnOnce(),
    ) {
        let Some(unread_at) = unread_at else { return };
        let is_flooded = now.duration_since(unread_at) < QUIET;
        *self = match *self {
            Self::Off if is_flooded => {
                measure();
                Self::Measured(now)
            }
            Self::Measured(at) if unread_at > at + CATCH_UP => {
                tracing::info!(
                    "more handshake messages arrive than can be read: half of the sources are heard at a time"
                );
                Self::switch_on(Half::Lower, now, udp)
            }
            Self::Measured(_) if !is_flooded => Self::Off,
            Self::On { half, until } if now >= until && is_flooded => Self::switch_on(half.other(), now, udp),
            Self::On { until, .. } if now >= until => {
                tracing::info!("fewer handshake messages arrive: all sources are heard again");
                udp.let_half_ask(None);
                Self::Off
            }
            Self::Off | Self::Measured(_) | Self::On { .. } => return,
        };
    }

    fn switch_on(half: Half, now: Instant, udp: &mut impl Udp) -> Self {
        udp.let_half_ask(Some(half));
        Self::On { half, until: now + SPAN }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_kernel::FakeKernel;
    use super::*;

    const LOWER: Option<Half> = Some(Half::Lower);
    const UPPER: Option<Half> = Some(Half::Upper);

    /// Runs ten turns a second for a range of seconds. `unread_at` returns the time at which messages were
    /// last left unread.
    fn run(
        filter: &mut InitiationFilter,
        kernel: &mut FakeKernel,
        start: Instant,
        seconds: std::ops::Range<u64>,
        unread_at: impl Fn(Instant) -> Option<Instant>,
    ) -> usize {
        let mut measurements = 0;
        for tenth in 10 * seconds.start..10 * seconds.end {
            let now = start + Duration::from_millis(100 * tenth);
            filter.turn(now, unread_at(now), kernel, || measurements += 1);
        }
        measurements
    }

    #[test]
    fn each_half_is_heard_for_a_span_until_ten_seconds_without_unread_messages() {
        let (mut filter, mut kernel, start) =
            (InitiationFilter::default(), FakeKernel::default(), Instant::now());
        assert_eq!(run(&mut filter, &mut kernel, start, 0..1, |_| None), 0);
        assert_eq!(run(&mut filter, &mut kernel, start, 1..15, Some), 1);
        assert_eq!(std::mem::take(&mut kernel.halves), [LOWER, UPPER, LOWER]);
        let last = start + Duration::from_millis(14_900);
        assert_eq!(run(&mut filter, &mut kernel, start, 15..50, |_| Some(last)), 0);
        assert_eq!(kernel.halves, [UPPER, LOWER, None]);
    }

    #[test]
    fn all_sources_are_heard_if_another_measurement_gives_enough_time() {
        let (mut filter, mut kernel, start) =
            (InitiationFilter::default(), FakeKernel::default(), Instant::now());
        let caught_up = start + Duration::from_millis(900);
        let unread_at = |now: Instant| Some(now.min(caught_up));
        assert_eq!(run(&mut filter, &mut kernel, start, 0..30, unread_at), 1);
        assert_eq!(kernel.halves, []);
        // A later flood starts over with a measurement.
        assert_eq!(run(&mut filter, &mut kernel, start, 30..35, Some), 1);
        assert_eq!(kernel.halves, [LOWER]);
    }
}
