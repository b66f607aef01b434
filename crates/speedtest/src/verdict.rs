//! What limited a test: pure functions of its samples.
//!
//! The kernel divides the time of a sender: without data to send, held by the receiver's window, held by the
//! send buffer, and the rest, in which the congestion window holds it (TCP_INFO, tcp(7)). The rules below say
//! what is behind the congestion window in each interval between two samples.

use serde::{Deserialize, Serialize};

use crate::sample::{Counters, CpuTimes, Sample, Tcp};

#[cfg(test)]
mod tests;

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The receiver's window: its receive buffer is smaller than rate × round trip.
    ReceiveWindow,
    /// The send buffer is smaller than rate × round trip.
    SendBuffer,
    /// A rate limit of a peer.
    RateLimit,
    /// A packet thread.
    PacketThread,
    /// The kernel's queue before the daemon, of the TUN or of a socket: bursts do not fit.
    KernelQueue,
    /// The processors of the sender.
    SenderCpu,
    /// The processors of the receiver.
    ReceiverCpu,
    /// A link: its queue is filled, so the round trip is above its minimum.
    Link,
    /// Segments are lost although no queue is filled.
    LossOutside,
    /// The congestion window still grows.
    SlowStart,
    /// The sender writes too little.
    Application,
    /// No rule explains it.
    Unclear,
}

/// A cause and its share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What limited the rate.
    pub cause: Cause,
    /// The share of the time, from 0 to 1.
    pub share: f64,
}

/// How long a loss shows in the congestion window, in microseconds: CUBIC (RFC 9438) takes seconds to grow
/// back on long round trips.
const RECENT_US: u64 = 3_000_000;
/// The share of its time from which a thread is the limit.
const FULL_THREAD: f64 = 0.9;
/// The share of its time from which a machine is full.
const FULL_MACHINE: f64 = 0.95;
/// The share of a full machine's work that daemon and test have at least, if they are what fills it.
const OWN_WORK: f64 = 0.3;
/// The share of the receiver's window from which the congestion window counts as reaching it.
const SAME_WINDOW: f64 = 0.95;
/// The least rise of the round trip that shows a filled queue: a quarter and 2 ms above the minimum.
const RISE: (f64, f64) = (1.25, 2_000.0);

/// What both ends did between two samples of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Interval {
    seconds: f64,
    /// Shares of the time: with data to send, held by the receiver's window, held by the send buffer.
    busy: f64,
    rwnd: f64,
    sndbuf: f64,
    /// Whether these happened in this interval or shortly before.
    recent: Recent,
    /// The share of the time in which the busiest packet thread of both ends had work.
    packet_thread: f64,
    sender_is_full: bool,
    receiver_is_full: bool,
    /// Whether the receiver's window is below the congestion window, which then does not matter.
    is_window_small: bool,
    is_rtt_raised: bool,
    is_in_slow_start: bool,
}

/// Losses by their place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Recent {
    retransmits: bool,
    /// Whether the last of them came from a filled queue.
    from_queue: bool,
    over_limit: bool,
    overload: bool,
    kernel_queue: bool,
}

/// Decides whether a cause explains an interval.
type Rule = fn(&Interval) -> bool;

/// What is behind a congestion window that holds the sender: the first rule that holds.
const RULES: [(Cause, Rule); 10] = [
    (Cause::RateLimit, |it| it.recent.over_limit),
    // Before the packet thread, which then waits for a processor.
    (Cause::SenderCpu, |it| it.sender_is_full),
    (Cause::ReceiverCpu, |it| it.receiver_is_full),
    (Cause::PacketThread, |it| it.packet_thread >= FULL_THREAD || it.recent.overload),
    (Cause::KernelQueue, |it| it.recent.kernel_queue),
    (Cause::ReceiveWindow, |it| it.is_window_small),
    (Cause::Link, |it| it.is_rtt_raised || it.recent.from_queue),
    (Cause::LossOutside, |it| it.recent.retransmits),
    (Cause::SlowStart, |it| it.is_in_slow_start),
    (Cause::Unclear, |_| true),
];

impl Interval {
    /// Divides its time among the causes.
    fn shares(&self) -> [(Cause, f64); 4] {
        let idle = 1.0 - self.busy;
        // The peer may tell any numbers.
        let rwnd = self.rwnd.min(self.busy);
        let sndbuf = self.sndbuf.min(self.busy - rwnd);
        let rest = self.busy - rwnd - sndbuf;
        let behind_window = RULES.iter().find(|(_, rule)| rule(self)).map(|(cause, _)| *cause);
        [
            (if self.sender_is_full { Cause::SenderCpu } else { Cause::Application }, idle),
            (self.behind_buffer(Cause::ReceiveWindow), rwnd),
            (self.behind_buffer(Cause::SendBuffer), sndbuf),
            (behind_window.unwrap_or(Cause::Unclear), rest),
        ]
    }

    /// Returns what is behind a full buffer: a larger one would only wait longer before a full processor or a
    /// busy packet thread.
    fn behind_buffer(&self, buffer: Cause) -> Cause {
        match buffer {
            Cause::SendBuffer if self.sender_is_full => Cause::SenderCpu,
            _ if self.receiver_is_full => Cause::ReceiverCpu,
            _ if self.packet_thread >= FULL_THREAD => Cause::PacketThread,
            _ => buffer,
        }
    }
}

/// Returns what limited a test, the largest share first; shares below a hundredth are left out. Empty without
/// two samples of the sender.
pub fn verdicts(sender: &[Sample], receiver: &[Sample]) -> Vec<Verdict> {
    let intervals = intervals(sender, receiver);
    let whole: f64 = intervals.iter().map(|interval| interval.seconds).sum();
    let mut verdicts: Vec<Verdict> = Vec::new();
    for interval in &intervals {
        for (cause, share) in interval.shares() {
            let share = share * interval.seconds / whole;
            match verdicts.iter_mut().find(|verdict| verdict.cause == cause) {
                Some(verdict) => verdict.share += share,
                None => verdicts.push(Verdict { cause, share }),
            }
        }
    }
    verdicts.retain(|verdict| verdict.share >= 0.01);
    verdicts.sort_by(|a, b| b.share.total_cmp(&a.share));
    verdicts
}

fn intervals(sender: &[Sample], receiver: &[Sample]) -> Vec<Interval> {
    let interval = |pair: &[Sample]| {
        let [first, last] = pair else { return None };
        let (tcp_before, tcp) = (first.tcp.as_ref()?, last.tcp.as_ref()?);
        let elapsed = last.at_us.checked_sub(first.at_us).filter(|elapsed| *elapsed > 0)? as f64;
        let share = |before: u64, after: u64| (after.saturating_sub(before) as f64 / elapsed).min(1.0);
        let there = [at(receiver, first.at_us), at(receiver, last.at_us)];
        let is_full = |samples: [Option<&Sample>; 2]| match samples {
            [Some(before), Some(after)] => is_full(before, after),
            _ => false,
        };
        let packet_thread = |end: &[Sample]| busiest(end, last.at_us);
        Some(Interval {
            seconds: elapsed / 1e6,
            busy: share(tcp_before.busy_us, tcp.busy_us),
            rwnd: share(tcp_before.rwnd_limited_us, tcp.rwnd_limited_us),
            sndbuf: share(tcp_before.sndbuf_limited_us, tcp.sndbuf_limited_us),
            recent: recent(sender, receiver, last.at_us),
            packet_thread: packet_thread(sender).max(packet_thread(receiver)),
            sender_is_full: is_full([Some(first), Some(last)]),
            receiver_is_full: is_full(there),
            is_window_small: tcp.receive_window_bytes > 0
                && tcp.cwnd_bytes as f64 >= tcp.receive_window_bytes as f64 * SAME_WINDOW,
            is_rtt_raised: is_rtt_raised(last),
            is_in_slow_start: tcp.in_slow_start > 0,
        })
    };
    sender.windows(2).filter_map(interval).collect()
}

/// Returns the last sample until this time.
fn at(samples: &[Sample], at_us: u64) -> Option<&Sample> {
    samples[..samples.partition_point(|sample| sample.at_us <= at_us)].last()
}

/// Returns the losses of the last [`RECENT_US`].
fn recent(sender: &[Sample], receiver: &[Sample], at_us: u64) -> Recent {
    let grew = |samples: &[Sample], count: fn(&Sample) -> u64| {
        let before = at(samples, at_us.saturating_sub(RECENT_US)).or(samples.first());
        before.zip(at(samples, at_us)).is_some_and(|(before, after)| count(after) > count(before))
    };
    let retransmits = |sample: &Sample| sample.tcp.as_ref().map_or(0, |tcp| tcp.retransmits);
    let over_limit = |sample: &Sample| sample.counters.as_ref().map_or(0, |it| it.over_limit);
    let overload = |sample: &Sample| sample.counters.as_ref().map_or(0, Counters::overload);
    let dropped_before = |sample: &Sample| sample.counters.as_ref().map_or(0, Counters::dropped_before);
    let at_either = |count: fn(&Sample) -> u64| grew(sender, count) || grew(receiver, count);
    // The last two samples between which segments were sent again.
    let until = &sender[..sender.partition_point(|sample| sample.at_us <= at_us)];
    let mut pairs = until.windows(2).rev().take_while(|pair| at_us.saturating_sub(pair[1].at_us) < RECENT_US);
    let last = pairs.find(|pair| retransmits(&pair[1]) > retransmits(&pair[0]));
    let retransmits = last.is_some();
    Recent {
        retransmits,
        from_queue: last.is_some_and(|pair| pair.iter().any(is_rtt_raised)),
        // What other traffic loses in weft is no matter of this test.
        over_limit: retransmits && at_either(over_limit),
        overload: retransmits && at_either(overload),
        kernel_queue: retransmits && at_either(dropped_before),
    }
}

/// Whether the round trip is above its minimum.
fn is_rtt_raised(sample: &Sample) -> bool {
    let raised = |tcp: &Tcp| tcp.rtt_us as f64 >= tcp.min_rtt_us as f64 * RISE.0 + RISE.1;
    sample.tcp.as_ref().is_some_and(raised)
}

/// Whether the processors hold an end: the thread of the test is always at work, or the machine is, mostly
/// for daemon and test.
fn is_full(before: &Sample, after: &Sample) -> bool {
    let grown = |part: fn(&CpuTimes) -> u64| part(&after.cpu).saturating_sub(part(&before.cpu)) as f64;
    let elapsed = after.at_us.saturating_sub(before.at_us) as f64;
    let (busy, all) = (grown(|cpu| cpu.machine_busy_us), grown(|cpu| cpu.machine_us));
    let machine_is_full =
        all > 0.0 && busy / all >= FULL_MACHINE && grown(|cpu| cpu.own_us) >= busy * OWN_WORK;
    let thread_is_full = elapsed > 0.0 && grown(|cpu| cpu.thread_us) / elapsed >= FULL_THREAD;
    machine_is_full || thread_is_full
}

/// Returns the share of the time in which the busiest packet thread had work, between the last two different
/// counters of the daemon until this time.
fn busiest(samples: &[Sample], at_us: u64) -> f64 {
    let until = &samples[..samples.partition_point(|sample| sample.at_us <= at_us)];
    let mut counters = until.iter().rev().filter_map(|sample| sample.counters.as_ref());
    let Some(last) = counters.next() else { return 0.0 };
    // Those from before the test are of an unknown time.
    let Some(before) = counters.find(|before| before.at_us < last.at_us).filter(|before| before.at_us > 0)
    else {
        return 0.0;
    };
    let elapsed = (last.at_us - before.at_us) as f64;
    let threads = last.busy_us.iter().zip(&before.busy_us);
    threads.map(|(after, before)| after.saturating_sub(*before) as f64 / elapsed).fold(0.0, f64::max)
}

/// WireGuard's data messages that were lost or displaced between the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outside {
    /// Those lost.
    pub lost: u64,
    /// The share of those sent that were lost.
    pub lost_share: f64,
    /// Those that arrived after a later one.
    pub displaced: u64,
}

/// Returns what was lost and displaced between the daemons on the way to the receiver, exactly: by the
/// counters that the messages carry, from before the test until after it. Those lost include what the
/// receiver's kernel and daemon dropped before they were authenticated. `most` is what may have been sent.
pub fn outside(receiver: &[Option<Counters>; 2], most: u64) -> Option<Outside> {
    let [Some(before), Some(after)] = receiver else { return None };
    let grown = |count: fn(&Counters) -> u64| count(after).saturating_sub(count(before));
    let expected = grown(|it| it.expected_messages).min(most);
    // A message that was missing before the test may have arrived since.
    let lost = expected.saturating_sub(grown(|it| it.received_messages));
    let displaced = grown(|it| it.displaced_messages).min(most);
    (expected > 0).then(|| Outside { lost, lost_share: lost as f64 / expected as f64, displaced })
}
