//! What was found, as JSON and as text.

use std::fmt::Write as _;

use serde::Serialize;

use super::args::PeersArgs;
use super::measure::{Direction, Load, Throughput};
use super::swarm::Pings;
use super::work::mib;
use crate::machine::Machine;
use crate::stats::{Summary, percentile, ratios};

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    configured: u32,
    active: u32,
    burst: u32,
    window: u32,
    seconds: u32,
    pub(super) subjects: Vec<Subject>,
}

/// One gateway.
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

/// Until it knew its peers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Start {
    pub(super) seconds: f64,
    pub(super) rss_bytes: u64,
    /// More than the same daemon with one peer has, for each.
    pub(super) bytes_per_idle_peer: f64,
}

/// All handshakes at once.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Handshakes {
    pub(super) complete: u32,
    pub(super) half_seconds: f64,
    pub(super) all_seconds: f64,
    pub(super) per_second: f64,
    pub(super) cpu_millis_each: f64,
    pub(super) rss_bytes: u64,
}

/// While nobody sends.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Idle {
    pub(super) cpu_percent: f64,
    pub(super) wake_ups_per_second: f64,
}

/// One peer and all active ones, measured one after the other.
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
                "  {name:<10} all peers to one: throughput {:.2} ({:.2} to {:.2}), CPU per Gbit {:.2} ({:.2} to {:.2})\n    \
                 all peers: {:.3} Gbit/s, {:.3} CPU s/Gbit, slowest to fastest {:.2}, Jain {:.3}, of {} packets {} lost, \
                 {} displaced; socket full {}, TUN full {}",
                speed.median,
                speed.lowest,
                speed.highest,
                cpu.median,
                cpu.lowest,
                cpu.highest,
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

/// What a peer has beside another one.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fairness {
    pub(super) pings: Vec<PingFigures>,
    pub(super) shares: Vec<Share>,
}

/// Pings of one peer beside the load of another.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PingFigures {
    load: Option<(Direction, Load)>,
    p50_ms: f64,
    p99_ms: f64,
    answered: usize,
    lost: u64,
}

impl PingFigures {
    pub(super) fn new(load: Option<(Direction, Load)>, pings: &Pings) -> Self {
        let mut sorted = pings.millis.clone();
        sorted.sort_by(f64::total_cmp);
        let part = |part| percentile(&sorted, part).unwrap_or(f64::INFINITY);
        Self { load, p50_ms: part(0.5), p99_ms: part(0.99), answered: sorted.len(), lost: pings.lost }
    }

    pub(super) fn line(&self) -> String {
        let (load, lost) = (load_name(self.load), self.lost);
        format!("ping {load}: p50 {:.3} ms, p99 {:.3} ms, {lost} lost", self.p50_ms, self.p99_ms)
    }
}

/// What equal peers got, and another one beside them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Share {
    direction: Direction,
    beside: Option<Load>,
    equals: usize,
    gbit_per_second: f64,
    jain: f64,
    slowest_to_fastest: f64,
    lost: u64,
    displaced: u64,
    other_gbit_per_second: Option<f64>,
    /// What an equal peer got of an equal part of everything: 1 is fair.
    of_fair_share: f64,
}

impl Share {
    pub(super) fn new(
        direction: Direction,
        beside: Option<Load>,
        equals: usize,
        figures: &Throughput,
        other: Option<f64>,
    ) -> Self {
        let own = figures.gbit_per_second / equals as f64;
        let all = figures.gbit_per_second + other.unwrap_or(0.0);
        let fair = all / (equals as f64 + if other.is_some() { 1.0 } else { 0.0 });
        Self {
            direction,
            beside,
            equals,
            gbit_per_second: figures.gbit_per_second,
            jain: figures.jain,
            slowest_to_fastest: figures.slowest_to_fastest,
            lost: figures.lost,
            displaced: figures.displaced,
            other_gbit_per_second: other,
            of_fair_share: if fair > 0.0 { own / fair } else { 0.0 },
        }
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{} peers {}: {:.3} Gbit/s together, {:.3} the other; {:.2} of a fair share, Jain {:.3}, slowest to fastest {:.2}",
            self.equals,
            load_name(self.beside.map(|load| (self.direction, load))),
            self.gbit_per_second,
            self.other_gbit_per_second.unwrap_or(0.0),
            self.of_fair_share,
            self.jain,
            self.slowest_to_fastest,
        )
    }
}

fn load_name(load: Option<(Direction, Load)>) -> String {
    load.map_or("alone".to_owned(), |(direction, load)| {
        format!("beside a {load:?} {direction:?}").to_lowercase()
    })
}

/// Questions for all peers while the active ones send.
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
        Self { machine, configured, active, burst, window, seconds: secs, subjects: Vec::new() }
    }

    /// Begins the part of another gateway, and gives its place.
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

    /// For people.
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
        text
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
        for pings in &self.fairness.pings {
            let _ = writeln!(text, "  {}", pings.line());
        }
        for share in &self.fairness.shares {
            let _ = writeln!(text, "  {}", share.line());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_share_counts_the_other_as_one_of_them() {
        let figures = Throughput {
            gbit_per_second: 2.0,
            packets_per_second: 0.0,
            cpu_seconds_per_gbit: 0.0,
            sent: 0,
            lost: 0,
            displaced: 0,
            socket_overflows: 0,
            tun_overflows: 0,
            jain: 1.0,
            slowest_to_fastest: 1.0,
        };
        let share = |beside, other| Share::new(Direction::Upload, beside, 4, &figures, other).of_fair_share;
        assert_eq!(share(None, None), 1.0);
        assert_eq!(share(Some(Load::Flood), Some(0.5)), 1.0);
        // Half of everything for one, the rest for four.
        assert_eq!(share(Some(Load::Flood), Some(2.0)), 0.625);
    }

    #[test]
    fn pings_without_an_answer_are_no_good_pings() {
        let none = PingFigures::new(None, &Pings { millis: Vec::new(), lost: 3 });
        assert!(none.p99_ms.is_infinite() && none.line().contains("3 lost"));
        let some = PingFigures::new(
            Some((Direction::Upload, Load::Flood)),
            &Pings { millis: vec![2.0, 1.0], lost: 0 },
        );
        assert_eq!((some.p50_ms, some.p99_ms), (1.0, 2.0));
        assert!(some.line().starts_with("ping beside a flood upload: p50 1.000"));
    }
}
