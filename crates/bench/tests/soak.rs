//! `weft-bench soak` with a few seconds of everything: nothing grows, stalls or is lost.
#![cfg(target_os = "linux")]

mod support;

use support::{refusal, report};
use weft_lab::installed;

#[test]
fn a_short_run_has_everything_that_a_long_one_has_and_no_faults() {
    if !installed("weft-bench soak", &["dbus-daemon"]) {
        return;
    }
    let Some(report) = report("soak --minutes 0.5 --every 5 --mbit 30 --peers 20 --flood 500") else {
        return;
    };
    assert_eq!(report["faults"].as_array().map(Vec::len), Some(0), "{report}");
    let intervals = report["intervals"].as_array().unwrap();
    let named = |name: &str| {
        let mut found: Vec<&str> = intervals.iter().filter_map(|each| each[name].as_str()).collect();
        found.sort_unstable();
        found.dedup();
        found.join(" ")
    };
    assert_eq!(named("restart"), "crash orderly");
    assert_eq!(named("flood"), "data junk mac1 no-mac1 proven");
    let sum = |name: &str| intervals.iter().map(|each| each[name].as_u64().unwrap()).sum::<u64>();
    for name in ["sent", "visits", "roams", "reloads", "scrapes", "flooded"] {
        assert!(sum(name) > 0, "{name}: {report}");
    }
    for interval in intervals {
        for name in ["mbit_to_gateway", "mbit_from_gateway"] {
            assert!(interval[name].as_f64().unwrap() > 0.0, "{name}: {interval}");
        }
        for name in ["pings", "requests"] {
            assert!(interval[name]["count"].as_u64().unwrap() > 0, "{name}: {interval}");
        }
    }
}

#[test]
fn a_run_without_time_is_a_usage_error() {
    assert!(refusal("soak --minutes 0", 2).contains("0.1 to 60000 minutes"));
}
