//! The result, as tables for people and as JSON for programs.

use comfy_table::Table;
use serde::Serialize;

use super::args::{Case, ShardsArgs, threads_of};
use super::measure::Figures;
use super::model::{ASSUMPTIONS, Model};
use crate::machine::Machine;
use crate::output::{notes, spread, table};
use crate::stats::{self, Summary};

/// All results, and their conditions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// Cores that were busy with other work before the first measurement.
    pub(crate) busy_cores_before: f64,
    pub(crate) seconds: u32,
    pub(crate) rounds: u32,
    pub(crate) peers: u16,
    pub(crate) cipher: Vec<Cipher>,
    pub(crate) sides: Vec<Side>,
    pub(crate) failed: usize,
    pub(crate) notes: Vec<String>,
}

/// What ring seals on several threads at once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cipher {
    pub(crate) threads: u16,
    /// Of each round.
    pub(crate) gbit_per_second: Vec<f64>,
    /// The same for each second of CPU time.
    pub(crate) gbit_per_cpu_second: Vec<f64>,
    /// Against the first number of threads, round by round.
    pub(crate) gain: Option<Summary>,
    /// The gain that the CPU time of a packet would allow if each thread had a core to itself.
    pub(crate) gain_with_a_core_each: Option<Summary>,
}

/// One case, with its figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Side {
    #[serde(skip)]
    case: Case,
    pub(crate) name: String,
    pub(crate) packet_threads: u16,
    /// The wanted percentage of foreign bytes.
    pub(crate) foreign_percent: Option<u8>,
    /// Of each round; `None` if the measurement failed.
    pub(crate) figures: Vec<Option<Figures>>,
    /// Speed against the same load on the first number of packet threads, round by round.
    pub(crate) gain: Option<Summary>,
    /// The gain that the CPU time of a packet would allow if each packet thread had a core to itself.
    pub(crate) gain_with_a_core_each: Option<Summary>,
    /// The medians of that and of the same of the cipher, divided.
    pub(crate) gain_by_cipher_with_a_core_each: Option<f64>,
    /// The medians of the gain and of the cipher's gain, divided.
    pub(crate) gain_by_cipher: Option<f64>,
    /// The same, with the cipher on the part of the processors that the senders leave.
    pub(crate) gain_by_limit: Option<f64>,
}

impl Report {
    pub(super) fn new(args: &ShardsArgs, machine: Machine, busy_cores_before: f64) -> Self {
        let side = |case: Case| Side {
            case,
            name: case.to_string().trim_start().to_owned(),
            packet_threads: case.packet_threads.get(),
            foreign_percent: case.foreign,
            figures: Vec::new(),
            gain: None,
            gain_with_a_core_each: None,
            gain_by_cipher_with_a_core_each: None,
            gain_by_cipher: None,
            gain_by_limit: None,
        };
        let cipher = |threads: &std::num::NonZeroU16| Cipher {
            threads: threads.get(),
            gbit_per_second: Vec::new(),
            gbit_per_cpu_second: Vec::new(),
            gain: None,
            gain_with_a_core_each: None,
        };
        Self {
            machine,
            busy_cores_before,
            seconds: args.secs,
            rounds: args.rounds,
            peers: args.peers,
            cipher: args.packet_threads.iter().map(cipher).collect(),
            sides: args.cases().into_iter().map(side).collect(),
            failed: 0,
            notes: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, side: usize, figures: Option<Figures>) {
        self.sides[side].figures.push(figures);
    }

    pub(super) fn fail(&mut self, note: String) {
        self.failed += 1;
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Computes the gains.
    pub(super) fn finish(&mut self) {
        let Some(base) = self.cipher.first().cloned() else { return };
        let first = base.threads;
        for cipher in &mut self.cipher {
            let speeds = cipher.gbit_per_second.iter().copied().zip(base.gbit_per_second.iter().copied());
            cipher.gain = stats::ratios(speeds);
            let cores = f64::from(cipher.threads) / f64::from(first);
            let by_cpu = cipher.gbit_per_cpu_second.iter().map(|speed| cores * speed);
            cipher.gain_with_a_core_each =
                stats::ratios(by_cpu.zip(base.gbit_per_cpu_second.iter().copied()));
        }
        for number in 0..self.sides.len() {
            let case = self.sides[number].case;
            let is_base = |side: &&Side| side.packet_threads == first && side.case.is_base_of(&case);
            let Some(base) = self.sides.iter().find(is_base) else { continue };
            let both = self.sides[number].figures.iter().zip(&base.figures);
            let both: Vec<(Figures, Figures)> = both.filter_map(|(ours, base)| (*ours).zip(*base)).collect();
            let speeds = both.iter().map(|(ours, base)| (ours.gbit_per_second, base.gbit_per_second));
            let gain = stats::ratios(speeds);
            let cores = f64::from(case.packet_threads.get()) / f64::from(first);
            let costs =
                both.iter().map(|(ours, base)| (base.cpu_seconds_per_gbit, ours.cpu_seconds_per_gbit));
            let with_a_core_each = stats::ratios(costs.map(|(base, ours)| (cores * base, ours)));
            let cipher = self.cipher.iter().find(|cipher| cipher.threads == case.packet_threads.get());
            let cipher_with_a_core_each = cipher.and_then(|cipher| cipher.gain_with_a_core_each);
            let cipher = cipher.and_then(|cipher| cipher.gain);
            let processors = self.machine.cores as f64;
            let of_a_core = both.iter().map(|(ours, base)| {
                (
                    ours.gbit_per_free_core(case.packet_threads.get(), processors),
                    base.gbit_per_free_core(first, processors),
                )
            });
            let gain_of_a_core = stats::ratios(of_a_core);
            let more_cores = processors.min(case.packet_threads.get().into()) / processors.min(first.into());
            let side = &mut self.sides[number];
            side.gain_by_limit =
                gain_of_a_core.zip(cipher).map(|(gain, cipher)| gain.median / (cipher.median / more_cores));
            side.gain = gain;
            side.gain_with_a_core_each = with_a_core_each;
            side.gain_by_cipher_with_a_core_each = with_a_core_each
                .zip(cipher_with_a_core_each)
                .map(|(gain, cipher)| gain.median / cipher.median);
            side.gain_by_cipher = gain.zip(cipher).map(|(gain, cipher)| gain.median / cipher.median);
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n\n{}\n\n", self.sides_table(), self.cipher_table());
        text += &format!(
            "Medians of {} rounds of {} s, in brackets the range; {} peers; packets of 1420 bytes, in super-packets; {} × \
             {}; Linux {}.\nThe gain is that against the same load on {}, round by round, and then divided by that of the \
             cipher.\nThe senders run on the same machine: where there are no more cores than packet threads, they take \
             some of their time.\n\"By the limit\" leaves the cipher as much of the processors as the senders leave the packet \
             threads.\n\"With a core each\" is the gain that the CPU time of a packet would allow if they did \
             not, and behind it the same divided by that of the cipher.\nCore to core is the round trip of a cache line \
             between two processors: a hypervisor may move them to cores with different caches.\n",
            self.rounds,
            self.seconds,
            self.peers,
            self.machine.cores,
            self.machine.processor,
            self.machine.kernel,
            self.cipher.first().map_or_else(String::new, |base| threads_of(base.threads)),
        );
        text + &notes(&self.notes, self.busy_cores_before)
    }

    fn sides_table(&self) -> Table {
        let header = [
            "packet threads, load",
            "Gbit/s",
            "gain",
            "by cipher's",
            "by the limit",
            "with a core each",
            "by cipher's",
            "CPU s/Gbit",
            "cores",
            "foreign, %",
            "lost, %",
            "senders' CPU",
            "core to core, ns",
        ];
        let mut table = table(header, 1);
        for side in &self.sides {
            let summary = |value: &dyn Fn(&Figures) -> Option<f64>| {
                Summary::of(side.figures.iter().flatten().filter_map(value))
            };
            let median = |value: &dyn Fn(&Figures) -> Option<f64>, digits| {
                summary(value).map_or_else(String::new, |summary| format!("{:.digits$}", summary.median))
            };
            let range = |summary: Option<Summary>| summary.map_or_else(String::new, |it| spread(&it, 2));
            table.add_row([
                side.case.to_string(),
                range(summary(&|figures| Some(figures.gbit_per_second))),
                range(side.gain),
                side.gain_by_cipher.map_or_else(String::new, |part| format!("{part:.2}")),
                side.gain_by_limit.map_or_else(String::new, |part| format!("{part:.2}")),
                range(side.gain_with_a_core_each),
                side.gain_by_cipher_with_a_core_each.map_or_else(String::new, |part| format!("{part:.2}")),
                median(&|figures| Some(figures.cpu_seconds_per_gbit), 3),
                median(&|figures| Some(figures.cores), 2),
                median(&|figures| figures.foreign.map(|share| 100.0 * share), 1),
                median(&|figures| Some(100.0 * figures.lost), 2),
                median(&|figures| Some(figures.senders_cpu_seconds_per_gbit), 3),
                summary(&|figures| figures.core_to_core_ns)
                    .map_or_else(String::new, |round_trip| spread(&round_trip, 0)),
            ]);
        }
        table
    }

    fn cipher_table(&self) -> Table {
        let mut table = table(["cipher alone (ring), threads", "Gbit/s", "gain", "with a core each"], 1);
        for cipher in &self.cipher {
            let speed = Summary::of(cipher.gbit_per_second.iter().copied());
            table.add_row([
                format!("{:>2}", cipher.threads),
                speed.map_or_else(String::new, |speed| spread(&speed, 2)),
                cipher.gain.map_or_else(String::new, |gain| spread(&gain, 2)),
                cipher.gain_with_a_core_each.map_or_else(String::new, |gain| spread(&gain, 2)),
            ]);
        }
        table
    }
}

/// What `--model` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelReport {
    pub(crate) machine: Machine,
    pub(crate) busy_cores_before: f64,
    pub(crate) packet_bytes: usize,
    pub(crate) model: Model,
}

/// Formats the model: some of its rows, and its assumptions.
pub(super) fn model_text(report: &ModelReport) -> String {
    let Model { inbound_ns, outbound_ns, hand_over_ns, delivery_ns, ends_at, longest, rows } = &report.model;
    let header = [
        "packet threads, Gbit/s",
        "from peers",
        "from peers, one receive queue",
        "to peers, flows of the peers",
        "to peers, flows begun here",
        "handed over, %",
    ];
    let mut table = table(header, 1);
    for row in rows.iter().filter(|row| row.packet_threads < 4 || row.packet_threads.is_multiple_of(4)) {
        table.add_row([
            format!("{:>2}", row.packet_threads),
            format!("{:.1}", row.inbound),
            format!("{:.1}", row.inbound_one_receive_queue),
            format!("{:.1}", row.outbound),
            format!("{:.1}", row.outbound_begun_here),
            format!("{:.0}", 100.0 * row.foreign),
        ]);
    }
    let [inbound, outbound] = longest;
    let mut text = format!(
        "{table}\n\nA packet of {} bytes takes {inbound_ns:.0} ns of a packet thread from a peer, most of it for \"{inbound}\", \
         and {outbound_ns:.0} ns\nto a peer, most of it for \"{outbound}\"; the hand-over takes {hand_over_ns:.1} ns.\nWith one receive \
         queue the growth ends at {ends_at} packet threads: the core that delivers to the sockets takes {delivery_ns:.0} ns \
         a packet.\n\n{ASSUMPTIONS}",
        report.packet_bytes
    );
    let Machine { cores, processor, kernel, .. } = &report.machine;
    text += &format!("\n{cores} × {processor}; Linux {kernel}.\n");
    text + &notes(&[], report.busy_cores_before)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::shards::args::Load;

    fn figures(gbit_per_second: f64) -> Figures {
        Figures {
            gbit_per_second,
            cpu_seconds_per_gbit: 0.25,
            senders_cpu_seconds_per_gbit: 0.05,
            cores: 1.0,
            foreign: Some(0.101),
            lost: 0.0,
            core_to_core_ns: Some(58.4),
        }
    }

    #[test]
    fn gains_are_those_of_each_round_and_a_failed_round_counts_for_none() {
        let args = ShardsArgs {
            packet_threads: [1, 2].map(|threads| NonZeroU16::new(threads).unwrap()).to_vec(),
            foreign: vec![10],
            load: vec![Load::Download],
            peers: 16,
            rounds: 3,
            secs: 1,
            model: false,
        };
        let machine = Machine {
            cores: 2,
            processor: "A".into(),
            kernel: "6.18".into(),
            tcp_congestion_control: "cubic".into(),
        };
        let mut report = Report::new(&args, machine, 0.0);
        for (one, two) in [(2.0, Some(3.0)), (4.0, Some(6.0)), (9.0, None)] {
            report.add(0, Some(figures(one)));
            report.add(1, two.map(figures));
        }
        report.cipher[0].gbit_per_second = vec![10.0, 20.0];
        report.cipher[1].gbit_per_second = vec![12.0, 24.0];
        report.cipher[0].gbit_per_cpu_second = vec![10.0, 20.0];
        report.cipher[1].gbit_per_cpu_second = vec![8.0, 16.0];
        report.fail("2 threads: it failed".into());
        report.finish();
        let gain = report.sides[1].gain.unwrap();
        assert_eq!((gain.lowest, gain.highest), (1.5, 1.5));
        assert!((report.sides[1].gain_by_cipher.unwrap() - 1.25).abs() < 1e-9);
        assert_eq!(report.sides[0].gain.unwrap().median, 1.0);
        // Of two processors the senders leave 1.85 and 1.70, and one thread always finds one.
        let by_limit = [3.0 / 2.0 / 1.85, 6.0 / 4.0 / 1.7].map(|gain| gain / (1.2 / 2.0));
        let found = report.sides[1].gain_by_limit.unwrap();
        assert!((by_limit[0] - 1e-9..=by_limit[1] + 1e-9).contains(&found), "{found}");
        // Each packet takes as much CPU time as with one thread.
        assert_eq!(report.sides[1].gain_with_a_core_each.unwrap().median, 2.0);
        // With two threads the cipher takes 1.25 of the time.
        assert_eq!(report.cipher[1].gain_with_a_core_each.unwrap().median, 1.6);
        assert!((report.sides[1].gain_by_cipher_with_a_core_each.unwrap() - 1.25).abs() < 1e-9);
        let text = report.text();
        for shown in [
            " 2 threads, download, 10 % foreign",
            "1.50",
            "1.25",
            "4.50 (3.00–6.00)",
            "10.1",
            " 58 │",
            "note: 2",
        ] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
    }
}
