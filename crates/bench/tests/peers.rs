//! `weft-bench peers` with a few peers, without timing assertions: every handshake completes, and at a modest
//! rate no packet of any peer is lost or displaced.
#![cfg(target_os = "linux")]

mod support;

use serde_json::Value;
use support::{refusal, report};

#[test]
fn twenty_of_forty_peers_shake_hands_and_nothing_is_lost_or_displaced() {
    let arguments = "peers --configured 40 --active 20 --secs 1 --rounds 1 --burst 4 --window 40 \
                     --work throughput,dump";
    let Some(report) = report(arguments) else { return };
    let subject = &report["subjects"][0];
    assert_eq!(subject["handshakes"]["complete"], 20);
    assert_eq!(subject["dump"]["peers"], 40);
    for direction in ["upload", "download"] {
        for figures in subject["throughput"][direction][0].as_array().unwrap() {
            assert!(figures["sent"].as_u64().unwrap() > 100, "{direction}: {figures}");
            assert_eq!(
                (&figures["lost"], &figures["displaced"]),
                (&Value::from(0), &Value::from(0)),
                "{direction}"
            );
        }
    }
}

#[test]
fn more_active_peers_than_configured_are_refused_by_name() {
    let error = refusal("peers --configured 10 --active 9", 1);
    assert!(error.contains("18 peers take part, and only 10 are configured"), "{error}");
}
