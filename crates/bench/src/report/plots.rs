//! The report as plots.

use super::{Comparison, Report};
use crate::implementation::Kind;
use crate::metric::{Better, Metric};
use crate::plot::{Bar, Bars, Row, Scale};
use crate::targets::Wanted;

/// Creates a plot of how many times better weft is than the others, by figure. Where lower is better, the
/// ratio is inverted.
pub(crate) fn ratios(report: &Report) -> Bars {
    let is_bare =
        |name: &str| report.subjects.iter().any(|subject| subject.kind == Kind::Bare && subject.name == name);
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    let mut figures = Vec::new();
    // Leave out cases measured once (a hundredth of the memory would squeeze all other bars) and the bare
    // link, which is better by far.
    let shown = report.comparisons.iter().filter(|comparison| !comparison.case.once());
    for Comparison { case, metric, ours, theirs, .. } in shown {
        let Some(theirs) = theirs.as_deref().filter(|theirs| !is_bare(theirs)) else { continue };
        if !pairs.contains(&(ours.as_str(), theirs)) {
            pairs.push((ours, theirs));
        }
        if !figures.contains(&(*case, *metric)) {
            figures.push((*case, *metric));
        }
    }
    let rows = figures.into_iter().map(|(case, metric)| {
        let of = |(ours, theirs): &(&str, &str)| {
            report.comparisons.iter().find(|comparison| {
                (comparison.case, comparison.metric) == (case, metric)
                    && comparison.ours == *ours
                    && comparison.theirs.as_deref() == Some(*theirs)
            })
        };
        let bar = |pair| {
            let ratio = of(pair)?.ratio?;
            let [value, lowest, highest] =
                [ratio.median, ratio.lowest, ratio.highest].map(|ratio| times_better(metric, ratio));
            Some(Bar { value, lowest: lowest.min(highest), highest: lowest.max(highest) })
        };
        let wanted = pairs.iter().find_map(|pair| of(pair)?.wanted);
        Row {
            label: format!("{}: {}", case.title(), metric.title()),
            bars: pairs.iter().map(bar).collect(),
            target: wanted.and_then(|wanted| match wanted {
                Wanted::RatioAtLeast(ratio) | Wanted::RatioAtMost(ratio) => Some(times_better(metric, ratio)),
                Wanted::AtMost(_) => None,
            }),
        }
    });
    let rows = rows.collect();
    Bars {
        title: format!(
            "weft beside others, {} × {} s, {} cores",
            report.rounds, report.seconds, report.machine.cores
        ),
        axis: "times as good (ratio of the same round; right of 1× weft is ahead)".to_owned(),
        scale: Scale::Ratio,
        series: pairs.iter().map(|(ours, theirs)| format!("{ours} beside {theirs}")).collect(),
        rows,
    }
}

fn times_better(metric: Metric, ratio: f64) -> f64 {
    match metric.better() {
        Better::Higher => ratio,
        Better::Lower => 1.0 / ratio.max(1e-3),
    }
}

/// Creates a plot of the received Gbit/s, by case.
pub(crate) fn speeds(report: &Report) -> Bars {
    let rows = report.cases.iter().filter_map(|case| {
        let bar = |figures: &super::Figures| {
            let speed = figures.metrics.get(&Metric::GbitPerSecond)?;
            Some(Bar { value: speed.median, lowest: speed.lowest, highest: speed.highest })
        };
        let bars: Vec<_> = case.subjects.iter().map(bar).collect();
        let any = bars.iter().any(Option::is_some);
        any.then(|| Row { label: case.case.title(), bars, target: None })
    });
    Bars {
        title: format!(
            "What arrives, {} × {} s, {} cores",
            report.rounds, report.seconds, report.machine.cores
        ),
        axis: "Gbit/s".to_owned(),
        scale: Scale::Linear,
        series: report.subjects.iter().map(|subject| subject.name.clone()).collect(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn what_is_lower_counts_upside_down_and_the_bare_link_is_left_out() {
        let bars = ratios(&report());
        assert_eq!(bars.series, ["weft beside old weft", "weft beside go", "old weft beside go"]);
        let cpu = bars.rows.iter().find(|row| row.label == "TCP, 1 stream: CPU s/Gbit").unwrap();
        let bar = cpu.bars[1].unwrap();
        assert!((bar.value - 2.0).abs() < 1e-9 && bar.lowest <= bar.value && bar.value <= bar.highest);
        assert!((cpu.target.unwrap() - 1.0 / 0.6).abs() < 1e-9);
        assert!(bars.svg().is_ok());
    }

    #[test]
    fn speeds_have_a_row_for_each_case_that_carries() {
        let bars = speeds(&report());
        assert_eq!((bars.rows.len(), bars.series.len()), (1, 4));
    }
}
