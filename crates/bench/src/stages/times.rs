//! The stages, and their times.

use std::time::{Duration, Instant};

use crate::report::{Figure, Sample};
use crate::stats;

/// A stage of the packet path, in the order of processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    TunRead,
    Seal,
    /// With the veth up to the other socket.
    Send,
    Receive,
    Open,
    /// With the planning of the writes of a batch.
    TunWrite,
}

const STAGES: usize = 6;

const FIGURES: [Figure; STAGES] = [
    Figure::new("tun_read_ns", "TUN read", 0),
    Figure::new("split_and_encrypt_ns", "split and encrypt", 0),
    Figure::new("udp_send_ns", "UDP send (and the veth)", 0),
    Figure::new("udp_receive_ns", "UDP receive", 0),
    Figure::new("decrypt_ns", "decrypt", 0),
    Figure::new("coalesce_and_write_ns", "coalesce and TUN write", 0),
];

/// Nanoseconds per packet of each stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Costs {
    stages: [f64; STAGES],
    /// Average number of packets per write to the TUN.
    packets_per_write: f64,
}

impl Costs {
    /// Returns the figures for packets of this length.
    pub(super) fn sample(&self, packet_bytes: usize) -> Sample {
        let all: f64 = self.stages.iter().sum();
        let stages = FIGURES.iter().zip(self.stages);
        let sample = stages.fold(Sample::default(), |sample, (figure, ns)| sample.with(*figure, ns));
        sample.with_all([
            ("all_ns", "all of them", 0, all),
            ("gbit_per_second", "Gbit/s, one core for both ends", 2, packet_bytes as f64 * 8.0 / all),
            ("packets_per_write", "packets in a write", 1, self.packets_per_write),
        ])
    }
}

/// The times of the stages of one burst.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times([Duration; STAGES]);

impl Times {
    /// Runs `work` and adds its time to the stage.
    pub(super) fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0[stage as usize] += start.elapsed();
        result
    }
}

/// The times per packet of all bursts of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Bursts([Vec<f64>; STAGES]);

impl Bursts {
    /// Adds a burst of `packets` packets. A stage without time was not run.
    pub(super) fn add(&mut self, times: &Times, packets: u64) {
        for (all, time) in self.0.iter_mut().zip(times.0) {
            if !time.is_zero() {
                all.push(time.as_nanos() as f64 / packets as f64);
            }
        }
    }

    /// Returns medians over the bursts that other work did not disturb; `None` if a stage was never run.
    pub(super) fn costs(&self, packets_per_write: f64) -> Option<Costs> {
        let mut stages = [0.0; STAGES];
        for (median, all) in stages.iter_mut().zip(&self.0) {
            *median = stats::middle(all)?;
        }
        Some(Costs { stages, packets_per_write })
    }
}
