//! `weft-bench rootless` for a second, without timing assertions: each way carries bytes as a user without
//! root, and the host is as it was.
#![cfg(target_os = "linux")]

mod support;

use support::{figure, report, rows};
use weft_lab::here;

#[test]
fn exec_and_proxy_are_measured_beside_the_daemon() {
    if !here::installed(&["iperf3", "setpriv", "curl"]) {
        return;
    }
    let limit = || std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let before = limit();
    let Some(report) = report("rootless --link veth --way exec,proxy --rounds 1 --secs 1") else { return };
    assert_eq!(limit(), before);
    let (tcp, cost) = (rows(&report, "TCP"), rows(&report, "cost of each Gbit in both daemons"));
    for rows in [tcp, cost] {
        let named: Vec<_> = rows.iter().map(|row| format!("{} {}", row["case"], row["side"])).collect();
        let wanted = ["tcp-1 veth", "tcp-reverse veth"]
            .map(|case| ["daemon", "exec", "proxy"].map(|side| format!("\"{case}\" \"{side}\"")));
        assert_eq!(named, wanted.as_flattened());
    }
    for row in tcp {
        assert!(figure(row, "gbit_per_second") > 0.0 && figure(row, "cpu_seconds_per_gbit") > 0.0, "{row}");
    }
    assert!(cost.iter().all(|row| figure(row, "near_cpu_seconds_per_gbit") > 0.0), "{cost:?}");
    let compared = report["comparisons"].as_array().unwrap();
    assert_eq!(compared.iter().filter(|row| row["theirs"] == "daemon").count(), 4, "{compared:?}");
    assert!(figure(&rows(&report, "first byte")[0], "milliseconds") > 0.0);
}
