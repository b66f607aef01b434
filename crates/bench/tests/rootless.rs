//! `weft-bench rootless` for a second, without timing assertions: each way carries bytes as a user without
//! root, and the host is as it was.
#![cfg(target_os = "linux")]

mod support;

use support::report;
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
    let cases = report["links"][0]["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let subjects = case["subjects"].as_array().unwrap();
        let names: Vec<_> = subjects.iter().map(|subject| subject["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["daemon", "exec", "proxy"]);
        for subject in subjects {
            for figure in ["gbit_per_second", "cpu_seconds_per_gbit", "near_cpu_seconds_per_gbit"] {
                assert!(subject["metrics"][figure]["median"].as_f64().unwrap() > 0.0, "{figure}: {subject}");
            }
        }
    }
    let compared = report["links"][0]["comparisons"].as_array().unwrap();
    assert!(compared.iter().all(|row| row["theirs"] == "daemon") && compared.len() == 4, "{compared:?}");
    assert!(report["first_byte"]["milliseconds"]["median"].as_f64().unwrap() > 0.0);
}
