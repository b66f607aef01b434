//! The highest datagram rate with almost no loss, found by bisection.
//!
//! Loss need not grow monotonically with the rate, so the result is the highest received rate of all steps
//! with little enough loss, not the end point of the search. Receive buffers are large, so that the
//! application is not what drops.

use anyhow::{Context as _, Result};

use super::iperf::Run;
use super::udp::Arrived;
use super::{Bench, Outcome};
use crate::case::LARGE;

/// Search range in Gbit/s.
const LOWEST: f64 = 0.03;
const HIGHEST: f64 = 16.0;
/// Each step halves the ratio of the bounds on a logarithmic scale: eight steps find the rate to 2.5 %.
const STEPS: u32 = 8;
const SECONDS_PER_STEP: u32 = 1;
const MOST_LOSS: f64 = 0.01;
/// A sender below this share of the requested rate is at its limit, and higher rates are not tried.
const REACHED: f64 = 0.8;

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Outcome> {
    let size = LARGE.to_string();
    let best = search(|rate| {
        let rate = format!("{:.0}", rate * 1e9);
        let arguments = ["-u", "-b", &rate, "-l", &size, "-w", "4M"];
        Arrived::of(&Run::start(bench, SECONDS_PER_STEP, &arguments)?.finish(bench)?, LARGE)
    })?;
    Ok(Outcome::new(best.sample(), 0.0))
}

/// Returns the step with the highest received rate among those with little enough loss.
fn search(mut step: impl FnMut(f64) -> Result<Arrived>) -> Result<Arrived> {
    let (mut low, mut high) = (LOWEST, HIGHEST);
    let mut best = None::<Arrived>;
    for _ in 0..STEPS {
        let rate = (low * high).sqrt();
        let arrived = step(rate)?;
        if arrived.loss >= MOST_LOSS {
            high = rate;
            continue;
        }
        if best.is_none_or(|best| best.gbit_per_second < arrived.gbit_per_second) {
            best = Some(arrived);
        }
        if arrived.sent_gbit_per_second < REACHED * rate {
            break;
        }
        low = rate;
    }
    best.with_context(|| format!("more than 1 % is lost at any rate above {LOWEST} Gbit/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(sent: f64, capacity: f64) -> Arrived {
        let gbit_per_second = sent.min(capacity);
        Arrived {
            gbit_per_second,
            sent_gbit_per_second: sent,
            packets_per_second: 0.0,
            loss: 1.0 - gbit_per_second / sent,
            seconds: 1.0,
        }
    }

    #[test]
    fn the_rate_is_found_to_a_few_per_cent() {
        for capacity in [0.04, 0.31, 1.0, 2.77, 9.0] {
            let mut steps = 0;
            let found = search(|rate| {
                steps += 1;
                Ok(arrived(rate, capacity))
            });
            let found = found.unwrap().gbit_per_second;
            assert!((0.97..=1.0).contains(&(found / capacity)), "{found} of {capacity}");
            assert!(steps <= STEPS);
        }
    }

    #[test]
    fn a_sender_that_can_do_no_more_ends_the_search() {
        let mut steps = 0;
        let found = search(|rate| {
            steps += 1;
            Ok(arrived(rate.min(1.5), 100.0))
        });
        assert_eq!(found.unwrap().gbit_per_second, 1.5);
        assert!(steps < STEPS);
    }

    #[test]
    fn a_path_that_always_loses_is_an_error() {
        assert!(search(|rate| Ok(arrived(rate, 0.001))).is_err());
    }
}
