//! The result, as a table for people and as JSON for programs.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use crate::iperf::Sample;
use crate::machine::Machine;
use crate::stats::{self, Summary};

/// Everything that was measured, and under which conditions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) seconds: u32,
    pub(crate) rounds: u32,
    pub(crate) tun_threads: String,
    /// Cores that were busy with something else before the first measurement.
    pub(crate) busy_cores_before: f64,
    pub(crate) cases: Vec<CaseReport>,
}

/// One case over all implementations.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseReport {
    pub(crate) name: String,
    pub(crate) implementations: Vec<ImplementationReport>,
}

/// One implementation in one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ImplementationReport {
    pub(crate) name: String,
    pub(crate) gbit_per_second: Summary,
    pub(crate) cpu_seconds_per_gbit: Summary,
    pub(crate) retransmits: Summary,
    /// The speed of weft by that of this one, round by round; nothing for weft itself.
    pub(crate) weft_by_this: Option<Summary>,
    /// What was measured, in the order of the rounds.
    pub(crate) samples: Vec<Sample>,
}

impl CaseReport {
    /// Of the samples of each implementation in the order of the rounds, weft's first. `None` without samples.
    pub(crate) fn new(name: &str, samples: &[(String, Vec<Sample>)]) -> Option<Self> {
        let speeds =
            |samples: &[Sample]| samples.iter().map(|sample| sample.gbit_per_second).collect::<Vec<_>>();
        let weft = speeds(&samples.first()?.1);
        let implementations = samples.iter().enumerate().map(|(place, (name, samples))| {
            let ratio = if place == 0 { None } else { stats::ratios(&weft, &speeds(samples)) };
            Some(ImplementationReport {
                name: name.clone(),
                gbit_per_second: Summary::of(speeds(samples))?,
                cpu_seconds_per_gbit: Summary::of(samples.iter().map(|sample| sample.cpu_seconds_per_gbit))?,
                retransmits: Summary::of(samples.iter().map(|sample| sample.retransmits as f64))?,
                weft_by_this: ratio,
                samples: samples.clone(),
            })
        });
        Some(Self { name: name.to_owned(), implementations: implementations.collect::<Option<_>>()? })
    }
}

/// More than that on other work makes figures doubtful.
const BUSY: f64 = 0.2;

/// The table, with what has to be known beside it.
pub(crate) fn text(report: &Report) -> String {
    let Report { machine, seconds, rounds, tun_threads, busy_cores_before, cases } = report;
    let mut table = Table::new();
    table.force_no_tty().load_style(presets::UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(["case", "implementation", "Gbit/s", "CPU s/Gbit", "retransmits", "weft is"]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for case in cases {
        for (place, implementation) in case.implementations.iter().enumerate() {
            let ratio = implementation.weft_by_this.map_or_else(String::new, |ratio| {
                format!("{:.2}× ({:.2}–{:.2})", ratio.median, ratio.lowest, ratio.highest)
            });
            table.add_row([
                Cell::new(if place == 0 { &case.name } else { "" }),
                Cell::new(&implementation.name),
                Cell::new(format!("{:.2}", implementation.gbit_per_second.median)),
                Cell::new(format!("{:.3}", implementation.cpu_seconds_per_gbit.median)),
                Cell::new(format!("{:.0}", implementation.retransmits.median)),
                Cell::new(ratio),
            ]);
        }
    }
    let mut text = format!(
        "{table}\nMedians of {rounds} × {seconds} s; MTU 1420; --tun-threads {tun_threads}; {} × {}; Linux {}; {}.\n",
        machine.cores, machine.processor, machine.kernel, machine.tcp_congestion_control
    );
    if *busy_cores_before > BUSY {
        text += &format!(
            "note: {busy_cores_before:.1} cores were busy with other work before the first measurement: speeds and CPU \
             time are worth little, ratios somewhat more.\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(gbit_per_second: f64) -> Sample {
        Sample { gbit_per_second, cpu_seconds_per_gbit: 0.5, retransmits: 3 }
    }

    fn report(busy_cores_before: f64) -> Report {
        let samples = [
            ("weft".to_owned(), vec![sample(2.0), sample(3.0), sample(4.0)]),
            ("other".to_owned(), vec![sample(1.0), sample(2.0), sample(2.0)]),
        ];
        let machine = Machine {
            cores: 2,
            processor: "A".into(),
            kernel: "6.1".into(),
            tcp_congestion_control: "cubic".into(),
        };
        let cases = vec![CaseReport::new("TCP", &samples).unwrap()];
        Report { machine, seconds: 5, rounds: 3, tun_threads: "auto".into(), busy_cores_before, cases }
    }

    #[test]
    fn a_case_compares_weft_with_each_of_the_others() {
        let case = &report(0.0).cases[0];
        assert_eq!(case.implementations[0].gbit_per_second.median, 3.0);
        assert_eq!(case.implementations[0].weft_by_this, None);
        let ratio = Summary { median: 2.0, lowest: 1.5, highest: 2.0 };
        assert_eq!(case.implementations[1].weft_by_this, Some(ratio));
        assert!(CaseReport::new("TCP", &[("weft".into(), Vec::new())]).is_none());
        assert!(CaseReport::new("TCP", &[]).is_none());
    }

    #[test]
    fn the_table_has_a_line_for_each_and_tells_of_a_busy_machine() {
        let quiet = text(&report(0.0));
        for shown in ["TCP", "3.00", "0.500", "2.00× (1.50–2.00)", "Medians of 3 × 5 s", "cubic"] {
            assert!(quiet.contains(shown), "{shown} is not in\n{quiet}");
        }
        assert!(!quiet.contains("note:"));
        assert!(text(&report(1.0)).contains("note: 1.0 cores"));
    }

    #[test]
    fn json_has_every_sample() {
        let json = serde_json::to_value(report(0.0)).unwrap();
        let other = &json["cases"][0]["implementations"][1];
        assert_eq!(other["samples"][1]["gbit_per_second"], 2.0);
        assert_eq!(other["weft_by_this"]["lowest"], 1.5);
    }
}
