//! Peers with a rate limit in the file, with the kernel's own TCP and super-packets.

use std::time::{Duration, Instant};

use weft_lab::traffic::Amount;
use weft_lab::until;

use crate::support::{Conf, End, Ends, Family, Running, answers, undisturbed};

/// The least time that `bytes` take at this rate: half a second's may go at once, and one super-packet
/// may come on top.
fn at_least(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_secs_f64((bytes - 65_536) as f64 / bytes_per_second as f64 - 0.5)
}

/// Sends bytes through the tunnel from an end, and returns how long that took.
fn send(ends: &Ends, from: End, bytes: u64) -> Duration {
    let begun = Instant::now();
    let transfer = ends.transfer(from, Family::V4, 1, Amount::Count(bytes));
    until("everything is confirmed", || transfer.is_finished());
    let took = begun.elapsed();
    assert_eq!(transfer.finish(), bytes);
    eprintln!("from {from:?}: {:.2} Mbit/s", bytes as f64 * 8.0 / took.as_secs_f64() / 1e6);
    took
}

#[test]
fn tcp_keeps_to_the_limits_of_a_peer_until_a_reload_takes_them_away() {
    let _undisturbed = undisturbed();
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf_a, conf_b) = Conf::pair(Family::V4);
    let unlimited = conf_a.clone();
    conf_a.peers[0].settings = vec!["RateToPeer = 8Mbit", "RateFromPeer = 10Mbit"];
    let a = Running::up(&ends.a, &conf_a, &[]);
    let b = Running::up(&ends.b, &conf_b, &[]);
    assert!(answers(&ends.a, End::B.inner(Family::V4)));

    // However slow the machine is, it does not make them faster.
    let took = send(&ends, End::A, 2_000_000);
    assert!(took >= at_least(2_000_000, 1_000_000), "{took:?}");
    let took = send(&ends, End::B, 2_500_000);
    assert!(took >= at_least(2_500_000, 1_250_000), "{took:?}");

    let report = a.status("0");
    let peer = &report["peers"][0];
    assert_eq!(peer["limit_to_peer"]["bits_per_second"], 8_000_000);
    assert_eq!(peer["limit_from_peer"]["bits_per_second"], 10_000_000);
    let dropped = |reason: &str| {
        let drops = report["drops"].as_array().unwrap().iter();
        drops
            .filter(|drop| drop["reason"] == reason)
            .map(|drop| drop["packets"].as_u64().unwrap())
            .sum::<u64>()
    };
    let (to, from) = (dropped("over_rate_to_peer"), dropped("over_rate_from_peer"));
    assert!(to > 0 && from > 0, "{report:#}");
    assert_eq!(peer["limit_to_peer"]["dropped_packets"], to);
    assert_eq!(peer["limit_from_peer"]["dropped_packets"], from);

    let told = a.reload(&unlimited, &[]);
    assert_eq!(told, [format!("change rate limits of peer {}", conf_a.peers[0].public_key)]);
    send(&ends, End::A, 16 << 20);
    send(&ends, End::B, 16 << 20);
    let report = a.status("0");
    assert_eq!(report["peers"][0].get("limit_to_peer"), None);
    assert_eq!(report["tunnel"]["handshakes"], 1, "{report:#}");
    for drop in report["drops"].as_array().unwrap() {
        let expected = match drop["reason"].as_str() {
            Some("over_rate_to_peer") => to,
            Some("over_rate_from_peer") => from,
            // TCP at full speed, which slows down by the loss of single datagrams, is no matter of limits.
            Some("no_peer" | "overload") => continue,
            _ => panic!("{report:#}"),
        };
        assert_eq!(drop["packets"], expected, "no more than before: {report:#}");
    }
    a.stop();
    b.stop();
}
