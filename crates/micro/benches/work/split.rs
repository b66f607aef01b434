//! Splitting, with a session that discards the segments, and the checksum by itself.

use std::hint::black_box;

use weft_tunnel::{Offload, bench, ip};

use super::packets::{MSS, MTU, Outbound, SEGMENTS, tcp, udp};
use super::{PACKETS, Work, Workload};

/// A number of equal packets, one after the other.
struct Split(Outbound, usize);

impl Work for Split {
    fn prepare(&mut self) {
        self.0.restore();
    }

    fn run(&mut self) {
        for _ in 0..self.1 {
            let Some(mut packet) = self.0.packet() else { return };
            let split = bench::split(&mut packet, MTU, |segment| {
                black_box(segment);
                true
            });
            black_box(split.is_ok());
        }
    }
}

fn single(name: &'static str, packet: Outbound) -> Workload {
    Workload::new(name, PACKETS as u64, Split(packet, PACKETS))
}

pub(super) fn workloads() -> [Workload; 5] {
    let datagram = MSS + 12;
    let udp_segments = 46;
    let udp_super = udp(40_000, 28 + usize::from(datagram) * udp_segments);
    let udp_offload = Offload::UdpSegmentation { segment_size: datagram };
    let partial = Offload::Checksum { start: 20, offset: 16 };
    let full = tcp(40_000, 1, MSS.into());
    let sum = full.clone();
    [
        Workload::new("split-tcp", SEGMENTS as u64, Split(Outbound::tcp_super_packet(), 1)),
        Workload::new("split-udp", udp_segments as u64, Split(Outbound::new(udp_super, udp_offload), 1)),
        single("split-partial-checksum", Outbound::new(full.clone(), partial)),
        single("split-complete-packet", Outbound::new(full, Offload::None)),
        Workload::new("checksum-1420", PACKETS as u64, move || {
            for _ in 0..PACKETS {
                black_box(ip::checksum_add(0, black_box(&sum)));
            }
        }),
    ]
}
