//! What commands believe of a daemon, which may be another user's: anything may come over its socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};
use tempfile::TempDir;
use weft_config::settings::ReportSettings;
use weft_ipc::runtime_dir::{control_socket, make};
use weft_report::{
    AlternationReport, DropReport, HistogramReport, LimitReport, PacketThreadReport, PeerReport, Rates,
    Recent, RefusalReport, SendFailureReport, StageReport, StatusReport, ThreadReport, TunQueueReport,
};

use crate::support::{NAME, Pty, weft};

/// Answers requests on the control socket of an interface, each with the next of `answers` for as long as
/// there are more than one, and goes on after an end.
fn serve(answers: Vec<Value>) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let socket = control_socket(directory.path(), &NAME.parse().unwrap());
    make(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let mut answers = answers.iter().peekable();
            for line in BufReader::new(&client).lines().map_while(Result::ok) {
                let answer = answers.next_if(|_| true).or(answers.peek().copied());
                let mut answer = json!({ "version": 1, "ok": answer.unwrap_or(&json!({})) }).to_string();
                answer.push('\n');
                if (&client).write_all(answer.as_bytes()).is_err() || line.contains("stop") {
                    break;
                }
            }
        }
    });
    directory
}

/// A report with everything in it, some of it several times.
fn full() -> StatusReport {
    let drop = |reason: &str| DropReport { reason: reason.to_owned(), ..DropReport::default() };
    let drops = vec![drop("no_peer"), drop("no_peer"), drop("staging_full"), drop("overload")];
    let times =
        HistogramReport { buckets: vec![(Some(1), 1), (Some(2), 1), (None, 1)], ..Default::default() };
    let limit = Some(LimitReport::default());
    let peer = |number: usize| PeerReport {
        public_key: format!("{number}{}", "A".repeat(42)),
        settings: ReportSettings::named(&format!("peer{number}")),
        endpoint: Some("192.0.2.1:1".to_owned()),
        latest_handshake_ms: Some(1),
        persistent_keepalive: Some(1),
        limit_to_peer: limit.clone(),
        limit_from_peer: limit.clone(),
        packet_thread: Some(1),
        rates: Some(Rates::default()),
        refusal: Some(RefusalReport::default()),
        alternation: Some(AlternationReport::default()),
        ..PeerReport::default()
    };
    let mut report = StatusReport {
        interface: NAME.to_owned(),
        public_key: Some("A".repeat(43)),
        members: vec![1; 2],
        drops: drops.clone(),
        send_failure: Some(SendFailureReport::default()),
        peers: (0..3).map(peer).collect(),
        packet_threads: vec![PacketThreadReport { busy: Some(1.0), ..PacketThreadReport::default() }; 2],
        threads: vec![ThreadReport::default(); 2],
        recent: Some(Recent { drops, ..Recent::default() }),
        ..StatusReport::default()
    };
    report.tun.queues = vec![TunQueueReport { rates: Some(Rates::default()), ..Default::default() }; 2];
    report.tunnel.handshake_load_ms = Some(1);
    report.times.turns = times.clone();
    report.times.stages = vec![StageReport { times, ..StageReport::default() }; 2];
    report
}

/// Returns the places of all numbers below `value`.
fn numbers(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at.to_owned()),
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(place, value)| numbers(value, &format!("{at}/{place}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| numbers(value, &format!("{at}/{name}"), found));
        }
        _ => {}
    }
}

/// The full report with the largest number that each of its numbers may be.
fn largest() -> Value {
    let mut report = serde_json::to_value(full()).unwrap();
    let mut places = Vec::new();
    numbers(&report, "", &mut places);
    assert!(places.len() > 150, "{}", places.len());
    for place in places {
        let fits = [u64::MAX, i64::MAX as u64, u32::MAX.into(), u16::MAX.into()].into_iter().any(|number| {
            *report.pointer_mut(&place).unwrap() = number.into();
            serde_json::from_value::<StatusReport>(report.clone()).is_ok()
        });
        assert!(fits, "{place}");
    }
    report
}

#[test]
fn the_largest_numbers_of_a_daemon_stop_no_command_that_shows_them() {
    let (mut first, last) = (serde_json::to_value(full()).unwrap(), largest());
    first["uptime_ms"] = (u64::MAX - 1000).into();
    first["pid"] = last["pid"].clone();
    let peer = last["peers"][0]["public_key"].as_str().unwrap().to_owned();
    for first in [first, last.clone()] {
        let directory = serve(vec![first, last.clone()]);
        for arguments in [
            &["status", NAME, "--sample", "0.01"][..],
            &["status", NAME, "--sample", "0.01", "-v"],
            &["status", NAME, "--sample", "0", "-v"],
            &["status", NAME, &peer, "--sample", "0.01"],
            &["status", NAME, "--sample", "0.01", "--json"],
            &["status"],
        ] {
            let output = weft(directory.path(), arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        }
        let mut top = Pty::spawn(weft(directory.path(), &["top", NAME, "--interval", "0.1"]), 200, 60);
        top.wait_for("peer1", 0);
        top.wait_for("now", 0);
        top.press("\r");
        top.wait_for("keepalive", 0);
        top.press("q");
        assert!(top.wait().success(), "{}", top.output());
    }
}

#[test]
fn an_interface_is_not_down_while_its_daemon_still_serves_it() {
    let directory = serve(vec![json!({})]);
    let output = weft(directory.path(), &["down", NAME]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let process = std::process::id();
    let expected = format!("process {process} says that {NAME} is down, and still serves it");
    assert!(told.contains(&expected) && !told.contains("interface is down"), "{told}");
}
