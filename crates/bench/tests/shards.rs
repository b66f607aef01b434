//! `weft-bench shards` for a second, without timing assertions: every load is carried, and foreign packets
//! are as many as were asked for.
#![cfg(target_os = "linux")]

mod support;

use support::{refusal, report};

#[test]
fn each_load_is_carried_with_one_packet_thread_and_with_two() {
    let arguments = "shards --packet-threads 1,2 --foreign 0,25 --peers 4 --rounds 1 --secs 1";
    let Some(report) = report(arguments) else { return };
    let sides = report["sides"].as_array().unwrap();
    // Upload; download and both with two shares.
    assert_eq!(sides.len(), 3 + 1 + 2 + 2);
    for side in sides {
        let figures = &side["figures"][0];
        for name in ["gbit_per_second", "cpu_seconds_per_gbit", "senders_cpu_seconds_per_gbit", "cores"] {
            assert!(figures[name].as_f64().unwrap() > 0.0, "{name}: {side}");
        }
        let wanted = side["foreign_percent"].as_f64().map(|percent| percent / 100.0);
        let met = figures["foreign"].as_f64();
        assert_eq!(wanted.is_some(), met.is_some(), "{side}");
        assert!(wanted.zip(met).is_none_or(|(wanted, met)| (wanted - met).abs() < 0.05), "{side}");
        assert!(side["gain"]["median"].as_f64().unwrap() > 0.0, "{side}");
    }
    assert!(report["cipher"][1]["gain"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_model_has_a_line_for_each_number_of_packet_threads() {
    let Some(report) = report("shards --model --secs 1") else { return };
    let rows = report["model"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 32);
    assert!(rows[31]["outbound_begun_here"].as_f64() < rows[31]["outbound"].as_f64());
}

#[test]
fn more_packet_threads_than_peers_are_refused_by_name() {
    let error = refusal("shards --packet-threads 1,8 --peers 7", 1);
    assert!(error.contains("8 packet threads need as many --peers"), "{error}");
}
