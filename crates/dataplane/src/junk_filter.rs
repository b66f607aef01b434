//! Protection from junk. While much of it arrives, the kernel drops messages with unknown receiver indices:
//! these cost time in the kernel instead of time of the packet thread.

use std::time::{Duration, Instant};

use weft_tunnel::{DropReason, Tunnel};
use weft_udp::Udp;

/// Number of messages for no session within a window from which on the kernel drops such messages.
const MUCH: u64 = 1000;
const WINDOW: Duration = Duration::from_secs(1);
/// The kernel filter stays on for this time after the last window with much junk.
const QUIET: Duration = Duration::from_secs(10);
/// Maximum number of indices to collect: beyond it the kernel cannot filter by index anyway.
const MOST: usize = 4096;

/// The receiver indices in use, and a count of messages that carry others.
pub(super) trait Receivers {
    /// Returns the number of messages so far that the kernel could have dropped.
    fn junk(&self) -> u64;
    /// Changes whenever [`Self::indices`] changes.
    fn version(&self) -> u64;
    /// Returns the receiver indices that messages may carry.
    fn indices(&self) -> impl Iterator<Item = u32>;
}

impl Receivers for Tunnel {
    fn junk(&self) -> u64 {
        let drops = self.drops();
        drops.get(DropReason::UnknownReceiverIndex) + drops.get(DropReason::MalformedDatagram)
    }

    fn version(&self) -> u64 {
        self.receiver_indices_version()
    }

    fn indices(&self) -> impl Iterator<Item = u32> {
        self.receiver_indices()
    }
}

/// Switches the kernel's filter for messages of no session.
#[derive(Debug, Default)]
pub(super) struct JunkFilter {
    window_began: Option<Instant>,
    /// The junk counter at the beginning of the window.
    dropped_before: u64,
    on: Option<On>,
}

#[derive(Debug)]
struct On {
    /// The version of the indices in the kernel's filter.
    version: u64,
    indices: Vec<u32>,
    /// The kernel's drop counter at the beginning of the window.
    dropped_before: u64,
    last_much: Instant,
}

impl JunkFilter {
    /// Runs once a turn.
    pub(super) fn turn(&mut self, now: Instant, receivers: &impl Receivers, udp: &mut impl Udp) {
        let dropped = receivers.junk();
        if self.on.is_none() && dropped.saturating_sub(self.dropped_before) > MUCH {
            self.switch_on(now, receivers, udp);
            // If the kernel cannot filter, the next attempt is in the next window.
            self.dropped_before = u64::MAX;
        }
        if self.window_began.is_some_and(|began| now.duration_since(began) < WINDOW) {
            return;
        }
        (self.window_began, self.dropped_before) = (Some(now), dropped);
        self.refresh(receivers, udp);
        let Some(on) = &mut self.on else { return };
        let junk = udp.junk_of_all();
        if junk.saturating_sub(on.dropped_before) > MUCH {
            on.last_much = now;
        }
        on.dropped_before = junk;
        if now.duration_since(on.last_much) >= QUIET {
            udp.let_pass(None);
            self.on = None;
            tracing::info!("no more junk arrives: messages with any receiver index are looked at again");
        }
    }

    /// Updates the kernel's filter if the indices changed. Call it before messages with new indices are sent.
    pub(super) fn refresh(&mut self, receivers: &impl Receivers, udp: &mut impl Udp) {
        let Some(on) = &mut self.on else { return };
        let version = receivers.version();
        if on.version == version {
            return;
        }
        on.version = version;
        gather(&mut on.indices, receivers);
        udp.let_pass(Some(&on.indices));
    }

    fn switch_on(&mut self, now: Instant, receivers: &impl Receivers, udp: &mut impl Udp) {
        let mut indices = Vec::new();
        gather(&mut indices, receivers);
        if !udp.let_pass(Some(&indices)) {
            return;
        }
        tracing::info!(
            indices = indices.len(),
            "much junk arrives: the kernel drops messages with unknown receiver indices"
        );
        let (version, dropped_before) = (receivers.version(), udp.junk_of_all());
        self.on = Some(On { version, indices, dropped_before, last_much: now });
    }
}

fn gather(indices: &mut Vec<u32>, receivers: &impl Receivers) {
    indices.clear();
    indices.extend(receivers.indices().take(MOST));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_kernel::FakeKernel;

    #[derive(Default)]
    struct Known {
        junk: u64,
        version: u64,
        indices: Vec<u32>,
    }

    impl Receivers for Known {
        fn junk(&self) -> u64 {
            self.junk
        }

        fn version(&self) -> u64 {
            self.version
        }

        fn indices(&self) -> impl Iterator<Item = u32> {
            self.indices.iter().copied()
        }
    }

    /// Returns a filter, the known indices, a fake kernel, and a function from seconds to instants.
    fn scene(can_filter: bool) -> (JunkFilter, Known, FakeKernel, impl Fn(f64) -> Instant) {
        let start = Instant::now();
        let known = Known { indices: vec![1, 2], ..Known::default() };
        let kernel = FakeKernel { can_filter, ..FakeKernel::default() };
        (JunkFilter::default(), known, kernel, move |seconds| start + Duration::from_secs_f64(seconds))
    }

    #[test]
    fn it_is_on_from_much_junk_within_a_second_until_ten_seconds_without() {
        let (mut filter, mut known, mut kernel, at) = scene(true);
        for second in 0..20 {
            filter.turn(at(f64::from(second)), &known, &mut kernel);
            known.junk += MUCH;
            filter.turn(at(f64::from(second) + 0.9), &known, &mut kernel);
        }
        assert!(kernel.passing.is_empty(), "a little for long is not much");
        filter.turn(at(20.0), &known, &mut kernel);
        known.junk += MUCH + 1;
        filter.turn(at(20.1), &known, &mut kernel);
        assert_eq!(std::mem::take(&mut kernel.passing), [Some(vec![1, 2])]);
        for second in 21..60 {
            kernel.junk_dropped += MUCH + 1;
            filter.turn(at(f64::from(second)), &known, &mut kernel);
        }
        for second in 60..69 {
            kernel.junk_dropped += MUCH;
            filter.turn(at(f64::from(second)), &known, &mut kernel);
        }
        assert!(kernel.passing.is_empty(), "it stays as it is");
        filter.turn(at(69.0), &known, &mut kernel);
        assert_eq!(std::mem::take(&mut kernel.passing), [None]);
        filter.refresh(&known, &mut kernel);
        assert!(kernel.passing.is_empty(), "it is off");
    }

    #[test]
    fn the_kernel_is_told_of_every_new_index_and_only_while_it_is_on() {
        let (mut filter, mut known, mut kernel, at) = scene(true);
        let add = |known: &mut Known, index| {
            known.version += 1;
            known.indices.push(index);
        };
        filter.turn(at(0.0), &known, &mut kernel);
        add(&mut known, 3);
        filter.refresh(&known, &mut kernel);
        assert!(kernel.passing.is_empty());
        known.junk += MUCH + 1;
        filter.turn(at(0.1), &known, &mut kernel);
        filter.refresh(&known, &mut kernel);
        assert_eq!(std::mem::take(&mut kernel.passing), [Some(vec![1, 2, 3])]);
        add(&mut known, 4);
        filter.refresh(&known, &mut kernel);
        assert_eq!(std::mem::take(&mut kernel.passing), [Some(vec![1, 2, 3, 4])]);
        // The removal of an index may wait for the next window.
        known.version += 1;
        known.indices.clear();
        filter.turn(at(0.2), &known, &mut kernel);
        assert!(kernel.passing.is_empty());
        filter.turn(at(1.2), &known, &mut kernel);
        assert_eq!(kernel.passing, [Some(vec![])]);
    }

    #[test]
    fn sockets_that_cannot_filter_are_asked_once_a_second() {
        let (mut filter, mut known, mut kernel, at) = scene(false);
        for turn in 0..30 {
            known.junk += MUCH;
            filter.turn(at(f64::from(turn) / 10.0), &known, &mut kernel);
        }
        assert!((2..=4).contains(&kernel.passing.len()), "{:?}", kernel.passing);
    }
}
