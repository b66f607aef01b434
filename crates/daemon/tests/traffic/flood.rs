//! Memory stays bounded under a flood.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::Amount;

use crate::support::{Conf, End, Ends, Family, NAME, PORT, Running, alone, answers, weft_up};

/// A daemon with four queues with threads has 2.3 MiB of slabs, 4 MiB of its sockets' and 1.5 MiB of flows;
/// its code comes to some 20 MiB without optimisation.
const BOUND_KIB: u64 = 128 * 1024;

#[test]
fn a_flood_from_all_sides_leaves_memory_bounded() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    for tun_threads in ["0", "4"] {
        let (conf_a, conf_b) = Conf::pair(Family::V4);
        let up = |namespace, conf: &Conf| {
            let directory = tempfile::tempdir().unwrap();
            let mut command = weft_up(namespace, &conf.write(directory.path(), NAME));
            command.args(["--tun-threads", tun_threads]);
            Running::start(namespace, command, directory)
        };
        let (a, b) = (up(&ends.a, &conf_a), up(&ends.b, &conf_b));
        assert!(answers(&ends.a, End::B.inner(Family::V4)));
        let end = Instant::now() + Duration::from_secs(2);
        flood(&ends, end);
        for (name, process) in [("A", &a), ("B", &b)] {
            let peak = process.peak_memory_kib();
            eprintln!("{tun_threads} threads: daemon {name} had at most {peak} KiB");
            assert!(peak < BOUND_KIB, "{peak} KiB");
        }
        assert!(answers(&ends.b, End::A.inner(Family::V6)), "no answer after the flood");
        a.stop();
        b.stop();
    }
}

/// Everything at once, faster than it can be carried: datagrams and streams through the tunnel, packets that
/// belong to no peer into it, and nonsense to the daemon's port.
fn flood(ends: &Ends, end: Instant) {
    let (a, b) = (End::A.inner(Family::V4), End::B.inner(Family::V4));
    let options = NumberedOptions {
        flows: 2_000,
        datagram_bytes: 1_392,
        datagrams_per_second: 1_000_000,
        burst: 40,
        segmentation_offload: true,
        amount: Amount::Until(end),
        ..NumberedOptions::default()
    };
    let numbered = Numbered::start(&ends.a, a, &ends.b, b, options).unwrap();
    // A connection may begin only after the flood, which fills every queue; it carries everything all the
    // same.
    let transfer = ends.transfer(End::B, Family::V4, 16, Amount::Count(1 << 20));
    let nonsense = ends.b.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let port = SocketAddr::new(End::A.outer(Family::V4), PORT);
    let mut datagram = [0; 148];
    while Instant::now() < end {
        for kind in 0..=5 {
            datagram[0] = kind;
            let _ = nonsense.send_to(&datagram, port);
        }
    }
    let report = numbered.finish();
    assert!(report.forward.received > 0, "{report:?}");
    assert_eq!((report.forward.out_of_order, report.forward.duplicates, report.forward.corrupt), (0, 0, 0));
    transfer.finish();
}
