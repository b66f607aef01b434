//! The figures of one interval.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use weft_report::StatusReport;
use weft_tunnel::DropReason;

use super::schedule::Restart;
use crate::floods::pinger::{LOST, Ping};
use crate::stats::percentile;
use crate::usage::{Usage, rss};

/// Reasons that never concern what a peer with a session sent or gets: drops for these explain no loss.
const OF_STRANGERS: [DropReason; 9] = [
    DropReason::MalformedDatagram,
    DropReason::TruncatedDatagram,
    DropReason::InvalidMac,
    DropReason::CookieRequired,
    DropReason::HandshakeRateLimited,
    DropReason::UnknownPeer,
    DropReason::ReplayedHandshake,
    DropReason::UnexpectedHandshake,
    DropReason::InvalidTag,
];

/// The figures of one interval.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Seconds from the start of the run to the end of the interval.
    pub(super) at: u64,
    pub(super) mbit_to_gateway: f64,
    pub(super) mbit_from_gateway: f64,
    pub(super) pings: Times,
    pub(super) requests: Times,
    pub(super) gateway: Process,
    pub(super) client: Process,
    /// The gateway's drops by reason.
    pub(super) drops: BTreeMap<String, u64>,
    /// Packets of numbered flows, pings and peers.
    pub(super) sent: u64,
    /// How many of them did not arrive.
    pub(super) lost: Lost,
    /// Packets that weft or the kernel counted as dropped, for reasons that such a packet may have.
    pub(super) counted: u64,
    /// The longest time without progress of a bulk or ordered flow, in milliseconds.
    pub(super) longest_pause_ms: u64,
    /// How many packets of which peer did not arrive in time.
    pub(super) losers: BTreeMap<usize, u64>,
    /// Answers to peers that came after two seconds and more.
    pub(super) late: u64,
    pub(super) peers: u64,
    pub(super) visits: u64,
    pub(super) roams: u64,
    pub(super) reloads: u64,
    pub(super) restart: Option<Restart>,
    pub(super) flood: Option<&'static str>,
    /// Datagrams of the flood.
    pub(super) flooded: u64,
    pub(super) scrapes: u64,
    /// Cores of the machine that were busy, with this run and all other work.
    pub(super) busy_cores: f64,
    pub(super) faults: Vec<String>,
}

/// Packets that did not arrive.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Lost {
    /// Of numbered flows and their replies.
    pub(super) flows: u64,
    pub(super) pings: u64,
    /// Of peers, or the answers to them.
    pub(super) peers: u64,
}

impl Lost {
    pub(super) fn total(self) -> u64 {
        self.flows + self.pings + self.peers
    }
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Times {
    pub(super) count: usize,
    pub(super) lost: usize,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// What a daemon uses.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Process {
    pub(super) rss_mib: f64,
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) cpu_percent: f64,
}

impl Times {
    pub(super) fn of(mut millis: Vec<f64>, lost: usize) -> Self {
        millis.sort_by(f64::total_cmp);
        let part = |part| percentile(&millis, part).unwrap_or_default();
        Self { count: millis.len() + lost, lost, p50: part(0.5), p99: part(0.99), max: part(1.0) }
    }

    pub(super) fn of_pings(pings: &[Ping]) -> Self {
        let took: Vec<f64> =
            pings.iter().filter_map(|ping| Some(ping.took?.as_secs_f64() * 1000.0)).collect();
        let lost = pings.len() - took.len();
        debug_assert!(pings.iter().all(|ping| ping.took.is_none_or(|took| took < LOST * 1000)));
        Self::of(took, lost)
    }
}

impl Process {
    /// Reads what a process uses; `before` is its CPU time a span ago.
    pub(super) fn of(id: u32, before: Duration, span: Duration) -> Result<Self> {
        let count = |name: &str| {
            let path = format!("/proc/{id}/{name}");
            Ok::<_, anyhow::Error>(std::fs::read_dir(&path).with_context(|| path.clone())?.count())
        };
        let cpu = Usage::of(id)?.cpu.saturating_sub(before);
        Ok(Self {
            rss_mib: rss(id)? as f64 / f64::from(1 << 20),
            descriptors: count("fd")?,
            threads: count("task")?,
            cpu_percent: 100.0 * cpu.as_secs_f64() / span.as_secs_f64().max(1e-3),
        })
    }
}

/// Returns the drops by reason since the earlier report of the same daemon.
pub(super) fn drops_since(now: &StatusReport, earlier: &StatusReport) -> BTreeMap<String, u64> {
    let before = |reason: &str, direction: &str| {
        let same = |drop: &&weft_report::DropReport| drop.reason == reason && drop.direction == direction;
        earlier.drops.iter().find(same).map_or(0, |drop| drop.packets)
    };
    let mut drops = BTreeMap::new();
    for drop in &now.drops {
        let packets = drop.packets - before(&drop.reason, &drop.direction).min(drop.packets);
        if packets > 0 {
            *drops.entry(drop.reason.clone()).or_default() += packets;
        }
    }
    drops
}

/// Returns the packets that a daemon and the kernel at its device and sockets dropped since the earlier
/// report, for reasons that a packet of a peer may have.
pub(super) fn counted_since(now: &StatusReport, earlier: &StatusReport) -> u64 {
    let drops = drops_since(now, earlier);
    let of_strangers = |reason: &String| OF_STRANGERS.iter().any(|other| other.label() == reason);
    let weft: u64 =
        drops.iter().filter(|(reason, _)| !of_strangers(reason)).map(|(_, packets)| packets).sum();
    let overflows = |report: &StatusReport| {
        report.tun.queue_overflows + report.udp.receive_overflows + report.udp.junk_dropped
    };
    weft + overflows(now).saturating_sub(overflows(earlier))
}

#[cfg(test)]
mod tests {
    use weft_report::DropReport;

    use super::*;

    fn report(drops: &[(&str, u64)], overflows: u64) -> StatusReport {
        let drop = |(reason, packets): &(&str, u64)| DropReport {
            reason: (*reason).to_owned(),
            packets: *packets,
            ..DropReport::default()
        };
        let mut report = StatusReport { drops: drops.iter().map(drop).collect(), ..StatusReport::default() };
        report.udp.receive_overflows = overflows;
        report
    }

    #[test]
    fn drops_of_strangers_explain_no_loss() {
        let (earlier, now) = (
            report(&[("overload", 3), ("invalid_mac", 5)], 10),
            report(&[("overload", 5), ("invalid_mac", 900), ("no_session", 4)], 11),
        );
        assert_eq!(counted_since(&now, &earlier), 2 + 4 + 1);
        let drops = drops_since(&now, &earlier);
        assert_eq!(drops.get("invalid_mac"), Some(&895));
        assert!(!drops_since(&now, &now).contains_key("overload"));
    }

    #[test]
    fn lost_pings_count_beside_the_times_of_the_others() {
        let times = Times::of(vec![3.0, 1.0, 2.0], 1);
        assert_eq!((times.count, times.lost, times.p50, times.max), (4, 1, 2.0, 3.0));
    }
}
