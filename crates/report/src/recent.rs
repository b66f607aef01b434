//! Rates and drops between two reports of one interface.

use std::collections::HashMap;

use crate::status::{DropReport, Rates, Recent, StatusReport};

/// Adds the rates and drops since `before` to `now`. Does nothing if the two reports cannot be compared, for
/// example because the interface was restarted in between.
pub fn add_recent(now: &mut StatusReport, before: &StatusReport) {
    let window_ms = now.uptime_ms.saturating_sub(before.uptime_ms);
    if window_ms == 0 || now.pid != before.pid || now.interface != before.interface {
        return;
    }
    let earlier: HashMap<&str, (u64, u64)> =
        before.peers.iter().map(|peer| (peer.public_key.as_str(), (peer.tx_bytes, peer.rx_bytes))).collect();
    for peer in &mut now.peers {
        // The counters of a peer that was added in between began at 0.
        let (tx, rx) = earlier.get(peer.public_key.as_str()).copied().unwrap_or_default();
        peer.rates =
            Some(rates(peer.tx_bytes.saturating_sub(tx), peer.rx_bytes.saturating_sub(rx), window_ms));
    }
    if now.tun.queues.len() == before.tun.queues.len() {
        for (queue, earlier) in now.tun.queues.iter_mut().zip(&before.tun.queues) {
            let read = queue.bytes_read.saturating_sub(earlier.bytes_read);
            let written = queue.bytes_written.saturating_sub(earlier.bytes_written);
            queue.rates = Some(rates(read, written, window_ms));
        }
    }
    let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / (window_ms as f64 * 1e6);
    if now.packet_threads.len() == before.packet_threads.len() {
        for (thread, earlier) in now.packet_threads.iter_mut().zip(&before.packet_threads) {
            thread.busy = Some(share(thread.busy_ns, earlier.busy_ns));
        }
    }
    let busiest = now.packet_threads.iter().filter_map(|thread| thread.busy).max_by(f64::total_cmp);
    let grown = |drop: &DropReport| {
        let earlier = before.drops.iter().find(|earlier| earlier.reason == drop.reason);
        let packets = drop.packets.saturating_sub(earlier.map_or(0, |earlier| earlier.packets));
        (packets > 0).then(|| DropReport { packets, ..drop.clone() })
    };
    now.recent = Some(Recent {
        window_ms,
        // A daemon of an earlier release has one packet thread and does not report it.
        busy: busiest.unwrap_or_else(|| share(now.times.turns.sum_ns, before.times.turns.sum_ns)),
        rates: rates(
            now.udp.bytes_sent.saturating_sub(before.udp.bytes_sent),
            now.udp.bytes_received.saturating_sub(before.udp.bytes_received),
            window_ms,
        ),
        drops: now.drops.iter().filter_map(grown).collect(),
        queue_overflows: now.tun.queue_overflows.saturating_sub(before.tun.queue_overflows),
        receive_overflows: now.udp.receive_overflows.saturating_sub(before.udp.receive_overflows),
        batch_segments: std::array::from_fn(|bucket| {
            now.udp.batch_segments[bucket].saturating_sub(before.udp.batch_segments[bucket])
        }),
    });
}

fn rates(tx_bytes: u64, rx_bytes: u64, window_ms: u64) -> Rates {
    let per_second = |bytes: u64| bytes.saturating_mul(1000) / window_ms;
    Rates { tx_bytes_per_second: per_second(tx_bytes), rx_bytes_per_second: per_second(rx_bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PacketThreadReport, PeerReport, TunQueueReport};

    fn report(uptime_ms: u64, tx: u64, rx: u64, drops: &[(&str, u64)]) -> StatusReport {
        let mut report = StatusReport {
            uptime_ms,
            peers: vec![PeerReport {
                public_key: "A".to_owned(),
                tx_bytes: tx,
                rx_bytes: rx,
                ..PeerReport::default()
            }],
            drops: drops
                .iter()
                .map(|&(reason, packets)| DropReport {
                    reason: reason.to_owned(),
                    packets,
                    ..DropReport::default()
                })
                .collect(),
            ..StatusReport::default()
        };
        (report.udp.bytes_sent, report.udp.bytes_received) = (tx, rx);
        report.times.turns.sum_ns = tx * 500_000;
        report.tun.queues =
            vec![TunQueueReport { bytes_read: 2 * tx, bytes_written: 2 * rx, ..TunQueueReport::default() }];
        report
    }

    #[test]
    fn rates_and_growing_drops_are_those_between_the_reports() {
        let before = report(1000, 100, 1000, &[("no_peer", 5), ("replayed", 1)]);
        let mut now = report(1500, 600, 3000, &[("no_peer", 9), ("replayed", 1), ("invalid_tag", 2)]);
        now.peers.push(PeerReport { public_key: "B".to_owned(), rx_bytes: 10, ..PeerReport::default() });
        add_recent(&mut now, &before);
        let recent = now.recent.as_ref().unwrap();
        assert_eq!((recent.window_ms, recent.busy), (500, 0.5));
        assert_eq!(recent.rates, Rates { tx_bytes_per_second: 1000, rx_bytes_per_second: 4000 });
        assert_eq!(now.peers[0].rates, Some(recent.rates));
        assert_eq!(now.peers[1].rates.unwrap().rx_bytes_per_second, 20);
        assert_eq!(
            now.tun.queues[0].rates,
            Some(Rates { tx_bytes_per_second: 2000, rx_bytes_per_second: 8000 })
        );
        let drops: Vec<_> = recent.drops.iter().map(|drop| (drop.reason.as_str(), drop.packets)).collect();
        assert_eq!(drops, [("no_peer", 4), ("invalid_tag", 2)]);
    }

    #[test]
    fn the_busiest_packet_thread_counts_not_their_sum() {
        let at = |uptime_ms, busy_ms: [u64; 3]| {
            let thread = |ms| PacketThreadReport { busy_ns: ms * 1_000_000, ..PacketThreadReport::default() };
            let mut report = report(uptime_ms, 0, 0, &[]);
            report.packet_threads = busy_ms.map(thread).to_vec();
            report.times.turns.sum_ns = busy_ms.iter().sum::<u64>() * 1_000_000;
            report
        };
        let mut now = at(1500, [500, 400, 250]);
        add_recent(&mut now, &at(1000, [100, 0, 250]));
        assert_eq!(now.recent.unwrap().busy, 0.8);
        let shares: Vec<_> = now.packet_threads.iter().map(|thread| thread.busy).collect();
        assert_eq!(shares, [Some(0.8), Some(0.8), Some(0.0)]);
    }

    #[test]
    fn reports_of_two_lives_of_an_interface_are_not_compared() {
        let mut now = report(10, 5, 5, &[]);
        add_recent(&mut now, &report(9000, 100, 100, &[]));
        assert_eq!(now.recent, None);
        let mut now = StatusReport { pid: 2, ..report(9001, 500, 500, &[]) };
        add_recent(&mut now, &report(9000, 100, 100, &[]));
        assert_eq!(now.recent, None);
    }
}
