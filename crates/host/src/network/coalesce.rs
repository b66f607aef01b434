//! Merges bursts of events into one change: DHCP, a roaming Wi-Fi or a container that starts causes dozens of
//! events.
#![cfg_attr(
    not(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows)),
    allow(dead_code, reason = "nothing is watched")
)]

use std::time::{Duration, Instant};

use super::NetworkChange;

/// A change is reported when no further event came for this long.
const QUIET: Duration = Duration::from_millis(200);
/// A change is reported at most this long after its first event.
const LONGEST: Duration = Duration::from_secs(1);

/// Changes that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct Coalescer {
    pending: NetworkChange,
    /// When its first and its last event happened.
    since: Option<(Instant, Instant)>,
}

impl Coalescer {
    /// Records a change; an empty change is ignored.
    pub(super) fn note(&mut self, change: NetworkChange, now: Instant) {
        if change.is_empty() {
            return;
        }
        self.pending.add(change);
        let first = self.since.map_or(now, |(first, _)| first);
        self.since = Some((first, now));
    }

    /// Reports whether there is no reason to wait: the device is gone, or packets can leave past the tunnel.
    fn is_urgent(&self) -> bool {
        let NetworkChange { device_gone, device_up, rules_removed, device_undone, .. } = self.pending;
        device_gone || device_up || rules_removed || device_undone
    }

    /// Returns when the pending change is to be reported.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(
            |(first, last)| {
                if self.is_urgent() { first } else { (last + QUIET).min(first + LONGEST) }
            },
        )
    }

    /// Returns the pending change if it is to be reported now.
    pub(super) fn take(&mut self, now: Instant) -> Option<NetworkChange> {
        self.due().filter(|due| *due <= now)?;
        self.since = None;
        Some(std::mem::take(&mut self.pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::NO_CHANGE;

    const ROUTES: NetworkChange = change(false, true);
    const ADDRESSES: NetworkChange = change(true, false);

    const fn change(addresses: bool, routes: bool) -> NetworkChange {
        NetworkChange { addresses, routes, ..NO_CHANGE }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn nothing_is_told_of_nothing() {
        let (mut coalescer, now) = (Coalescer::default(), Instant::now());
        coalescer.note(NetworkChange::default(), now);
        assert_eq!((coalescer.due(), coalescer.take(now + ms(5000))), (None, None));
    }

    #[test]
    fn a_burst_is_told_once_when_it_is_over() {
        let (mut coalescer, start) = (Coalescer::default(), Instant::now());
        for step in 0..5 {
            coalescer.note(if step == 3 { ADDRESSES } else { ROUTES }, start + ms(step * 50));
            assert_eq!(coalescer.take(start + ms(step * 50)), None);
        }
        assert_eq!(coalescer.due(), Some(start + ms(400)));
        assert_eq!(coalescer.take(start + ms(399)), None);
        assert_eq!(coalescer.take(start + ms(400)), Some(change(true, true)));
        assert_eq!((coalescer.due(), coalescer.take(start + ms(900))), (None, None));
    }

    #[test]
    fn what_never_ends_is_told_every_second() {
        let (mut coalescer, start) = (Coalescer::default(), Instant::now());
        let mut told = Vec::new();
        for step in 0..300 {
            let now = start + ms(step * 10);
            coalescer.note(ROUTES, now);
            told.extend(coalescer.take(now).map(|_| step * 10));
        }
        assert_eq!(told, [1000, 2010]);
    }

    #[test]
    fn a_device_that_is_gone_and_what_lets_packets_past_the_tunnel_is_told_at_once() {
        for urgent in [
            NetworkChange { device_gone: true, ..ROUTES },
            NetworkChange { device_up: true, ..ROUTES },
            NetworkChange { rules_removed: true, ..ROUTES },
            NetworkChange { device_undone: true, ..ROUTES },
        ] {
            let (mut coalescer, now) = (Coalescer::default(), Instant::now());
            coalescer.note(urgent, now);
            assert_eq!(coalescer.take(now), Some(urgent));
        }
    }

    #[test]
    fn the_last_mtu_counts_and_sleeps_add_up() {
        let (mut coalescer, now) = (Coalescer::default(), Instant::now());
        coalescer.note(NetworkChange { device_mtu: Some(1300), slept: Some(ms(1)), ..ROUTES }, now);
        coalescer.note(NetworkChange { device_mtu: Some(1400), slept: Some(ms(2)), ..ROUTES }, now);
        let change = coalescer.take(now + ms(200)).unwrap();
        assert_eq!((change.device_mtu, change.slept), (Some(1400), Some(ms(3))));
    }
}
