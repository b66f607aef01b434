//! `weft-bench floods` with a slow flood, without timing assertions: everything is measured, and the flood
//! arrives.
#![cfg(target_os = "linux")]

mod support;

use support::{figure, refusal, report, rows};

#[test]
fn a_slow_flood_and_a_small_scan_are_measured_beside_tcp_and_pings() {
    let arguments = "floods --alone --secs 1 --rounds 1 --attack mac1-16-v6@100,aimed-name@100,scan-20@100";
    let Some(report) = report(arguments) else { return };
    for attack in ["mac1-16-v6@100", "aimed-name-1@100", "scan-20@100"] {
        let row = &rows(&report, attack)[0];
        for name in ["rest_mbit", "mbit", "sent_per_second"] {
            assert!(figure(row, name) > 0.0, "{attack}, {name}: {row}");
        }
        assert!(figure(row, "strangers_not_in") >= 0.0 && figure(row, "turn_p999_ms") >= 0.0, "{row}");
        // The gateway has first packets for other peers in a scan alone.
        assert_eq!(row["samples"][0]["first_packets_lost"].is_number(), attack.starts_with("scan"), "{row}");
    }
}

#[test]
fn an_attack_that_there_is_not_is_a_usage_error() {
    assert!(refusal("floods --attack nonsense", 2).contains("unknown attack"));
}
