//! `weft-bench floods` with a slow flood, without timing assertions: everything is measured, and the flood
//! arrives.
#![cfg(target_os = "linux")]

mod support;

use support::{refusal, report};

#[test]
fn a_slow_flood_and_a_small_scan_are_measured_beside_tcp_and_pings() {
    let arguments = "floods --alone --secs 1 --rounds 1 --attack mac1-16-v6@100,aimed-name@100,scan-20@100";
    let Some(report) = report(arguments) else { return };
    for (place, attack) in ["mac1-16-v6@100", "aimed-name-1@100", "scan-20@100"].into_iter().enumerate() {
        let part = &report["attacks"][place];
        assert_eq!(part["attack"], attack);
        let figures = &part["figures"][0][0];
        for name in ["rest_mbit", "mbit", "sent_per_second"] {
            assert!(figures[name].as_f64().unwrap() > 0.0, "{attack}, {name}: {figures}");
        }
        assert_eq!(figures["strangers"].as_array().unwrap().len(), 4, "{attack}");
        let awaited = if attack.starts_with("scan") { 16 } else { 0 };
        assert_eq!(figures["first_packets"].as_array().unwrap().len(), awaited, "{attack}");
        assert!(figures["weft"]["turn_p999_ms"].is_number(), "{attack}: {figures}");
    }
}

#[test]
fn an_attack_that_there_is_not_is_a_usage_error() {
    assert!(refusal("floods --attack nonsense", 2).contains("unknown attack"));
}
