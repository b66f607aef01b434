//! Floods of initiations: when more arrive than there is time to read, the kernel drops those without a cookie of one half of
//! the sources, and of the other half in the next span. What does not fit the socket would be lost at random, and with it
//! both messages that a peer needs to prove its address. A peer that retries after 5 s (Rekey-Timeout, whitepaper, section
//! 6.1) is heard at its first or its second try, and with the cookie always.

use std::time::{Duration, Instant};

use weft_udp::{Half, Udp};

/// How long one half is heard.
const SPAN: Duration = Duration::from_secs(5);
/// The kernel stops after so long without a message left unread.
const QUIET: Duration = Duration::from_secs(10);

/// Which half of the sources is heard.
#[derive(Debug, Default)]
pub(super) struct InitiationFilter {
    on: Option<On>,
}

#[derive(Debug)]
struct On {
    half: Half,
    until: Instant,
}

impl InitiationFilter {
    /// Once a turn. `unread_at`: when messages were last left unread for lack of time.
    pub(super) fn turn(&mut self, now: Instant, unread_at: Option<Instant>, udp: &mut impl Udp) {
        let Some(unread_at) = unread_at else { return };
        if self.on.as_ref().is_some_and(|on| now < on.until) {
            return;
        }
        let is_flooded = now.duration_since(unread_at) < QUIET;
        let half = match (&self.on, is_flooded) {
            (None, false) => return,
            (None, true) => {
                tracing::info!(
                    "more handshake messages arrive than can be read: half of the sources are heard at a time"
                );
                Some(Half::Lower)
            }
            (Some(on), true) => Some(on.half.other()),
            (Some(_), false) => {
                tracing::info!("fewer handshake messages arrive: all sources are heard again");
                None
            }
        };
        udp.let_half_ask(half);
        self.on = half.map(|half| On { half, until: now + SPAN });
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_kernel::FakeKernel;
    use super::*;

    #[test]
    fn each_half_is_heard_for_five_seconds_until_ten_without_unread_messages() {
        let (mut filter, mut kernel, start) =
            (InitiationFilter::default(), FakeKernel::default(), Instant::now());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        filter.turn(at(0.0), None, &mut kernel);
        assert!(kernel.halves.is_empty());
        for tenth in 0..120 {
            let now = at(f64::from(tenth) / 10.0);
            filter.turn(now, Some(now), &mut kernel);
        }
        let (lower, upper) = (Some(Half::Lower), Some(Half::Upper));
        assert_eq!(std::mem::take(&mut kernel.halves), [lower, upper, lower]);
        for tenth in 120..500 {
            filter.turn(at(f64::from(tenth) / 10.0), Some(at(11.9)), &mut kernel);
        }
        assert_eq!(kernel.halves, [upper, lower, None]);
    }
}
