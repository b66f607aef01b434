//! `weft-bench soak` with a few seconds of everything: nothing grows, stalls or is lost.
#![cfg(target_os = "linux")]

mod support;

use support::{figure, refusal, report, rows};
use weft_lab::installed;

#[test]
fn a_short_run_has_everything_that_a_long_one_has_and_no_faults() {
    if !installed("weft-bench soak", &["dbus-daemon"]) {
        return;
    }
    let Some(report) = report("soak --minutes 0.5 --every 5 --mbit 30 --peers 20 --flood 500") else {
        return;
    };
    // A fault would be a note, and the exit code 1.
    let notes = report["notes"].to_string();
    assert!(!notes.contains("fault: "), "{notes}");
    let mut events: Vec<&str> =
        rows(&report, "events").iter().map(|row| row["case"].as_str().unwrap()).collect();
    events.sort_unstable();
    let floods = ["data", "junk", "mac1", "no-mac1", "proven"].map(|name| format!("flood, {name}"));
    let others = ["reload", "restart, crash", "restart, orderly"].map(str::to_owned);
    assert_eq!(events, [&floods[..], &others].concat());
    let all = &rows(&report, "in all")[0];
    for name in ["sent", "requests", "visits", "roams", "reloads", "scrapes", "flooded"] {
        assert!(figure(all, name) > 0.0, "{name}: {report}");
    }
    for row in rows(&report, "until") {
        assert_eq!(row["samples"].as_array().unwrap().len(), 6);
        for name in ["mbit_to_gateway", "mbit_from_gateway", "pings", "requests"] {
            assert!(row["figures"][name]["lowest"].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
    }
}

#[test]
fn a_run_without_time_is_a_usage_error() {
    assert!(refusal("soak --minutes 0", 2).contains("0.1 to 60000 minutes"));
}
