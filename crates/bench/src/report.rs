//! The result: medians of every subject in every case, and the comparisons, as JSON for programs and as
//! tables (`report/tables.rs`) for people.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::batches::Batches;
use crate::case::Case;
use crate::implementation::Kind;
use crate::machine::Machine;
use crate::metric::{Metric, Sample};
use crate::rounds::{Cell, Plan, Results};
use crate::stats::{self, Summary};
use crate::targets::{self, Wanted};

pub(crate) mod plots;
pub(crate) mod tables;

/// All results, and their conditions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) seconds: u32,
    pub(crate) rounds: u32,
    /// The emulated link; `None` where the ends are joined by a veth.
    pub(crate) link: Option<String>,
    pub(crate) subjects: Vec<SubjectReport>,
    /// Cores that were busy with other work before the first measurement.
    pub(crate) busy_cores_before: f64,
    /// Cores that the host of this virtual machine gave to others during the measurements.
    pub(crate) stolen_cores: f64,
    pub(crate) cases: Vec<CaseReport>,
    pub(crate) comparisons: Vec<Comparison>,
    /// Measurements that failed or were skipped.
    pub(crate) failed: usize,
    /// Failures, and figures that could not be counted.
    pub(crate) notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SubjectReport {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// MTU of the tunnel in bytes.
    pub(crate) mtu: u16,
}

/// One case over all subjects.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseReport {
    pub(crate) case: Case,
    pub(crate) subjects: Vec<Figures>,
}

/// One subject in one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) metrics: BTreeMap<Metric, Summary>,
    /// Sends of both ends of a weft in all rounds, by the number of datagrams in each: at most 1, 2, 4, 8,
    /// 16, 32, 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batches: Option<Batches>,
    /// Samples in the order of the rounds; `None` where the measurement failed.
    pub(crate) samples: Vec<Option<Sample>>,
}

/// A figure of a weft compared with that of another subject, or with a target for weft alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) case: Case,
    pub(crate) metric: Metric,
    pub(crate) ours: String,
    /// `None` where the figure has an absolute target.
    pub(crate) theirs: Option<String>,
    /// Ours divided by theirs, round by round.
    pub(crate) ratio: Option<Summary>,
    /// Our figure; `None` where it could not be measured.
    pub(crate) value: Option<Summary>,
    pub(crate) wanted: Option<Wanted>,
    /// Whether the target holds: false without our figure, `None` without theirs.
    pub(crate) holds: Option<bool>,
}

/// Creates the report from the results.
pub(crate) fn new(plan: &Plan, results: Results) -> Report {
    let subjects: Vec<SubjectReport> = plan
        .subjects
        .iter()
        .map(|subject| SubjectReport {
            name: subject.name.clone(),
            kind: subject.implementation.kind(),
            mtu: subject.mtu,
        })
        .collect();
    let cases: Vec<CaseReport> = plan
        .cases
        .iter()
        .zip(results.cells)
        .map(|(case, cells)| CaseReport {
            case: *case,
            subjects: subjects.iter().zip(cells).map(|(subject, cell)| figures(subject, cell)).collect(),
        })
        .collect();
    Report {
        machine: Machine { tcp_congestion_control: results.congestion, ..Machine::this() },
        seconds: plan.secs,
        rounds: plan.rounds,
        link: plan.wire.spec().map(ToString::to_string),
        comparisons: cases.iter().flat_map(|case| compare(&subjects, case)).collect(),
        subjects,
        busy_cores_before: results.busy_cores_before,
        stolen_cores: results.stolen_cores,
        cases,
        failed: results.failed,
        notes: results.notes,
    }
}

fn figures(subject: &SubjectReport, cell: Cell) -> Figures {
    let taken = || cell.samples.iter().flatten();
    let mut metrics: BTreeMap<Metric, Summary> = BTreeMap::new();
    for metric in taken().flat_map(Sample::metrics) {
        if let Some(summary) = Summary::of(taken().filter_map(|sample| sample.get(metric))) {
            metrics.insert(metric, summary);
        }
    }
    if let Some(summary) = Summary::of(cell.system_calls_per_gbit) {
        metrics.insert(Metric::SystemCallsPerGbit, summary);
    }
    Figures { name: subject.name.clone(), metrics, batches: cell.batches, samples: cell.samples }
}

/// Compares every weft with every other implementation and the bare link, the first weft with further ones,
/// and every weft with its absolute targets. Ratio targets apply to the first other implementation.
fn compare(subjects: &[SubjectReport], case: &CaseReport) -> Vec<Comparison> {
    let of = |kind: Kind| {
        let numbered = subjects.iter().zip(&case.subjects);
        numbered.filter(move |(subject, _)| subject.kind == kind).map(|(_, figures)| figures)
    };
    let bare = |figures: &Figures| of(Kind::Bare).any(|bare| bare.name == figures.name);
    let first_weft = of(Kind::Weft).next();
    let first_other = of(Kind::Other).next().map(|figures| &figures.name);
    let wanted = targets::of(case.case);
    let mut comparisons = Vec::new();
    for ours in of(Kind::Weft) {
        let is_first = first_weft.is_some_and(|first| first.name == ours.name);
        let later_wefts = of(Kind::Weft).skip(1).filter(|_| is_first);
        for theirs in later_wefts.chain(of(Kind::Other)).chain(of(Kind::Bare)) {
            // Against the bare link only the main figure is meaningful.
            let figures = if bare(theirs) { 1 } else { usize::MAX };
            for &metric in case.case.compared().iter().take(figures) {
                let wanted = wanted.iter().find(|(of, wanted)| *of == metric && !wanted.is_absolute());
                let wanted = wanted.filter(|_| Some(&theirs.name) == first_other).map(|(_, wanted)| *wanted);
                comparisons.extend(beside(case.case, metric, ours, theirs, wanted));
            }
        }
        for (metric, wanted) in wanted.iter().filter(|(_, wanted)| wanted.is_absolute()) {
            let value = ours.metrics.get(metric).copied();
            comparisons.push(Comparison {
                case: case.case,
                metric: *metric,
                ours: ours.name.clone(),
                theirs: None,
                ratio: None,
                value,
                wanted: Some(*wanted),
                holds: value.map_or(Some(false), |value| wanted.held_by(None, value)),
            });
        }
    }
    comparisons
}

/// Compares a figure of one subject with that of another; `None` without both figures and without a target.
pub(crate) fn beside(
    case: Case,
    metric: Metric,
    ours: &Figures,
    theirs: &Figures,
    wanted: Option<Wanted>,
) -> Option<Comparison> {
    let ratio = stats::ratios(pairs(metric, ours, theirs));
    let value = ours.metrics.get(&metric).copied();
    if wanted.is_none() && (ratio.is_none() || value.is_none()) {
        return None;
    }
    let held = |wanted: Wanted| value.map_or(Some(false), |value| wanted.held_by(ratio, value));
    Some(Comparison {
        case,
        metric,
        ours: ours.name.clone(),
        theirs: Some(theirs.name.clone()),
        ratio,
        value,
        wanted,
        holds: wanted.and_then(held),
    })
}

/// Returns the pairs of a figure of two subjects, round by round.
pub(crate) fn pairs(metric: Metric, ours: &Figures, theirs: &Figures) -> impl Iterator<Item = (f64, f64)> {
    ours.samples
        .iter()
        .zip(&theirs.samples)
        .filter_map(move |(ours, theirs)| Some((ours.as_ref()?.get(metric)?, theirs.as_ref()?.get(metric)?)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TCP: Case = Case::Tcp { streams: 1, direction: crate::case::Direction::Forward };

    fn cell(speeds: &[f64]) -> Cell {
        let sample = |speed: &f64| {
            let sample = Sample::default().with(Metric::GbitPerSecond, *speed).with(Metric::Retransmits, 3.0);
            Some(
                sample.with(Metric::CpuSecondsPerGbit, 1.0 / speed).with(Metric::NearCpuSecondsPerGbit, 0.25),
            )
        };
        let batches = Some(Batches([1, 0, 0, 0, 0, 0, 3]));
        Cell { samples: speeds.iter().map(sample).collect(), batches, system_calls_per_gbit: None }
    }

    fn subject(name: &str, kind: Kind) -> SubjectReport {
        SubjectReport { name: name.to_owned(), kind, mtu: 1420 }
    }

    /// Two wefts, another implementation and the bare link, in the cases TCP and memory.
    pub(crate) fn report() -> Report {
        let subjects = vec![
            subject("no tunnel", Kind::Bare),
            subject("weft", Kind::Weft),
            subject("old weft", Kind::Weft),
            subject("go", Kind::Other),
        ];
        let speeds: [&[f64]; 4] = [&[20.0; 3], &[2.0, 3.0, 4.0], &[2.0; 3], &[1.0, 2.0, 2.0]];
        let memory = |mebibytes| Cell {
            samples: vec![Some(Sample::default().with(Metric::PeakRssMib, mebibytes))],
            batches: None,
            system_calls_per_gbit: Some(5000.0),
        };
        let case = |case, cells: Vec<Cell>| CaseReport {
            case,
            subjects: subjects.iter().zip(cells).map(|(subject, cell)| figures(subject, cell)).collect(),
        };
        let cases = vec![
            case(TCP, speeds.iter().map(|speeds| cell(speeds)).collect()),
            case(Case::Memory, vec![Cell::default(), memory(10.0), memory(70.0), memory(400.0)]),
        ];
        let machine = Machine {
            cores: 2,
            processor: "A".into(),
            kernel: "6.1".into(),
            tcp_congestion_control: "cubic".into(),
        };
        Report {
            machine,
            seconds: 5,
            rounds: 3,
            link: None,
            comparisons: cases.iter().flat_map(|case| compare(&subjects, case)).collect(),
            subjects,
            busy_cores_before: 0.0,
            stolen_cores: 0.0,
            cases,
            failed: 0,
            notes: vec!["udp-64, go: it ended".to_owned()],
        }
    }

    fn find(case: Case, metric: Metric, ours: &str, theirs: Option<&str>) -> Option<Comparison> {
        let is_it = |comparison: &Comparison| {
            (comparison.case, comparison.metric, comparison.ours.as_str(), comparison.theirs.as_deref())
                == (case, metric, ours, theirs)
        };
        report().comparisons.into_iter().find(is_it)
    }

    #[test]
    fn wefts_are_set_beside_the_others_and_the_first_beside_further_ones() {
        let speed = |ours, theirs| find(TCP, Metric::GbitPerSecond, ours, Some(theirs));
        let beside_go = speed("weft", "go").unwrap();
        assert_eq!(beside_go.ratio, Some(Summary { median: 2.0, lowest: 1.5, highest: 2.0 }));
        assert_eq!((beside_go.wanted, beside_go.holds), (Some(Wanted::RatioAtLeast(1.7)), Some(true)));
        assert_eq!(speed("old weft", "go").unwrap().holds, Some(false));
        assert_eq!(speed("weft", "old weft").unwrap().wanted, None);
        assert_eq!(speed("weft", "no tunnel").unwrap().ratio.unwrap().median, 0.15);
        assert_eq!(speed("old weft", "weft"), None);
        assert_eq!(find(TCP, Metric::Retransmits, "weft", Some("go")), None);
    }

    #[test]
    fn what_is_wanted_of_weft_alone_is_judged_alone() {
        let memory = |ours| find(Case::Memory, Metric::PeakRssMib, ours, None).unwrap().holds;
        assert_eq!((memory("weft"), memory("old weft")), (Some(true), Some(false)));
        assert_eq!(find(Case::Memory, Metric::PeakRssMib, "no tunnel", None), None);
    }

    #[test]
    fn a_target_without_our_figure_does_not_hold_and_without_theirs_is_not_judged() {
        let subjects = [subject("weft", Kind::Weft), subject("go", Kind::Other)];
        let failed = || Cell { samples: vec![None; 3], ..Cell::default() };
        let judged = |case, cells: [Cell; 2]| -> Vec<Option<bool>> {
            let zipped = subjects.iter().zip(cells).map(|(subject, cell)| figures(subject, cell));
            let case = CaseReport { case, subjects: zipped.collect() };
            let targets =
                compare(&subjects, &case).into_iter().filter(|comparison| comparison.wanted.is_some());
            targets.map(|comparison| comparison.holds).collect()
        };
        assert_eq!(judged(TCP, [failed(), cell(&[1.0; 3])]), [Some(false); 2]);
        assert_eq!(judged(TCP, [cell(&[1.0; 3]), failed()]), [None; 2]);
        assert_eq!(judged(Case::Memory, [failed(), failed()]), [Some(false)]);
    }

    #[test]
    fn json_has_every_sample_and_every_ratio() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["cases"][0]["case"], "tcp-1");
        assert_eq!(json["cases"][0]["subjects"][1]["samples"][1]["gbit_per_second"], 3.0);
        assert_eq!(json["cases"][0]["subjects"][1]["metrics"]["gbit_per_second"]["median"], 3.0);
        assert_eq!(json["cases"][1]["subjects"][3]["metrics"]["system_calls_per_gbit"]["median"], 5000.0);
        assert_eq!(json["comparisons"][0]["wanted"]["ratio_at_least"], serde_json::Value::Null);
        assert!(json["comparisons"].as_array().unwrap().iter().any(|c| c["wanted"]["ratio_at_least"] == 1.7));
    }
}
