//! The report, as JSON and as text.

use std::fmt::Write as _;

use serde::Serialize;

use super::args::PeersArgs;
use super::fairness::Fairness;
use super::measure::{Direction, Throughput};
use crate::machine::Machine;
use crate::output;
use crate::stats::{Summary, ratios};

/// The report of all gateways.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    configured: u32,
    active: u32,
    burst: u32,
    window: u32,
    seconds: u32,
    pub(super) subjects: Vec<Subject>,
    /// Failures and deviations.
    pub(super) notes: Vec<String>,
}

/// The figures of one gateway.
#[derive(Debug, Serialize)]
pub(super) struct Subject {
    pub(super) name: String,
    start: Start,
    pub(super) handshakes: Option<Handshakes>,
    pub(super) idle_configured: Option<Idle>,
    pub(super) idle_sessions: Option<Idle>,
    pub(super) throughput: Pairs,
    pub(super) fairness: Fairness,
    pub(super) dump: Option<Dump>,
    pub(super) peak_rss_bytes: u64,
}

/// Figures once all peers are configured.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Start {
    pub(super) seconds: f64,
    pub(super) rss_bytes: u64,
    /// Resident memory beyond that of the same daemon with one peer, divided by the number of further peers.
    pub(super) bytes_per_idle_peer: f64,
}

/// Figures of all handshakes at once.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Handshakes {
    pub(super) complete: u32,
    pub(super) half_seconds: f64,
    pub(super) all_seconds: f64,
    pub(super) per_second: f64,
    pub(super) cpu_millis_each: f64,
    pub(super) rss_bytes: u64,
}

/// Figures without traffic.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Idle {
    pub(super) cpu_percent: f64,
    pub(super) wake_ups_per_second: f64,
}

/// Target: lower bound of the throughput of all active peers divided by that of one peer.
const LEAST: f64 = 0.7;

/// Throughput of one peer and of all active ones, measured one after the other.
#[derive(Debug, Default, Serialize)]
pub(super) struct Pairs {
    upload: Vec<(Throughput, Throughput)>,
    download: Vec<(Throughput, Throughput)>,
}

impl Pairs {
    pub(super) fn push(&mut self, direction: Direction, one: Throughput, many: Throughput) {
        match direction {
            Direction::Upload => self.upload.push((one, many)),
            Direction::Download => self.download.push((one, many)),
        }
    }

    fn lines(&self) -> String {
        let mut text = String::new();
        for (name, pairs) in [("upload", &self.upload), ("download", &self.download)] {
            let of = |what: fn(&Throughput) -> f64| {
                ratios(pairs.iter().map(|(one, many)| (what(many), what(one))))
            };
            let (Some(speed), Some(cpu)) =
                (of(|figures| figures.gbit_per_second), of(|figures| figures.cpu_seconds_per_gbit))
            else {
                continue;
            };
            let many = |what: fn(&Throughput) -> f64| {
                Summary::of(pairs.iter().map(|(_, many)| what(many))).map_or(0.0, |summary| summary.median)
            };
            let sum = |what: fn(&Throughput) -> u64| pairs.iter().map(|(_, many)| what(many)).sum::<u64>();
            let _ = writeln!(
                text,
                "  {name:<10} all peers to one: throughput {:.2} ({:.2} to {:.2}), CPU per Gbit {:.2} ({:.2} to {:.2}); wanted at least {LEAST:.1}: {}\n    \
                 all peers: {:.3} Gbit/s, {:.3} CPU s/Gbit, slowest to fastest {:.2}, Jain {:.3}, of {} packets {} lost, \
                 {} displaced; socket full {}, TUN full {}",
                speed.median,
                speed.lowest,
                speed.highest,
                cpu.median,
                cpu.lowest,
                cpu.highest,
                if speed.median >= LEAST { "✓" } else { "✗" },
                many(|figures| figures.gbit_per_second),
                many(|figures| figures.cpu_seconds_per_gbit),
                many(|figures| figures.slowest_to_fastest),
                many(|figures| figures.jain),
                sum(|figures| figures.sent),
                sum(|figures| figures.lost),
                sum(|figures| figures.displaced),
                sum(|figures| figures.socket_overflows),
                sum(|figures| figures.tun_overflows),
            );
        }
        text
    }
}

/// UAPI dumps of all peers while the active peers send.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Dump {
    peers: usize,
    median_seconds: f64,
    fewest_packets_meanwhile: u64,
    gbit_per_second_meanwhile: f64,
}

impl Dump {
    pub(super) fn new(asked: &[(f64, usize, u64)], figures: &Throughput) -> Self {
        Self {
            peers: asked.iter().map(|(_, peers, _)| *peers).min().unwrap_or(0),
            median_seconds: Summary::of(asked.iter().map(|(seconds, ..)| *seconds))
                .map_or(0.0, |all| all.median),
            fewest_packets_meanwhile: asked.iter().map(|(.., packets)| *packets).min().unwrap_or(0),
            gbit_per_second_meanwhile: figures.gbit_per_second,
        }
    }
}

impl Report {
    pub(super) fn new(args: &PeersArgs, machine: Machine) -> Self {
        let PeersArgs { configured, active, burst, window, secs, .. } = *args;
        Self {
            machine,
            configured,
            active,
            burst,
            window,
            seconds: secs,
            subjects: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a gateway, and returns its index.
    pub(super) fn subject(&mut self, name: &str, start: Start) -> usize {
        self.subjects.push(Subject {
            name: name.to_owned(),
            start,
            handshakes: None,
            idle_configured: None,
            idle_sessions: None,
            throughput: Pairs::default(),
            fairness: Fairness::default(),
            dump: None,
            peak_rss_bytes: 0,
        });
        self.subjects.len() - 1
    }

    /// Formats the report as text.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} peers configured, {} active, {} packets of 1400 bytes a turn, {} on their way at most\n{} cores, {}, Linux {}\n",
            self.configured,
            self.active,
            self.burst,
            self.window,
            self.machine.cores,
            self.machine.processor,
            self.machine.kernel
        );
        for subject in &self.subjects {
            text += &subject.text();
        }
        text + &output::notes(&self.notes, 0.0)
    }
}

impl Subject {
    fn text(&self) -> String {
        let start = self.start;
        let mut text = format!(
            "\n{}\n  configured in {:.2} s; {:.1} MiB, {:.0} bytes an idle peer; at most {:.1} MiB\n",
            self.name,
            start.seconds,
            mib(start.rss_bytes),
            start.bytes_per_idle_peer,
            mib(self.peak_rss_bytes)
        );
        if let Some(done) = self.handshakes {
            let _ = writeln!(
                text,
                "  {} handshakes at once: half in {:.2} s, all in {:.2} s ({:.0} a second), {:.3} ms CPU each; {:.1} MiB",
                done.complete,
                done.half_seconds,
                done.all_seconds,
                done.per_second,
                done.cpu_millis_each,
                mib(done.rss_bytes)
            );
        }
        for (when, idle) in [("configured", self.idle_configured), ("sessions idle", self.idle_sessions)] {
            if let Some(Idle { cpu_percent, wake_ups_per_second }) = idle {
                let _ = writeln!(
                    text,
                    "  {when}: {cpu_percent:.3} % CPU, {wake_ups_per_second:.1} wake-ups a second"
                );
            }
        }
        text += &self.throughput.lines();
        if let Some(dump) = self.dump {
            let _ = writeln!(
                text,
                "  all {} peers asked for in {:.3} s, meanwhile at least {} packets went on ({:.3} Gbit/s)",
                dump.peers,
                dump.median_seconds,
                dump.fewest_packets_meanwhile,
                dump.gbit_per_second_meanwhile
            );
        }
        text += &self.fairness.text();
        text
    }
}

/// Converts bytes to mebibytes.
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
