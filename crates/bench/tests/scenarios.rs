//! Each scenario of `weft-bench` once and briefly, without timing assertions: everything is measured, and
//! nothing is lost or displaced at a modest rate.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use weft_lab::here;

const BENCH: &str = env!("CARGO_BIN_EXE_weft-bench");

fn bench(arguments: &str) -> Output {
    Command::new(BENCH).args(arguments.split_whitespace()).output().unwrap()
}

/// Returns the report of a successful run as JSON; `None` if the test cannot run here, which is reported.
fn report(arguments: &str) -> Option<Value> {
    if !here::tun_permitted() {
        return None;
    }
    if !Path::new(BENCH).with_file_name("weft").is_file() {
        here::not_run("there is no weft beside weft-bench: build the workspace");
        return None;
    }
    let output = bench(&format!("{arguments} --json"));
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Returns the rows of a table of a report.
fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    let tables = report["tables"].as_array().unwrap();
    let found = tables.iter().find(|found| found["title"] == table);
    found.unwrap_or_else(|| panic!("no table {table}: {report}"))["rows"].as_array().unwrap()
}

/// Returns a figure of the first round.
#[track_caller]
fn figure(row: &Value, name: &str) -> f64 {
    row["samples"][0][name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"))
}

#[test]
fn arguments_that_do_not_fit_are_refused_by_name() {
    // `--weft` only has to name a file: it never runs.
    let congestion = format!("--congestion none-such --weft {BENCH}");
    let no_control = "error: the kernel has no congestion control none-such, only ";
    for (arguments, code, error) in [
        (&*format!("compare --alone {congestion}"), 1, no_control),
        (&*format!("rtt {congestion}"), 1, no_control),
        ("floods --attack nonsense", 2, "unknown attack"),
        ("peers --configured 10 --active 9", 1, "18 peers take part, and only 10 are configured"),
        ("shards --packet-threads 1,8 --peers 7", 1, "8 packet threads need as many --peers"),
        ("soak --minutes 0", 2, "0.1 to 60000 minutes"),
    ] {
        let output = bench(arguments);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {printed}");
        assert!(printed.contains(error), "{arguments}: {printed}");
    }
}

#[test]
fn a_slow_flood_is_measured_beside_tcp_and_pings() {
    let arguments = "floods --alone --secs 1 --rounds 1 --attack mac1-16-v6@100,aimed-name@100";
    let Some(report) = report(arguments) else { return };
    for attack in ["mac1-16-v6@100", "aimed-name-1@100"] {
        let row = &rows(&report, attack)[0];
        for name in ["rest_mbit", "mbit", "sent_per_second"] {
            assert!(figure(row, name) > 0.0, "{attack}, {name}: {row}");
        }
        assert!(figure(row, "strangers_not_in") >= 0.0 && figure(row, "turn_p999_ms") >= 0.0, "{row}");
    }
}

#[test]
fn twenty_of_forty_peers_shake_hands_and_nothing_is_lost_or_displaced() {
    let arguments =
        "peers --configured 40 --active 20 --secs 1 --rounds 1 --burst 4 --window 40 --work throughput";
    let Some(report) = report(arguments) else { return };
    assert_eq!(figure(&rows(&report, "handshakes at once")[0], "complete"), 20.0);
    let throughput = rows(&report, "throughput");
    assert_eq!(throughput.len(), 4, "{report}");
    for row in throughput {
        assert!(figure(row, "sent") > 100.0, "{row}");
        assert_eq!((figure(row, "lost"), figure(row, "displaced")), (0.0, 0.0), "{row}");
    }
}

#[test]
fn exec_and_proxy_are_measured_beside_the_daemon_and_the_host_is_as_it_was() {
    if !here::installed(&["iperf3", "setpriv"]) {
        return;
    }
    let limit = || std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let before = limit();
    let Some(report) = report("rootless --link veth --rounds 1 --secs 1") else { return };
    assert_eq!(limit(), before);
    let (tcp, cost) = (rows(&report, "TCP"), rows(&report, "cost of each Gbit in both daemons"));
    for rows in [tcp, cost] {
        let named: Vec<_> = rows.iter().map(|row| format!("{} {}", row["case"], row["side"])).collect();
        let wanted = ["tcp-1 veth", "tcp-reverse veth"]
            .map(|case| ["daemon", "exec", "proxy", "own"].map(|side| format!("\"{case}\" \"{side}\"")));
        assert_eq!(named, wanted.as_flattened());
    }
    for row in tcp {
        assert!(figure(row, "gbit_per_second") > 0.0 && figure(row, "cpu_seconds_per_gbit") > 0.0, "{row}");
    }
    assert!(cost.iter().all(|row| figure(row, "near_cpu_seconds_per_gbit") > 0.0), "{cost:?}");
    assert_eq!(report["comparisons"].as_array().unwrap().len(), 6, "{report}");
}

#[test]
fn each_load_is_carried_with_one_packet_thread_and_with_two() {
    let Some(report) = report("shards --packet-threads 1,2 --peers 4 --rounds 1 --secs 1") else { return };
    let cases = rows(&report, "packet threads, load");
    // One thread: upload, download and both. Two: also what the other one reads.
    assert_eq!(cases.len(), 3 + 5);
    for case in cases {
        for name in ["gbit_per_second", "cpu_seconds_per_gbit", "senders_cpu_seconds_per_gbit", "cores"] {
            assert!(figure(case, name) > 0.0, "{name}: {case}");
        }
    }
    let gains = report["comparisons"].as_array().unwrap();
    assert_eq!(gains.len(), 2 * 5);
    assert!(gains.iter().all(|gain| gain["ratio"]["median"].as_f64().unwrap() > 0.0), "{gains:?}");
}

#[test]
fn a_short_soak_has_everything_that_a_long_one_has_and_no_faults() {
    if !here::installed(&["dbus-daemon"]) {
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
    for name in ["sent", "visits", "roams", "flooded"] {
        assert!(figure(all, name) > 0.0, "{name}: {report}");
    }
    for row in rows(&report, "until") {
        assert_eq!(row["samples"].as_array().unwrap().len(), 6);
        for name in ["mbit_to_gateway", "mbit_from_gateway"] {
            assert!(row["figures"][name]["lowest"].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
    }
}
