//! TCP as fast as possible, one way or both ways at once.

use anyhow::{Context as _, Result, ensure};

use super::iperf::{self, Sum, Totals};
use super::{Bench, Outcome};
use crate::case::Direction;
use crate::metric::{Metric, Sample};

pub(super) fn measure(bench: &mut Bench<'_>, streams: u32, direction: Direction) -> Result<Outcome> {
    let streams = streams.to_string();
    let mut arguments = vec!["-P", &streams];
    arguments.extend(match direction {
        Direction::Forward => None,
        Direction::Reverse => Some("-R"),
        Direction::BothWays => Some("--bidir"),
    });
    outcome(&iperf::run(bench, &arguments)?, direction)
}

pub(super) fn outcome(totals: &Totals, direction: Direction) -> Result<Outcome> {
    let missing = "iperf3 gave no sums";
    let mut ways = vec![(totals.sum_sent.context(missing)?, totals.sum_received.context(missing)?)];
    if direction == Direction::BothWays {
        ways.push((
            totals.sum_sent_bidir_reverse.context(missing)?,
            totals.sum_received_bidir_reverse.context(missing)?,
        ));
    }
    let gbit = |received: &Sum| received.bytes as f64 * 8e-9;
    let carried: f64 = ways.iter().map(|(_, received)| gbit(received)).sum();
    ensure!(carried > 0.0, "iperf3 transferred nothing");
    let speed = ways.iter().map(|(_, received)| gbit(received) / received.seconds).sum();
    let retransmits: u64 = ways.iter().map(|(sent, _)| sent.retransmits).sum();
    let sample =
        Sample::default().with(Metric::GbitPerSecond, speed).with(Metric::Retransmits, retransmits as f64);
    Ok(Outcome::new(sample, carried))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_summed_up() {
        let sum = |bytes, retransmits| Some(Sum { bytes, seconds: 2.0, retransmits, ..Sum::default() });
        let totals = Totals {
            sum_sent: sum(9, 5),
            sum_received: sum(1_000_000_000, 0),
            sum_sent_bidir_reverse: sum(9, 2),
            sum_received_bidir_reverse: sum(500_000_000, 0),
        };
        let both = outcome(&totals, Direction::BothWays).unwrap();
        assert_eq!((both.gbit, both.sample.get(Metric::GbitPerSecond)), (12.0, Some(6.0)));
        assert_eq!(both.sample.get(Metric::Retransmits), Some(7.0));
        let one = outcome(&totals, Direction::Forward).unwrap();
        assert_eq!(one.sample.get(Metric::GbitPerSecond), Some(4.0));
        assert!(outcome(&Totals::default(), Direction::Forward).is_err());
    }
}
