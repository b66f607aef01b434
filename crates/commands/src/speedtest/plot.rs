//! The plot of a test, as SVG: throughput, windows with the bytes in flight, and round trips over the time;
//! with UDP throughput, and what was sent, received and lost. Text stays text in the fonts of the viewer.

use std::fmt::Write as _;

use weft_speedtest::{Datagrams, Outcome, Sample, Tcp};

use crate::axis::{tick_text, ticks};

const WIDTH: f64 = 920.0;
/// The plotting area, from the left edge.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 740.0;
const PANEL_HEIGHT: f64 = 150.0;
/// The distance from the top of one panel to that of the next.
const PANEL_STEP: f64 = 204.0;
const TITLE_HEIGHT: f64 = 56.0;
const FOOT_HEIGHT: f64 = 26.0;

/// Colours that remain distinct with colour blindness (Okabe and Ito).
const BLUE: &str = "#0072b2";
const ORANGE: &str = "#e69f00";
const GREEN: &str = "#009e73";
const GREY: &str = "#6e6e6e";
/// The ends of slow start.
const MARK: &str = "#d55e00";

/// A line with its name; a gap where there is no value. Points are seconds and values.
struct Line {
    name: &'static str,
    colour: &'static str,
    points: Vec<(f64, Option<f64>)>,
}

struct Panel {
    unit: &'static str,
    lines: Vec<Line>,
}

/// Draws the tests one below the other, each with its title.
pub(super) fn svg(tests: &[(String, &Outcome)]) -> String {
    let tests: Vec<_> = tests.iter().map(|(title, outcome)| (title, outcome, panels(outcome))).collect();
    // Both directions of a test have the same panels.
    let panels = tests.first().map_or(0, |(_, _, panels)| panels.len()) as f64;
    let height_of_test = TITLE_HEIGHT + panels * PANEL_STEP + FOOT_HEIGHT;
    let height = height_of_test * tests.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#282828\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (place, (title, outcome, panels)) in tests.iter().enumerate() {
        let top = place as f64 * height_of_test;
        text(&mut svg, LEFT, top + 30.0, "start", 18, title);
        let last = outcome.sender().last().map_or(0, |sample| sample.at_us);
        let (seconds, end) = ticks(last as f64 / 1e6);
        let marks = ends_of_slow_start(outcome.sender());
        for (place, panel) in panels.iter().enumerate() {
            draw(&mut svg, panel, top + TITLE_HEIGHT + place as f64 * PANEL_STEP, (&seconds, end), &marks);
        }
        let foot = top + height_of_test - FOOT_HEIGHT - PANEL_STEP + PANEL_HEIGHT + 38.0;
        text(&mut svg, RIGHT, foot, "end", 13, "seconds");
    }
    svg + "</svg>\n"
}

fn panels(outcome: &Outcome) -> Vec<Panel> {
    let (sender, receiver) = (outcome.sender(), outcome.receiver());
    let line = |name, colour, points| Line { name, colour, points };
    let throughput = Panel {
        unit: "Mbit/s",
        lines: vec![line("received", BLUE, rates(receiver, |sample| Some(sample.received), 8e-6))],
    };
    if sender.iter().any(|sample| sample.datagrams.is_some()) {
        return vec![throughput, datagrams(sender, receiver)];
    }
    let tcp = |value: fn(&Tcp) -> u64, scale: f64| -> Vec<(f64, Option<f64>)> {
        let point = |sample: &Sample| {
            let value = sample.tcp.as_ref().map(value).filter(|value| *value > 0);
            (seconds(sample), value.map(|value| value as f64 * scale))
        };
        sender.iter().map(point).collect()
    };
    const MIB: f64 = 1.0 / (1 << 20) as f64;
    vec![
        throughput,
        Panel {
            unit: "MiB",
            lines: vec![
                line("congestion window", ORANGE, tcp(|tcp| tcp.cwnd_bytes, MIB)),
                line("receive window", GREEN, tcp(|tcp| tcp.receive_window_bytes, MIB)),
                line("in flight", BLUE, tcp(|tcp| tcp.unacked_bytes, MIB)),
            ],
        },
        Panel {
            unit: "ms",
            lines: vec![
                line("round trip", BLUE, tcp(|tcp| tcp.rtt_us, 1e-3)),
                line("its minimum", GREY, tcp(|tcp| tcp.min_rtt_us, 1e-3)),
            ],
        },
    ]
}

/// The datagrams of a test with UDP. Lost is what a later datagram overtook and is still missing.
fn datagrams(sender: &[Sample], receiver: &[Sample]) -> Panel {
    let count = |samples: &[Sample], value: fn(&Datagrams) -> u64| {
        rates(samples, |sample| sample.datagrams.as_ref().map(value), 1.0)
    };
    let missing = |datagrams: &Datagrams| datagrams.expected.saturating_sub(datagrams.received);
    Panel {
        unit: "datagrams/s",
        lines: vec![
            Line { name: "sent", colour: ORANGE, points: count(sender, |datagrams| datagrams.sent) },
            Line { name: "received", colour: BLUE, points: count(receiver, |datagrams| datagrams.received) },
            Line { name: "lost", colour: MARK, points: count(receiver, missing) },
        ],
    }
}

fn seconds(sample: &Sample) -> f64 {
    sample.at_us as f64 / 1e6
}

/// Returns by how much a counter grew in each second between samples, times `scale`.
fn rates(
    samples: &[Sample],
    counter: impl Fn(&Sample) -> Option<u64>,
    scale: f64,
) -> Vec<(f64, Option<f64>)> {
    let rate = |pair: &[Sample]| {
        let [before, after] = pair else { return None };
        let micros = after.at_us.checked_sub(before.at_us).filter(|micros| *micros > 0)?;
        let more = counter(after)?.saturating_sub(counter(before)?);
        Some((seconds(after), Some(more as f64 * scale * 1e6 / micros as f64)))
    };
    samples.windows(2).filter_map(rate).collect()
}

/// Returns the times at which fewer connections were in slow start than before.
fn ends_of_slow_start(sender: &[Sample]) -> Vec<f64> {
    let in_slow_start = |sample: &Sample| sample.tcp.as_ref().map_or(0, |tcp| tcp.in_slow_start);
    let ends = sender.windows(2).filter(|pair| in_slow_start(&pair[1]) < in_slow_start(&pair[0]));
    ends.map(|pair| seconds(&pair[1])).collect()
}

fn draw(svg: &mut String, panel: &Panel, top: f64, (seconds, end): (&[f64], f64), marks: &[f64]) {
    let bottom = top + PANEL_HEIGHT;
    let values = panel.lines.iter().flat_map(|line| line.points.iter().filter_map(|point| point.1));
    let (levels, most) = ticks(values.fold(0.0, f64::max));
    let x = |seconds: f64| LEFT + seconds / end * (RIGHT - LEFT);
    let y = |value: f64| bottom - value / most * PANEL_HEIGHT;
    for level in &levels {
        rule(svg, [(LEFT, y(*level)), (RIGHT, y(*level))], "#d7d7d7");
        text(svg, LEFT - 8.0, y(*level) + 4.0, "end", 12, &tick_text(*level));
    }
    for second in seconds {
        rule(svg, [(x(*second), bottom), (x(*second), bottom + 5.0)], GREY);
        text(svg, x(*second), bottom + 19.0, "middle", 12, &tick_text(*second));
    }
    text(svg, 8.0, top - 12.0, "start", 13, panel.unit);
    for mark in marks {
        let _ = writeln!(
            svg,
            "<path d=\"M{0:.1} {top:.1}V{bottom:.1}\" stroke=\"{MARK}\" stroke-dasharray=\"5 4\" fill=\"none\"/>",
            x(*mark)
        );
    }
    let mut legend = top + 12.0;
    for line in &panel.lines {
        let mut path = String::new();
        let mut is_gap = true;
        for (at, value) in &line.points {
            if let Some(value) = value {
                let _ = write!(path, "{}{:.1} {:.1}", if is_gap { 'M' } else { 'L' }, x(*at), y(*value));
            }
            is_gap = value.is_none();
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" stroke=\"{}\" stroke-width=\"1.6\" stroke-linejoin=\"round\" fill=\"none\"/>",
            line.colour
        );
        rule(svg, [(RIGHT + 14.0, legend - 4.0), (RIGHT + 34.0, legend - 4.0)], line.colour);
        text(svg, RIGHT + 40.0, legend, "start", 13, line.name);
        legend += 20.0;
    }
    if !marks.is_empty() {
        rule(svg, [(RIGHT + 14.0, legend - 4.0), (RIGHT + 34.0, legend - 4.0)], MARK);
        text(svg, RIGHT + 40.0, legend, "start", 13, "end of slow start");
    }
}

fn rule(svg: &mut String, [from, to]: [(f64, f64); 2], colour: &str) {
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"{colour}\" fill=\"none\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use weft_speedtest::Direction;

    use super::*;

    /// Two seconds of samples at each end.
    fn outcome(here: impl Fn(u64) -> Sample, there: impl Fn(u64) -> Sample) -> Outcome {
        Outcome {
            direction: Direction::Up,
            here: (0..=20).map(here).collect(),
            there: (0..=20).map(there).collect(),
            counters_here: [None, None],
            counters_there: [None, None],
        }
    }

    #[test]
    fn all_lines_and_the_end_of_slow_start_are_drawn() {
        let here = |i: u64| {
            let tcp = Tcp {
                cwnd_bytes: i << 16,
                receive_window_bytes: 1 << 20,
                unacked_bytes: i << 15,
                rtt_us: 20_000 + i * 100,
                min_rtt_us: 20_000,
                in_slow_start: u32::from(i < 7),
                ..Tcp::default()
            };
            Sample { at_us: i * 100_000, tcp: Some(tcp), ..Sample::default() }
        };
        let there = |i: u64| Sample { at_us: i * 100_000, received: i * 250_000, ..Sample::default() };
        let outcome = outcome(here, there);
        assert_eq!(ends_of_slow_start(&outcome.here), [0.7]);
        assert_eq!(rates(&outcome.there, |sample| Some(sample.received), 8e-6)[3], (0.4, Some(20.0)));
        let svg = svg(&[("a <b>".to_owned(), &outcome)]);
        for shown in
            ["a &lt;b&gt;", "Mbit/s", "congestion window", "in flight", "its minimum", "end of slow start"]
        {
            assert!(svg.contains(shown), "{shown}: {svg}");
        }
        // The minimum is drawn as a line through all samples, in its panel.
        let path = svg
            .lines()
            .filter(|line| line.contains(GREY) && line.contains("stroke-width"))
            .collect::<String>();
        assert_eq!(path.matches('L').count(), 20, "{path}");
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn with_udp_what_was_sent_received_and_lost_is_drawn() {
        let sample = |i: u64, datagrams| Sample {
            at_us: i * 100_000,
            received: i * 90_000,
            datagrams: Some(datagrams),
            ..Sample::default()
        };
        let here = |i| sample(i, Datagrams { sent: i * 100, ..Datagrams::default() });
        let there = |i| sample(i, Datagrams { expected: i * 100, received: i * 90, ..Datagrams::default() });
        let outcome = outcome(here, there);
        let lines = datagrams(&outcome.here, &outcome.there).lines;
        let values: Vec<_> =
            lines.iter().map(|line| (line.name, line.points[5].1.unwrap().round())).collect();
        assert_eq!(values, [("sent", 1000.0), ("received", 900.0), ("lost", 100.0)]);
        let svg = svg(&[("up".to_owned(), &outcome)]);
        assert!(svg.contains("datagrams/s") && svg.contains(">lost<"), "{svg}");
        for absent in ["congestion window", "round trip", "NaN", "inf"] {
            assert!(!svg.contains(absent), "{absent}: {svg}");
        }
    }
}
