//! The table of a test: a row each second.

use weft_report::{bytes, rate};
use weft_speedtest::{Datagrams, Outcome, Sample};

/// The head of the table.
pub(super) const HEADER: &str = "     time          rate  sent again      window   in flight  round trip\n";
/// That of a test with datagrams.
pub(super) const HEADER_OF_DATAGRAMS: &str = "     time          rate        lost   displaced\n";
/// The time of a row.
const ROW_US: u64 = 1_000_000;

/// Makes the rows, as soon as both ends have told enough.
pub(super) struct Rows {
    next_us: u64,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self { next_us: ROW_US }
    }

    /// Returns the rows that have become complete.
    pub(super) fn take(&mut self, outcome: &Outcome) -> Vec<String> {
        let last = |samples: &[Sample]| samples.last().map_or(0, |sample| sample.at_us);
        let known = last(&outcome.here).min(last(&outcome.there));
        let mut rows = Vec::new();
        while self.next_us <= known {
            rows.push(row(outcome, self.next_us - ROW_US, self.next_us));
            self.next_us += ROW_US;
        }
        rows
    }

    /// Returns the remaining rows of a test that is over.
    pub(super) fn rest(&mut self, outcome: &Outcome) -> Vec<String> {
        let mut rows = self.take(outcome);
        let begin = self.next_us - ROW_US;
        let end = outcome.receiver().last().map_or(0, |sample| sample.at_us);
        // A sample comes a moment after its time.
        if end >= begin + ROW_US / 4 {
            rows.push(row(outcome, begin, end));
        }
        rows
    }
}

fn row(outcome: &Outcome, begin: u64, end: u64) -> String {
    let near = |samples: &[Sample], at_us: u64| {
        samples.iter().min_by_key(|sample| sample.at_us.abs_diff(at_us)).cloned().unwrap_or_default()
    };
    let [from, to] = [begin, end].map(|at_us| near(outcome.receiver(), at_us));
    let micros = to.at_us.saturating_sub(from.at_us).max(1);
    let received = to.received.saturating_sub(from.received) as f64 * 1e6 / micros as f64;
    if let Some((before, after)) = from.datagrams.zip(to.datagrams) {
        let lost = |datagrams: Datagrams| datagrams.expected.saturating_sub(datagrams.received);
        return format!(
            "{:>9}  {:>12}  {:>10}  {:>10}\n",
            time_of(begin, end),
            rate(received as u64),
            lost(after).saturating_sub(lost(before)),
            after.displaced.saturating_sub(before.displaced),
        );
    }
    let [before, after] = [begin, end].map(|at_us| near(outcome.sender(), at_us).tcp.unwrap_or_default());
    format!(
        "{:>9}  {:>12}  {:>10}  {:>10}  {:>10}  {:>10}\n",
        time_of(begin, end),
        rate(received as u64),
        after.retransmits.saturating_sub(before.retransmits),
        bytes(after.cwnd_bytes),
        bytes(after.unacked_bytes),
        milliseconds(after.rtt_us),
    )
}

/// Formats the time of a row.
fn time_of(begin: u64, end: u64) -> String {
    format!("{}–{} s", begin / ROW_US, end.div_ceil(ROW_US))
}

/// Formats a time, such as `41.2 ms`.
pub(super) fn milliseconds(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use weft_speedtest::{Direction, Tcp};

    use super::*;

    #[test]
    fn rows_are_seconds_of_which_both_ends_have_told() {
        let here = |i: u64| {
            let tcp = Tcp { retransmits: i, cwnd_bytes: 1 << 20, rtt_us: 20_400, ..Tcp::default() };
            Sample { at_us: i * 100_000, tcp: Some(tcp), ..Sample::default() }
        };
        let there = |i: u64| Sample { at_us: i * 100_000, received: i * 250_000, ..Sample::default() };
        let mut outcome = Outcome {
            direction: Direction::Up,
            here: (0..=15).map(here).collect(),
            there: (0..=9).map(there).collect(),
            counters_here: [None, None],
            counters_there: [None, None],
        };
        let mut rows = Rows::new();
        assert!(rows.take(&outcome).is_empty());
        outcome.there = (0..=15).map(there).collect();
        let row = rows.take(&outcome).concat();
        assert_eq!(row, "    0–1 s   20.0 Mbit/s          10     1.0 MiB         0 B     20.4 ms\n");
        assert!(rows.take(&outcome).is_empty());
        assert!(rows.rest(&outcome).concat().starts_with("    1–2 s   20.0 Mbit/s           5"));
        assert_eq!(HEADER.chars().count(), row.chars().count());
    }
}
