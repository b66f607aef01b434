//! `weft-bench shards` for a second, without timing assertions: every load is carried, and foreign packets
//! are as many as were asked for.
#![cfg(target_os = "linux")]

mod support;

use support::{figure, refusal, report, rows};

#[test]
fn each_load_is_carried_with_one_packet_thread_and_with_two() {
    let arguments = "shards --packet-threads 1,2 --foreign 0,25 --peers 4 --rounds 1 --secs 1";
    let Some(report) = report(arguments) else { return };
    let sides = rows(&report, "packet threads, load");
    // Upload; download and both with two shares.
    assert_eq!(sides.len(), 3 + 1 + 2 + 2);
    for side in sides {
        for name in ["gbit_per_second", "cpu_seconds_per_gbit", "senders_cpu_seconds_per_gbit", "cores"] {
            assert!(figure(side, name) > 0.0, "{name}: {side}");
        }
        let met = side["samples"][0]["foreign_percent"].as_f64();
        let wanted = [0.0, 25.0]
            .into_iter()
            .find(|share| side["case"].as_str().unwrap().ends_with(&format!(", {share} % foreign")));
        assert_eq!(wanted.is_some(), met.is_some(), "{side}");
        // What a busy machine loses on its way is of one flow rather than of the other.
        let is_whole = figure(side, "lost_percent") < 1.0;
        let met = wanted.zip(met).filter(|_| is_whole);
        assert!(met.is_none_or(|(wanted, met)| (wanted - met).abs() < 5.0), "{side}");
    }
    let gains = report["comparisons"].as_array().unwrap();
    // Speed and cost of all sides but those of one thread.
    assert_eq!(gains.len(), 2 * 5);
    assert!(gains.iter().all(|gain| gain["ratio"]["median"].as_f64().unwrap() > 0.0), "{gains:?}");
}

#[test]
fn more_packet_threads_than_peers_are_refused_by_name() {
    let error = refusal("shards --packet-threads 1,8 --peers 7", 1);
    assert!(error.contains("8 packet threads need as many --peers"), "{error}");
}
