//! The service that a peer gets beside another peer that sends or receives a bulk load, or a flood at the
//! highest rate of the machine.

use serde::Serialize;

use super::measure::{Direction, Load, Throughput};
use super::swarm::Pings;
use crate::stats::{Summary, percentile, ratios};

/// Target beside a flood: upper bound of a ping's p99 divided by the p99 without a load.
const PING_RATIO: f64 = 2.0;
/// Target beside a flood: lower bound of a peer's speed divided by its speed alone, or by its fair share if
/// that is less.
const KEPT: f64 = 0.9;

/// Figures of peers beside the load of another peer.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fairness {
    pub(super) pings: Vec<PingFigures>,
    pub(super) shares: Vec<Share>,
}

/// Pings of several peers, beside the load of another peer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PingFigures {
    load: Option<(Direction, Load)>,
    #[serde(flatten)]
    all: Percentiles,
    /// The highest p50 of a single peer.
    slowest_p50_ms: f64,
    /// The percentiles of each peer.
    pingers: Vec<Percentiles>,
}

/// Percentiles of the answered pings; infinite without any answer.
#[derive(Clone, Copy, Debug, Serialize)]
struct Percentiles {
    p50_ms: f64,
    p99_ms: f64,
    answered: usize,
    lost: u64,
}

impl Percentiles {
    fn new<'a>(pings: impl IntoIterator<Item = &'a Pings>) -> Self {
        let (mut sorted, mut lost) = (Vec::new(), 0);
        for pings in pings {
            sorted.extend_from_slice(&pings.millis);
            lost += pings.lost;
        }
        sorted.sort_by(f64::total_cmp);
        let part = |part| percentile(&sorted, part).unwrap_or(f64::INFINITY);
        Self { p50_ms: part(0.5), p99_ms: part(0.99), answered: sorted.len(), lost }
    }
}

impl PingFigures {
    pub(super) fn new(load: Option<(Direction, Load)>, pings: &[Pings]) -> Self {
        // If many pings are lost, some peers may have sent none.
        let had_a_turn = pings.iter().filter(|pings| pings.lost > 0 || !pings.millis.is_empty());
        let pingers: Vec<Percentiles> = had_a_turn.map(|pings| Percentiles::new([pings])).collect();
        let slowest = pingers.iter().map(|pinger| pinger.p50_ms).max_by(f64::total_cmp);
        Self { load, all: Percentiles::new(pings), slowest_p50_ms: slowest.unwrap_or(f64::INFINITY), pingers }
    }

    pub(super) fn line(&self) -> String {
        let Percentiles { p50_ms, p99_ms, lost, .. } = self.all;
        format!(
            "ping {}: p50 {p50_ms:.3} ms, p99 {p99_ms:.3} ms, {lost} lost; the slowest of {}: p50 {:.3} ms",
            load_name(self.load),
            self.pingers.len(),
            self.slowest_p50_ms
        )
    }
}

/// The speed of equal peers, and of the loading peer beside them.
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
    /// An equal peer's speed divided by an equal part of the total: 1 is fair, unless the peer wants less.
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

    fn kind(&self) -> (Direction, usize, Option<Load>) {
        (self.direction, self.equals, self.beside)
    }

    /// Returns the speed divided by the speed alone, or by the fair share if that is less: 1 is full service.
    fn kept(&self, alone: &Self) -> f64 {
        let all = self.gbit_per_second + self.other_gbit_per_second.unwrap_or(0.0);
        let fair = all * self.equals as f64 / (self.equals + 1) as f64;
        let due = fair.min(alone.gbit_per_second);
        if due > 0.0 { self.gbit_per_second / due } else { 0.0 }
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

impl Fairness {
    /// Formats the figures as text: medians of all rounds.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let alone: Vec<_> = self.pings.iter().filter(|pings| pings.load.is_none()).collect();
        for load in distinct(self.pings.iter().map(|pings| pings.load)) {
            let of: Vec<_> = self.pings.iter().filter(|pings| pings.load == load).collect();
            let figure = |what: fn(&PingFigures) -> f64| median(of.iter().map(|pings| what(pings)));
            let lost: u64 = of.iter().map(|pings| pings.all.lost).sum();
            let ratio = ratios(of.iter().zip(&alone).map(|(of, alone)| (of.all.p99_ms, alone.all.p99_ms)));
            text += &format!(
                "  ping {}: p50 {:.3} ms, p99 {:.3} ms, {lost} lost; the slowest of {}: p50 {:.3} ms",
                load_name(load),
                figure(|pings| pings.all.p50_ms),
                figure(|pings| pings.all.p99_ms),
                of.iter().map(|pings| pings.pingers.len()).max().unwrap_or(0),
                figure(|pings| pings.slowest_p50_ms),
            );
            if let Some(ratio) = ratio.filter(|_| matches!(load, Some((_, Load::Flood)))) {
                let holds = mark(ratio.median <= PING_RATIO && lost == 0);
                let Summary { median, lowest, highest } = ratio;
                text += &format!(
                    "; p99 by that alone {median:.2} ({lowest:.2} to {highest:.2}), wanted at most {PING_RATIO:.1}: {holds}"
                );
            }
            text.push('\n');
        }
        for (direction, equals, beside) in distinct(self.shares.iter().map(Share::kind)) {
            let of =
                |beside| self.shares.iter().filter(move |share| share.kind() == (direction, equals, beside));
            let (shares, alone): (Vec<_>, Vec<_>) = (of(beside).collect(), of(None).collect());
            let figure = |what: fn(&Share) -> f64| median(shares.iter().map(|share| what(share)));
            text += &format!(
                "  {} {}: {:.3} Gbit/s, {:.3} the other, {:.2} of a fair share",
                if equals == 1 { "one peer".to_owned() } else { format!("{equals} peers") },
                load_name(beside.map(|load| (direction, load))),
                figure(|share| share.gbit_per_second),
                figure(|share| share.other_gbit_per_second.unwrap_or(0.0)),
                figure(|share| share.of_fair_share),
            );
            if equals > 1 {
                let (jain, slowest) = (figure(|share| share.jain), figure(|share| share.slowest_to_fastest));
                text += &format!("; Jain {jain:.3}, slowest to fastest {slowest:.2}");
            }
            if beside == Some(Load::Flood) {
                let kept = median(shares.iter().zip(&alone).map(|(share, alone)| share.kept(alone)));
                text += &format!("; kept {kept:.2}, wanted at least {KEPT:.1}: {}", mark(kept >= KEPT));
            }
            text.push('\n');
        }
        text
    }
}

fn mark(holds: bool) -> char {
    if holds { '✓' } else { '✗' }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Summary::of(values).map_or(0.0, |summary| summary.median)
}

/// Removes duplicates and keeps the order.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

fn load_name(load: Option<(Direction, Load)>) -> String {
    load.map_or("alone".to_owned(), |(direction, load)| {
        format!("beside a {load:?} {direction:?}").to_lowercase()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Throughput {
        Throughput {
            gbit_per_second: 0.0,
            packets_per_second: 0.0,
            cpu_seconds_per_gbit: 0.0,
            sent: 0,
            lost: 0,
            displaced: 0,
            socket_overflows: 0,
            tun_overflows: 0,
            jain: 1.0,
            slowest_to_fastest: 1.0,
        }
    }

    #[test]
    fn a_fair_share_counts_the_other_as_one_of_them() {
        let figures = Throughput { gbit_per_second: 2.0, ..nothing() };
        let share = |beside, other| Share::new(Direction::Upload, beside, 4, &figures, other).of_fair_share;
        assert_eq!(share(None, None), 1.0);
        assert_eq!(share(Some(Load::Flood), Some(0.5)), 1.0);
        // Half of the total for the loading peer, the rest for four.
        assert_eq!(share(Some(Load::Flood), Some(2.0)), 0.625);
    }

    #[test]
    fn what_was_kept_is_measured_by_what_a_peer_wants() {
        let share = |gbit, other: Option<f64>| {
            let figures = Throughput { gbit_per_second: gbit, ..nothing() };
            Share::new(Direction::Upload, other.map(|_| Load::Flood), 1, &figures, other)
        };
        // The peer wants less than half of the total, and gets half of what it wants.
        assert_eq!(share(1.0, Some(6.0)).kept(&share(2.0, None)), 0.5);
        // The peer wants the total, and gets half of it.
        assert_eq!(share(3.0, Some(3.0)).kept(&share(6.0, None)), 1.0);
        let mut fairness = Fairness::default();
        fairness.shares.extend([share(2.0, None), share(1.0, Some(6.0))]);
        let text = fairness.text();
        assert!(text.contains("one peer beside a flood upload: 1.000 Gbit/s, 6.000 the other"), "{text}");
        assert!(text.contains("kept 0.50, wanted at least 0.9: ✗"), "{text}");
    }

    #[test]
    fn pings_without_an_answer_are_no_good_pings() {
        let none = PingFigures::new(None, &[Pings { millis: Vec::new(), lost: 3 }]);
        assert!(none.all.p99_ms.is_infinite() && none.line().contains("3 lost"));
        let some = PingFigures::new(
            Some((Direction::Upload, Load::Flood)),
            &[Pings { millis: vec![2.0, 1.0], lost: 0 }],
        );
        assert_eq!((some.all.p50_ms, some.all.p99_ms), (1.0, 2.0));
        assert!(some.line().starts_with("ping beside a flood upload: p50 1.000"));
    }

    #[test]
    fn the_slowest_of_several_shows_beside_all_of_them() {
        let answered = |millis: [f64; 3]| Pings { millis: millis.to_vec(), lost: 0 };
        let no_turn = Pings::default();
        let figures = PingFigures::new(None, &[answered([1.0; 3]), answered([9.0, 8.0, 2.0]), no_turn]);
        let shown = "ping alone: p50 1.000 ms, p99 9.000 ms, 0 lost; the slowest of 2: p50 8.000 ms";
        assert_eq!(figures.line(), shown);
        let json = serde_json::to_value(&figures).unwrap();
        assert_eq!((&json["p99_ms"], &json["slowest_p50_ms"]), (&9.0.into(), &8.0.into()));
        assert_eq!(json["pingers"][0]["p99_ms"], 1.0);
        let mut fairness = Fairness::default();
        fairness.pings.push(figures);
        assert!(fairness.text().contains(shown), "{}", fairness.text());
    }
}
