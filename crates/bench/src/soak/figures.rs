//! The figures of one interval.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use weft_report::StatusReport;
use weft_tunnel::DropReason;

use super::schedule::Restart;
use crate::floods::pinger::Ping;
use crate::machine::{Usage, rss_mib};
use crate::report::{Figure, Sample};
use crate::stats::percentile;

/// A figure of tables: its name in JSON, its title, its decimals, and its value.
type Shown = (&'static str, &'static str, usize, Value);
type Value = fn(&Figures) -> f64;

const SENT: Shown = ("sent", "packets checked", 0, |of| of.sent as f64);
const LOST: Shown = ("lost", "lost", 0, |of| of.lost.total() as f64);
const COUNTED: Shown = ("counted", "counted as dropped", 0, |of| of.counted as f64);
const REQUESTS: Shown = ("requests", "requests", 0, |of| of.requests.count as f64);
const VISITS: Shown = ("visits", "visits", 0, |of| of.visits as f64);
const ROAMS: Shown = ("roams", "roams", 0, |of| of.roams as f64);
const FLOODED: Shown = ("flooded", "datagrams of floods", 0, |of| of.flooded as f64);

/// The figures of an interval.
const ALL: [Shown; 23] = [
    ("mbit_to_gateway", "Mbit/s to the gateway", 0, |of| of.mbit_to_gateway),
    ("mbit_from_gateway", "Mbit/s from it", 0, |of| of.mbit_from_gateway),
    ("pings", "pings", 0, |of| of.pings.count as f64),
    ("ping_p50_ms", "p50 ms", 3, |of| of.pings.p50),
    ("ping_p99_ms", "p99 ms", 3, |of| of.pings.p99),
    REQUESTS,
    ("request_p50_ms", "request p50 ms", 1, |of| of.requests.p50),
    ("request_p99_ms", "request p99 ms", 1, |of| of.requests.p99),
    SENT,
    LOST,
    COUNTED,
    ("longest_pause_ms", "longest pause, ms", 0, |of| of.longest_pause_ms as f64),
    VISITS,
    ROAMS,
    ("gateway_rss_mib", "gateway: MiB", 1, |of| of.gateway.rss_mib),
    ("gateway_descriptors", "descriptors", 0, |of| of.gateway.descriptors as f64),
    ("gateway_threads", "threads", 0, |of| of.gateway.threads as f64),
    ("gateway_cpu_percent", "CPU %", 0, |of| of.gateway.cpu_percent),
    ("client_rss_mib", "client: MiB", 1, |of| of.client.rss_mib),
    ("client_descriptors", "descriptors", 0, |of| of.client.descriptors as f64),
    ("client_threads", "threads", 0, |of| of.client.threads as f64),
    ("client_cpu_percent", "CPU %", 0, |of| of.client.cpu_percent),
    ("busy_cores", "busy cores", 1, |of| of.busy_cores),
];
/// What was lost in an interval with an event, and what was counted.
const OF_EVENT: [Shown; 3] = [LOST, COUNTED, FLOODED];
/// The figures that are added up over all intervals.
const SUMS: [Shown; 9] = [
    SENT,
    LOST,
    COUNTED,
    REQUESTS,
    ("scrapes", "scrapes", 0, |of| of.scrapes as f64),
    ("reloads", "reloads", 0, |of| of.reloads as f64),
    VISITS,
    ROAMS,
    FLOODED,
];

/// Growth that is not counted: what caches and a few connections at the end of an interval explain.
type Allowed = fn(f64) -> f64;
const MEMORY: Allowed = |early| (0.1 * early).max(6.0);
const DESCRIPTORS: Allowed = |_| 3.0;
const THREADS: Allowed = |_| 2.0;

/// What must not grow: its name, its value, and what growth is allowed.
pub(super) const STEADY: [(&str, Value, Allowed); 6] = [
    ("memory of the gateway, MiB", |figures| figures.gateway.rss_mib, MEMORY),
    ("memory of the client, MiB", |figures| figures.client.rss_mib, MEMORY),
    ("descriptors of the gateway", |figures| figures.gateway.descriptors as f64, DESCRIPTORS),
    ("descriptors of the client", |figures| figures.client.descriptors as f64, DESCRIPTORS),
    ("threads of the gateway", |figures| figures.gateway.threads as f64, THREADS),
    ("threads of the client", |figures| figures.client.threads as f64, THREADS),
];

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

impl Figures {
    /// Returns the figures of the tables.
    pub(super) fn sample(&self) -> Sample {
        sum(std::slice::from_ref(self), &ALL)
    }

    /// Returns the names of what happened in the interval.
    pub(super) fn events(&self) -> Vec<String> {
        let events = [
            self.restart.map(|how| format!("restart, {how:?}").to_lowercase()),
            self.flood.map(|name| format!("flood, {name}")),
            (self.reloads > 0).then(|| "reload".to_owned()),
        ];
        events.into_iter().flatten().collect()
    }

    /// Returns the figures of an interval with an event.
    pub(super) fn of_event(&self) -> Sample {
        sum(std::slice::from_ref(self), &OF_EVENT)
    }

    /// Returns sums over all intervals.
    pub(super) fn sum(all: &[Self]) -> Sample {
        sum(all, &SUMS)
    }
}

fn sum(intervals: &[Figures], shown: &[Shown]) -> Sample {
    let values = shown.iter().map(|(name, title, decimals, value)| {
        (Figure::new(name, title, *decimals), intervals.iter().map(value).sum())
    });
    values.fold(Sample::default(), |sample, (figure, value)| sample.with(figure, value))
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
    pub(super) fn of(millis: &[f64], lost: usize) -> Self {
        let part = |part| percentile(millis, part).unwrap_or_default();
        Self { count: millis.len() + lost, lost, p50: part(0.5), p99: part(0.99), max: part(1.0) }
    }

    pub(super) fn of_pings(pings: &[Ping]) -> Self {
        let took: Vec<f64> =
            pings.iter().filter_map(|ping| Some(ping.took?.as_secs_f64() * 1000.0)).collect();
        let lost = pings.len() - took.len();
        Self::of(&took, lost)
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
            rss_mib: rss_mib(id)?,
            descriptors: count("fd")?,
            threads: count("task")?,
            cpu_percent: 100.0 * cpu.as_secs_f64() / span.as_secs_f64().max(1e-3),
        })
    }
}

/// Returns the drops by reason since the earlier report of the same daemon.
fn drops_since(now: &StatusReport, earlier: &StatusReport) -> BTreeMap<String, u64> {
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
