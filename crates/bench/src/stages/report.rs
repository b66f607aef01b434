//! The result, as tables for people and as JSON for programs.

use comfy_table::Table;
use serde::Serialize;

use super::cipher::CipherCosts;
use super::floor::Floor;
use super::pipeline::ShapeReport;
use super::times::StageCosts;
use crate::machine::Machine;
use crate::output::{notes, spread, table};
use crate::stats::Summary;

/// All results, and their conditions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// Cores that were busy with other work before the first measurement.
    pub(crate) busy_cores_before: f64,
    pub(crate) seconds: u32,
    pub(crate) shapes: Vec<ShapeReport>,
    /// Nanoseconds for handing a packet of a super-packet over to another packet thread.
    pub(crate) hand_over: Summary,
    /// Costs of a packet of 1420 bytes.
    pub(crate) cipher: CipherCosts,
    pub(crate) floor: Option<Floor>,
}

impl StageCosts {
    fn rows(&self) -> [(&'static str, Summary); 7] {
        [
            ("TUN read", self.tun_read),
            ("split and encrypt", self.split_and_encrypt),
            ("UDP send (and the veth)", self.udp_send),
            ("UDP receive", self.udp_receive),
            ("decrypt", self.decrypt),
            ("coalesce", self.coalesce),
            ("TUN write", self.tun_write),
        ]
    }
}

/// Formats the tables and the conditions of the measurements.
pub(super) fn text(report: &Report) -> String {
    let Report { machine, busy_cores_before, seconds, shapes, hand_over, cipher, floor } = report;
    let mut text = String::new();
    let names = shapes.iter().map(|shape| shape.name);
    let mut table = table(["stage, ns per packet"].into_iter().chain(names), 1);
    let rows: Vec<_> = shapes.iter().map(|shape| shape.nanoseconds_per_packet.rows()).collect();
    for stage in 0..rows.first().map_or(0, |rows| rows.len()) {
        let name = rows[0][stage].0.to_owned();
        table.add_row([name].into_iter().chain(rows.iter().map(|rows| spread(&rows[stage].1, 0))));
    }
    let sums = rows.iter().map(|rows| rows.iter().map(|(_, cost)| cost.median).sum::<f64>());
    table.add_row(["all of them".to_owned()].into_iter().chain(sums.clone().map(|sum| format!("{sum:.0}"))));
    let speeds = shapes.iter().zip(sums).map(|(shape, sum)| shape.packet_bytes as f64 * 8.0 / sum);
    table.add_row(
        ["Gbit/s, one core for both ends".to_owned()]
            .into_iter()
            .chain(speeds.map(|speed| format!("{speed:.2}"))),
    );
    let joined = shapes.iter().map(|shape| format!("{:.1}", shape.packets_per_write));
    table.add_row(["packets in a write".to_owned()].into_iter().chain(joined));
    text += &format!("{table}\n\n");
    text += &format!(
        "With several packet threads: the hand-over of a packet of a super-packet to another thread takes {} ns.\n\n",
        spread(hand_over, 1)
    );
    text += &format!(
        "ring seals 1420 bytes in {} ns and opens them in {} ns.\n\n",
        spread(&cipher.seal, 0),
        spread(&cipher.open, 0)
    );
    if let Some(floor) = floor {
        text += &format!("{}\n", floor_table(floor));
    }
    text += &format!(
        "Medians, in brackets the range; {seconds} s each; MTU 1420; {} × {}; Linux {}; {}.\n",
        machine.cores, machine.processor, machine.kernel, machine.tcp_congestion_control
    );
    text + &notes(&[], *busy_cores_before)
}

fn floor_table(floor: &Floor) -> Table {
    let mut table = table(["one TCP stream", "Gbit/s", "CPU s/Gbit", "part of the limit"], 1);
    let mut row = |name: &str, gbit: String, cpu: String, part: String| {
        table.add_row([name.to_owned(), gbit, cpu, part]);
    };
    row(
        "path without a cipher",
        spread(&floor.null_gbit_per_second, 2),
        spread(&floor.null_cpu_seconds_per_gbit, 3),
        String::new(),
    );
    row("cipher alone", String::new(), format!("{:.3}", floor.cipher_seconds_per_gbit), String::new());
    row(
        "limit: both, on 2 cores",
        format!("{:.2}", floor.limit_gbit_per_second),
        format!("{:.3}", floor.limit_cpu_seconds_per_gbit),
        "1".to_owned(),
    );
    if let Some(weft) = &floor.weft {
        let cpu = weft.cpu_seconds_per_gbit.map_or_else(String::new, |cpu| spread(&cpu, 3));
        let by_cpu = weft.limit_by_cpu.map_or_else(String::new, |part| format!(", {part:.2} by CPU time"));
        row("weft", spread(&weft.gbit_per_second, 2), cpu, format!("{:.2}{by_cpu}", weft.speed_by_limit));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_stage_and_the_limit() {
        let cost = |median| Summary { median, lowest: median - 1.0, highest: median + 1.0 };
        let costs = StageCosts {
            tun_read: cost(100.0),
            split_and_encrypt: cost(800.0),
            udp_send: cost(200.0),
            udp_receive: cost(100.0),
            decrypt: cost(800.0),
            coalesce: cost(50.0),
            tun_write: cost(150.0),
        };
        let shape = ShapeReport {
            name: "long",
            packet_bytes: 1420,
            nanoseconds_per_packet: costs,
            packets_per_write: 45.0,
            packets_per_receive: 45.0,
        };
        let machine = Machine {
            cores: 2,
            processor: "A".into(),
            kernel: "6.1".into(),
            tcp_congestion_control: "cubic".into(),
        };
        let floor = Floor {
            null_gbit_per_second: cost(12.0),
            null_cpu_seconds_per_gbit: cost(1.0),
            cipher_seconds_per_gbit: 0.13,
            limit_cpu_seconds_per_gbit: 1.13,
            limit_gbit_per_second: 1.77,
            weft: None,
        };
        let cipher = CipherCosts { seal: cost(700.0), open: cost(720.0) };
        let report = Report {
            machine,
            busy_cores_before: 1.0,
            seconds: 3,
            shapes: vec![shape],
            hand_over: cost(30.0),
            cipher,
            floor: Some(floor),
        };
        let text = text(&report);
        for shown in [
            "TUN read",
            "800 (799–801)",
            "2200",
            "5.16",
            "limit",
            "1.77",
            "700 (699–701)",
            "30.0 (29.0–31.0) ns",
            "note: 1.0",
        ] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["shapes"][0]["nanoseconds_per_packet"]["udp_send"]["median"], 200.0);
    }
}
