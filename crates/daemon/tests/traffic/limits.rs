//! Peers whose rate is limited in the file, with the kernel's own TCP and super-packets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_lab::Namespace;
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};

use crate::reload::{reload, status, up};
use crate::support::{Conf, End, Ends, Family, alone, answers};

/// The least time that so many bytes take at so many a second: half a second's may go at once, and one super-packet
/// may come on top.
fn at_least(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_secs_f64((bytes - 65_536) as f64 / bytes_per_second as f64 - 0.5)
}

/// Sends so many bytes through the tunnel to an end, and gives how long that took.
fn send(from: &Namespace, to: &Namespace, end: End, bytes: u64) -> Duration {
    let receiver = to.run(|| TcpReceiver::listen(SocketAddr::new(end.inner(Family::V4), 0))).unwrap();
    let begun = Instant::now();
    let senders = TcpSenders::start(from, receiver.local_addr(), 1, Amount::Count(bytes), 3).unwrap();
    for flow in senders.finish() {
        assert_eq!((&flow.error, flow.confirmed), (&None, bytes));
    }
    let took = begun.elapsed();
    for flow in receiver.finish() {
        assert_eq!((&flow.error, flow.first_mismatch, flow.bytes), (&None, None, bytes));
    }
    eprintln!("to {end:?}: {:.2} Mbit/s", bytes as f64 * 8.0 / took.as_secs_f64() / 1e6);
    took
}

#[test]
fn tcp_keeps_to_the_limits_of_a_peer_until_a_reload_takes_them_away() {
    let _alone = alone();
    let test = "tcp_keeps_to_the_limits_of_a_peer_until_a_reload_takes_them_away";
    let Some(ends) = Ends::new(test, 1500) else { return };
    let (mut conf_a, conf_b) = Conf::pair(Family::V4);
    let unlimited = conf_a.clone();
    conf_a.peers[0].settings = vec!["RateToPeer = 8Mbit", "RateFromPeer = 10Mbit"];
    let (a, directory) = up(&ends, End::A, &conf_a);
    let (b, _directory_b) = up(&ends, End::B, &conf_b);
    assert!(answers(&ends.a, End::B.inner(Family::V4)));
    let directory = directory.path();

    // However slow the machine is, it does not make them faster.
    let took = send(&ends.a, &ends.b, End::B, 2_000_000);
    assert!(took >= at_least(2_000_000, 1_000_000), "{took:?}");
    let took = send(&ends.b, &ends.a, End::A, 2_500_000);
    assert!(took >= at_least(2_500_000, 1_250_000), "{took:?}");

    let report = status(directory);
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

    let told = reload(directory, &unlimited, &[]);
    assert_eq!(told, [format!("change rate limits of peer {}", conf_a.peers[0].public_key)]);
    send(&ends.a, &ends.b, End::B, 16 << 20);
    send(&ends.b, &ends.a, End::A, 16 << 20);
    let report = status(directory);
    assert_eq!(report["peers"][0].get("limit_to_peer"), None);
    assert_eq!(report["tunnel"]["handshakes"], 1, "{report:#}");
    for drop in report["drops"].as_array().unwrap() {
        let expected = match drop["reason"].as_str() {
            Some("over_rate_to_peer") => to,
            Some("over_rate_from_peer") => from,
            Some("no_peer") => continue,
            _ => panic!("{report:#}"),
        };
        assert_eq!(drop["packets"], expected, "no more than before: {report:#}");
    }
    assert_eq!((a.stop().code, b.stop().code), (Some(0), Some(0)));
}
