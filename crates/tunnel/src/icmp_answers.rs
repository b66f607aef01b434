//! ICMP answers to refused packets: how many wait for the TUN, and how often they are made.

use std::collections::VecDeque;
use std::time::Instant;

use crate::bucket::Bucket;
use crate::icmp::IcmpError;

/// Maximum number of answers that wait for the TUN: 20 KiB.
const SLOTS: usize = 16;
/// Rate and burst of the answers of one kind. In WireGuard for Linux the kernel's limit of 1000 a second and
/// 50 at once applies to the whole machine (net.ipv4.icmp_msgs_per_sec and icmp_msgs_burst).
const PER_SECOND: u64 = 100;
const BURST: u64 = 32;

/// Answers that wait for the TUN, and the rate limits of further answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: VecDeque<Box<[u8]>>,
    unreachable: Bucket,
    /// Separate from the other limit: otherwise a scan for absent hosts could suppress these answers, and
    /// turn a path into a black hole.
    too_big: Bucket,
}

impl Answers {
    /// Keeps an answer if the rate limit and the slots allow it.
    pub(crate) fn offer(
        &mut self,
        error: IcmpError,
        now: Instant,
        answer: impl FnOnce() -> Option<Box<[u8]>>,
    ) -> Offered {
        let Some(answer) = answer() else { return Offered::NotDue };
        let bucket = match error {
            IcmpError::HostUnreachable => &mut self.unreachable,
            IcmpError::TooBig { .. } => &mut self.too_big,
        };
        if self.waiting.len() >= SLOTS || !bucket.try_take(PER_SECOND, BURST, now) {
            return Offered::Suppressed;
        }
        self.waiting.push_back(answer);
        Offered::Kept
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes and returns the oldest answer.
    pub(crate) fn pop(&mut self) -> Option<Box<[u8]>> {
        self.waiting.pop_front()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    Kept,
    Suppressed,
    NotDue,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answers_at(answers: &mut Answers, error: IcmpError, now: Instant, tries: usize) -> usize {
        let mut kept = 0;
        for _ in 0..tries {
            kept += usize::from(answers.offer(error, now, || Some(Box::default())) == Offered::Kept);
            answers.waiting.clear();
        }
        kept
    }

    #[test]
    fn there_is_a_burst_of_answers_and_then_a_rate() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        let error = IcmpError::HostUnreachable;
        assert_eq!(answers_at(&mut answers, error, start, 100), BURST as usize);
        assert_eq!(answers_at(&mut answers, error, start + Duration::from_millis(50), 100), 5);
        assert_eq!(answers_at(&mut answers, error, start + Duration::from_secs(3600), 100), BURST as usize);
    }

    #[test]
    fn one_kind_of_answers_leaves_the_other_its_share() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        answers_at(&mut answers, IcmpError::HostUnreachable, now, 100);
        assert_eq!(answers_at(&mut answers, IcmpError::TooBig { mtu: 1 }, now, 100), BURST as usize);
    }

    #[test]
    fn what_finds_no_slot_is_not_kept() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        for tried in 0..BURST as usize {
            let offered = answers.offer(IcmpError::HostUnreachable, now, || Some(Box::default()));
            assert_eq!(offered == Offered::Kept, tried < SLOTS);
        }
        assert_eq!(answers.waiting.len(), SLOTS);
    }

    #[test]
    fn what_is_not_to_be_answered_takes_no_share() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(answers.offer(IcmpError::HostUnreachable, now, || None), Offered::NotDue);
        }
        assert_eq!(answers_at(&mut answers, IcmpError::HostUnreachable, now, 100), BURST as usize);
    }
}
