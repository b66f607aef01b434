//! Datagrams as fast as one sender can send, and their loss.

use anyhow::{Context as _, Result};

use super::iperf::{self, Totals};
use super::{Bench, Outcome};
use crate::metric::{Metric, Sample};

/// Measures a UDP flood of datagrams of `bytes` bytes.
pub(super) fn measure(bench: &mut Bench<'_>, bytes: u32) -> Result<Outcome> {
    let size = bytes.to_string();
    let arrived = Arrived::of(&iperf::run(bench, &["-u", "-b", "0", "-l", &size])?, bytes)?;
    Ok(Outcome::new(arrived.sample(), arrived.gbit_per_second * arrived.seconds))
}

/// The result for datagrams of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrived {
    pub(super) gbit_per_second: f64,
    /// Payload sent.
    pub(super) sent_gbit_per_second: f64,
    pub(super) packets_per_second: f64,
    /// From 0 to 1.
    pub(super) loss: f64,
    pub(super) seconds: f64,
}

impl Arrived {
    pub(super) fn of(totals: &Totals, bytes: u32) -> Result<Self> {
        let sent = totals.sum_sent.context("iperf3 does not say what it sent")?;
        let received = totals.sum_received.context("iperf3 does not say what it received")?;
        // The receiver does not know of datagrams lost behind the last one that arrived: use the sender's
        // count.
        let packets = received.packets.saturating_add_signed(-received.lost_packets) as f64;
        let gbit_per_packet = f64::from(bytes) * 8e-9;
        Ok(Self {
            gbit_per_second: packets * gbit_per_packet / sent.seconds,
            sent_gbit_per_second: sent.packets as f64 * gbit_per_packet / sent.seconds,
            packets_per_second: packets / sent.seconds,
            loss: (1.0 - packets / sent.packets as f64).max(0.0),
            seconds: sent.seconds,
        })
    }

    pub(super) fn sample(&self) -> Sample {
        Sample::default()
            .with(Metric::GbitPerSecond, self.gbit_per_second)
            .with(Metric::PacketsPerSecond, self.packets_per_second)
            .with(Metric::LossPercent, self.loss * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::iperf::Sum;
    use super::*;

    #[test]
    fn what_arrives_is_counted_against_what_was_sent() {
        // 100 are lost within the sequence, and 100 more behind the last one that arrived.
        let totals = Totals {
            sum_sent: Some(Sum { packets: 1000, seconds: 2.0, ..Sum::default() }),
            sum_received: Some(Sum { packets: 900, lost_packets: 100, seconds: 2.1, ..Sum::default() }),
            ..Totals::default()
        };
        let arrived = Arrived::of(&totals, 1250).unwrap();
        assert!((arrived.gbit_per_second - 400.0 * 1e-5).abs() < 1e-12);
        assert!((arrived.loss - 0.2).abs() < 1e-12);
        assert_eq!(arrived.sample().get(Metric::PacketsPerSecond), Some(400.0));
    }

    #[test]
    fn nothing_at_all_is_a_loss_of_everything() {
        let totals = Totals {
            sum_sent: Some(Sum { packets: 10, seconds: 1.0, ..Sum::default() }),
            sum_received: Some(Sum::default()),
            ..Totals::default()
        };
        assert_eq!(Arrived::of(&totals, 100).unwrap().loss, 1.0);
        assert!(Arrived::of(&Totals::default(), 100).is_err());
    }
}
