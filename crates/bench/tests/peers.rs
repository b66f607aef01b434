//! `weft-bench peers` with a few peers, without timing assertions: every handshake completes, and at a modest
//! rate no packet of any peer is lost or displaced.
#![cfg(target_os = "linux")]

mod support;

use support::{figure, refusal, report, rows};

#[test]
fn twenty_of_forty_peers_shake_hands_and_nothing_is_lost_or_displaced() {
    let arguments = "peers --configured 40 --active 20 --secs 1 --rounds 1 --burst 4 --window 40 \
                     --work throughput,dump";
    let Some(report) = report(arguments) else { return };
    assert_eq!(figure(&rows(&report, "handshakes at once")[0], "complete"), 20.0);
    assert_eq!(figure(&rows(&report, "dump of all peers")[0], "peers"), 40.0);
    let throughput = rows(&report, "throughput");
    assert_eq!(throughput.len(), 4, "{report}");
    for row in throughput {
        assert!(figure(row, "sent") > 100.0, "{row}");
        assert_eq!((figure(row, "lost"), figure(row, "displaced")), (0.0, 0.0), "{row}");
    }
}

#[test]
fn more_active_peers_than_configured_are_refused_by_name() {
    let error = refusal("peers --configured 10 --active 9", 1);
    assert!(error.contains("18 peers take part, and only 10 are configured"), "{error}");
}
