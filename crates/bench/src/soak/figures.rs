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
use crate::report::{Figure, PING_P50, PING_P99, Sample};
use crate::stats::percentile;

const TO_GATEWAY: Figure = Figure::new("mbit_to_gateway", "Mbit/s to the gateway", 0);
const FROM_GATEWAY: Figure = Figure::new("mbit_from_gateway", "Mbit/s from it", 0);
const REQUEST_P50: Figure = Figure::new("request_p50_ms", "request p50 ms", 1);
const REQUEST_P99: Figure = Figure::new("request_p99_ms", "request p99 ms", 1);
const REQUESTS: Figure = Figure::new("requests", "requests", 0);
const PINGS: Figure = Figure::new("pings", "pings", 0);
const SENT: Figure = Figure::new("sent", "packets checked", 0);
const LOST: Figure = Figure::new("lost", "lost", 0);
const COUNTED: Figure = Figure::new("counted", "counted as dropped", 0);
const PAUSE: Figure = Figure::new("longest_pause_ms", "longest pause, ms", 0);
const VISITS: Figure = Figure::new("visits", "visits", 0);
const ROAMS: Figure = Figure::new("roams", "roams", 0);
const SCRAPES: Figure = Figure::new("scrapes", "scrapes", 0);
const RELOADS: Figure = Figure::new("reloads", "reloads", 0);
const FLOODED: Figure = Figure::new("flooded", "datagrams of floods", 0);
const BUSY: Figure = Figure::new("busy_cores", "busy cores", 1);
/// What the gateway and its client use: memory, descriptors, threads and CPU time.
const USED: [[Figure; 4]; 2] = [
    [
        Figure::new("gateway_rss_mib", "gateway: MiB", 1),
        Figure::new("gateway_descriptors", "descriptors", 0),
        Figure::new("gateway_threads", "threads", 0),
        Figure::new("gateway_cpu_percent", "CPU %", 0),
    ],
    [
        Figure::new("client_rss_mib", "client: MiB", 1),
        Figure::new("client_descriptors", "descriptors", 0),
        Figure::new("client_threads", "threads", 0),
        Figure::new("client_cpu_percent", "CPU %", 0),
    ],
];

/// Growth that is not counted: what caches and a few connections at the end of an interval explain.
type Allowed = fn(f64) -> f64;
const MEMORY: Allowed = |early| (0.1 * early).max(6.0);
const DESCRIPTORS: Allowed = |_| 3.0;
const THREADS: Allowed = |_| 2.0;

type Value = fn(&Figures) -> f64;

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

impl Figures {
    /// Returns the figures of the tables.
    pub(super) fn sample(&self) -> Sample {
        let mut sample = Sample::default()
            .with(TO_GATEWAY, self.mbit_to_gateway)
            .with(FROM_GATEWAY, self.mbit_from_gateway)
            .with(PINGS, self.pings.count as f64)
            .with(PING_P50, self.pings.p50)
            .with(PING_P99, self.pings.p99)
            .with(REQUESTS, self.requests.count as f64)
            .with(REQUEST_P50, self.requests.p50)
            .with(REQUEST_P99, self.requests.p99)
            .with(SENT, self.sent as f64)
            .with(LOST, self.lost.total() as f64)
            .with(COUNTED, self.counted as f64)
            .with(PAUSE, self.longest_pause_ms as f64)
            .with(VISITS, self.visits as f64)
            .with(ROAMS, self.roams as f64);
        for (process, figures) in [&self.gateway, &self.client].into_iter().zip(USED) {
            let Process { rss_mib, descriptors, threads, cpu_percent } = *process;
            let values = [rss_mib, descriptors as f64, threads as f64, cpu_percent];
            sample =
                figures.into_iter().zip(values).fold(sample, |sample, (of, value)| sample.with(of, value));
        }
        sample.with(BUSY, self.busy_cores)
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

    /// Returns what was lost in an interval with an event, and what was counted.
    pub(super) fn of_event(&self) -> Sample {
        let sample =
            Sample::default().with(LOST, self.lost.total() as f64).with(COUNTED, self.counted as f64);
        sample.with(FLOODED, self.flooded as f64)
    }

    /// Returns sums over all intervals.
    pub(super) fn sum(all: &[Self]) -> Sample {
        let sum = |of: fn(&Self) -> u64| all.iter().map(of).sum::<u64>() as f64;
        Sample::default()
            .with(SENT, sum(|figures| figures.sent))
            .with(LOST, sum(|figures| figures.lost.total()))
            .with(COUNTED, sum(|figures| figures.counted))
            .with(REQUESTS, sum(|figures| figures.requests.count as u64))
            .with(SCRAPES, sum(|figures| figures.scrapes))
            .with(RELOADS, sum(|figures| figures.reloads))
            .with(VISITS, sum(|figures| figures.visits))
            .with(ROAMS, sum(|figures| figures.roams))
            .with(FLOODED, sum(|figures| figures.flooded))
    }
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
