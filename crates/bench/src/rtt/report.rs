//! The result, as tables for people and as JSON for programs.

use comfy_table::Table;
use serde::Serialize;

use super::path::{BARE, headers_leave};
use super::signs::SlowStart;
use super::{RttArgs, datagrams, stream, transfer};
use crate::machine::Machine;
use crate::output;
use crate::stats::{self, Summary};

/// All results, and their conditions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    /// The link without its delay.
    link: String,
    seconds: u32,
    omitted_seconds: u32,
    rounds: u32,
    tun_threads: String,
    /// Share of the bare speed that a tunnel's headers leave.
    headers_leave: f64,
    streams: Vec<Row<stream::Sample>>,
    transfers: Vec<Row<transfer::Sample>>,
    datagrams: Vec<Row<datagrams::Sample>>,
}

/// The samples of one path in one situation, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
struct Row<T> {
    round_trip_ms: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    megabytes: Option<u32>,
    path: String,
    samples: Vec<T>,
}

impl<T> Row<T> {
    /// Returns the situation, without the path.
    fn case(&self) -> (u32, Option<&str>, Option<u32>) {
        (self.round_trip_ms, self.congestion_control.as_deref(), self.megabytes)
    }

    fn values(&self, value: impl Fn(&T) -> f64) -> Vec<f64> {
        self.samples.iter().map(value).collect()
    }

    /// Returns the median; a row has at least one sample.
    fn median(&self, value: impl Fn(&T) -> f64) -> f64 {
        Summary::of(self.values(value)).map_or(f64::NAN, |summary| summary.median)
    }
}

/// Adds a sample to the row of its path and situation.
fn add<T>(rows: &mut Vec<Row<T>>, case: (u32, Option<&str>, Option<u32>), path: &str, sample: T) {
    let known = rows.iter().position(|row| row.path == path && row.case() == case);
    let place = known.unwrap_or_else(|| {
        rows.push(Row {
            round_trip_ms: case.0,
            congestion_control: case.1.map(str::to_owned),
            megabytes: case.2,
            path: path.to_owned(),
            samples: Vec::new(),
        });
        rows.len() - 1
    });
    rows[place].samples.push(sample);
}

/// Returns the rows grouped by situation, the bare link first.
fn sorted<T>(rows: &[Row<T>]) -> Vec<&Row<T>> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by_key(|row| row.path != BARE);
    let mut cases = Vec::new();
    for row in &rows {
        if !cases.contains(&row.case()) {
            cases.push(row.case());
        }
    }
    rows.sort_by_key(|row| cases.iter().position(|case| *case == row.case()));
    rows
}

/// Returns the row of the bare link in the same situation; `None` if `row` is that row.
fn bare<'a, T>(rows: &'a [Row<T>], row: &Row<T>) -> Option<&'a Row<T>> {
    rows.iter().find(|other| other.path == BARE && row.path != BARE && other.case() == row.case())
}

impl Report {
    pub(super) fn new(args: &RttArgs, machine: Machine) -> Self {
        Self {
            machine,
            link: args.link.to_string(),
            seconds: args.secs,
            omitted_seconds: args.omit,
            rounds: args.rounds,
            tun_threads: args.tun_threads.to_string(),
            headers_leave: headers_leave(),
            streams: Vec::new(),
            transfers: Vec::new(),
            datagrams: Vec::new(),
        }
    }

    /// Reports whether the report has no results yet.
    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.transfers.is_empty() && self.datagrams.is_empty()
    }

    pub(super) fn add_stream(&mut self, rtt: u32, control: &str, path: &str, sample: stream::Sample) {
        add(&mut self.streams, (rtt, Some(control), None), path, sample);
    }

    pub(super) fn add_transfer(
        &mut self,
        rtt: u32,
        control: &str,
        megabytes: u32,
        path: &str,
        sample: transfer::Sample,
    ) {
        add(&mut self.transfers, (rtt, Some(control), Some(megabytes)), path, sample);
    }

    pub(super) fn add_datagrams(&mut self, rtt: u32, path: &str, sample: datagrams::Sample) {
        add(&mut self.datagrams, (rtt, None, None), path, sample);
    }

    /// Formats the tables and the conditions of the measurements.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if !self.streams.is_empty() {
            text += &format!("One TCP stream:\n{}\n", self.stream_table());
        }
        if !self.transfers.is_empty() {
            text += &format!("Transfers from a cold start:\n{}\n", self.transfer_table());
        }
        if !self.datagrams.is_empty() {
            text += &format!("Numbered datagrams, 4 flows:\n{}\n", self.datagram_table());
        }
        let machine = &self.machine;
        text += &format!(
            "Medians of {} × {} s after {} s; link {}; MTU 1420 over 1500; --tun-threads {}; {} × {}; Linux {}.\n\
             The headers leave {:.4} of the speed without a tunnel: (1368/1494) / (1448/1514).\n",
            self.rounds,
            self.seconds,
            self.omitted_seconds,
            self.link,
            self.tun_threads,
            machine.cores,
            machine.processor,
            machine.kernel,
            self.headers_leave
        );
        text
    }

    fn stream_table(&self) -> Table {
        let mut table = output::table(
            [
                "RTT",
                "TCP",
                "path",
                "Mbit/s",
                "of no tunnel",
                "of what headers leave",
                "retransmits",
                "with slow start",
                "× no tunnel",
                "reordering seen",
                "link drops",
                "ring drops",
                "RTT seen",
                "CPU s/Gbit",
                "HyStart by train / delay",
            ],
            1,
        );
        for row in sorted(&self.streams) {
            let bare = bare(&self.streams, row);
            let speed = |row: &Row<stream::Sample>| row.values(|sample| sample.mbit_per_second);
            let ratio = bare.and_then(|bare| stats::ratios(speed(row).into_iter().zip(speed(bare))));
            let again = |sample: &stream::Sample| sample.retransmits_in_all as f64;
            let again_ratio = bare.map(|bare| row.median(again) / bare.median(again));
            table.add_row([
                format!("{} ms", row.round_trip_ms),
                row.congestion_control.clone().unwrap_or_default(),
                row.path.clone(),
                format!("{:.1}", row.median(|sample| sample.mbit_per_second)),
                ratio.map_or_else(String::new, |ratio| spread(ratio, 1.0)),
                ratio.map_or_else(String::new, |ratio| spread(ratio, self.headers_leave)),
                format!("{:.0}", row.median(|sample| sample.retransmits as f64)),
                format!("{:.0}", row.median(again)),
                again_ratio
                    .filter(|ratio| ratio.is_finite())
                    .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                format!("{:.0}", row.median(|sample| sample.order.reordering_seen as f64)),
                format!("{:.0}", row.median(|sample| sample.dropped_by_link as f64)),
                format!("{:.0}", row.median(|sample| sample.dropped_by_interfaces as f64)),
                format!("{:.1} ms", row.median(|sample| sample.round_trip_ms)),
                format!("{:.3}", row.median(|sample| sample.cpu_seconds_per_gbit)),
                format!(
                    "{:.0} / {:.0}",
                    row.median(|sample| sample.slow_start.hystart_train as f64),
                    row.median(|sample| sample.slow_start.hystart_delay as f64)
                ),
            ]);
        }
        table
    }

    fn transfer_table(&self) -> Table {
        let mut table = output::table(
            [
                "RTT",
                "TCP",
                "size",
                "path",
                "seconds",
                "× no tunnel",
                "retransmits",
                "reordering seen",
                "HyStart by train",
                "by delay",
                "at cwnd",
            ],
            1,
        );
        for row in sorted(&self.transfers) {
            let seconds = |row: &Row<transfer::Sample>| row.values(|sample| sample.seconds);
            let ratio = bare(&self.transfers, row)
                .and_then(|bare| stats::ratios(seconds(row).into_iter().zip(seconds(bare))));
            let sum = |value: fn(&SlowStart) -> u64| {
                row.samples.iter().map(|sample| value(&sample.slow_start)).sum::<u64>()
            };
            let exits = sum(|start| start.hystart_train + start.hystart_delay);
            let cwnd = sum(|start| start.hystart_train_cwnd + start.hystart_delay_cwnd).checked_div(exits);
            table.add_row([
                format!("{} ms", row.round_trip_ms),
                row.congestion_control.clone().unwrap_or_default(),
                format!("{} MB", row.megabytes.unwrap_or_default()),
                row.path.clone(),
                format!("{:.3}", row.median(|sample| sample.seconds)),
                ratio.map_or_else(String::new, |ratio| spread(ratio, 1.0)),
                format!("{:.0}", row.median(|sample| sample.retransmits as f64)),
                format!("{:.0}", row.median(|sample| sample.order.reordering_seen as f64)),
                format!("{} of {}", sum(|start| start.hystart_train), row.samples.len()),
                format!("{} of {}", sum(|start| start.hystart_delay), row.samples.len()),
                cwnd.map_or_else(String::new, |cwnd| cwnd.to_string()),
            ]);
        }
        table
    }

    fn datagram_table(&self) -> Table {
        let mut table =
            output::table(["RTT", "path", "sent", "lost", "of these in the socket", "out of order"], 1);
        for row in sorted(&self.datagrams) {
            let sum = |value: fn(&datagrams::Sample) -> u64| row.samples.iter().map(value).sum::<u64>();
            table.add_row([
                format!("{} ms", row.round_trip_ms),
                row.path.clone(),
                sum(|sample| sample.sent).to_string(),
                sum(|sample| sample.lost).to_string(),
                sum(|sample| sample.socket_full).to_string(),
                sum(|sample| sample.out_of_order).to_string(),
            ]);
        }
        table
    }
}

/// Formats a ratio divided by `by`, with its range over the rounds.
fn spread(ratio: Summary, by: f64) -> String {
    format!("{:.3} ({:.3}–{:.3})", ratio.median / by, ratio.lowest / by, ratio.highest / by)
}

#[cfg(test)]
mod tests {
    use super::super::signs::Order;
    use super::*;

    fn stream(mbit_per_second: f64, retransmits_in_all: u64) -> stream::Sample {
        stream::Sample {
            mbit_per_second,
            retransmits: 0,
            retransmits_in_all,
            round_trip_ms: 30.0,
            order: Order::default(),
            slow_start: SlowStart::default(),
            dropped_by_link: 5,
            dropped_by_interfaces: 0,
            cpu_seconds_per_gbit: 0.5,
            link_cores: 0.2,
        }
    }

    fn report() -> Report {
        let machine = Machine {
            cores: 2,
            processor: "A".into(),
            kernel: "6.1".into(),
            tcp_congestion_control: "cubic".into(),
        };
        let mut report = Report {
            machine,
            link: "rate=500mbit".into(),
            seconds: 8,
            omitted_seconds: 4,
            rounds: 2,
            tun_threads: "auto".into(),
            headers_leave: headers_leave(),
            streams: Vec::new(),
            transfers: Vec::new(),
            datagrams: Vec::new(),
        };
        for (rtt, speed) in [(20, 478.2), (20, 478.2), (60, 400.0)] {
            report.add_stream(rtt, "cubic", "weft", stream(speed * headers_leave(), 110));
            report.add_stream(rtt, "cubic", BARE, stream(speed, 100));
        }
        report
    }

    #[test]
    fn a_tunnel_is_compared_with_the_bare_link_of_the_same_situation() {
        let report = report();
        let rows = sorted(&report.streams);
        let order: Vec<_> = rows.iter().map(|row| (row.round_trip_ms, row.path.as_str())).collect();
        assert_eq!(order, [(20, BARE), (20, "weft"), (60, BARE), (60, "weft")]);
        assert_eq!(rows[1].samples.len(), 2);
        assert_eq!(bare(&report.streams, rows[3]).map(|row| row.round_trip_ms), Some(60));
        assert!(bare(&report.streams, rows[2]).is_none());
    }

    #[test]
    fn the_tables_show_ratios_and_only_what_was_measured() {
        let text = report().text();
        for shown in
            ["0.957 (0.957–0.957)", "1.000 (1.000–1.000)", "1.10", "20 ms", "Medians of 2 × 8 s after 4 s"]
        {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
        assert!(!text.contains("cold start") && !text.contains("datagrams"));
    }

    #[test]
    fn json_has_every_sample_and_what_it_is_of() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["streams"][0]["path"], "weft");
        assert_eq!(json["streams"][0]["samples"][1]["retransmits_in_all"], 110);
        assert_eq!(json["streams"][0]["samples"][0]["reordering_seen"], 0);
        assert_eq!(json["streams"][0].get("megabytes"), None);
    }
}
