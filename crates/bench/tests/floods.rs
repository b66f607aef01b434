//! `weft-bench floods` with a slow flood, without timing assertions: everything is measured, and the flood
//! arrives.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use weft_lab::here;

const BENCH: &str = env!("CARGO_BIN_EXE_weft-bench");

#[test]
fn a_slow_flood_and_a_small_scan_are_measured_beside_tcp_and_pings() {
    if !here::tun_permitted() {
        return;
    }
    if !Path::new(BENCH).with_file_name("weft").is_file() {
        return here::not_run("there is no weft beside weft-bench: build the workspace");
    }
    let arguments =
        "floods --alone --secs 1 --rounds 1 --attack mac1-16-v6@100,aimed-name@100,scan-20@100 --json";
    let output = Command::new(BENCH).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
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
    let output = Command::new(BENCH).args(["floods", "--attack", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("unknown attack"));
}
