//! Coalescing, the work of a queue's writer before it writes.

use std::hint::black_box;

use weft_tun::bench::Coalescer;

use super::packets::{MSS, tcp, udp};
use super::{PACKETS, Workload};

fn workload(name: &'static str, writes: usize, packet: impl Fn(usize) -> Vec<u8>) -> Workload {
    let mut coalescer = Coalescer::new(1);
    assert!((0..PACKETS).all(|number| coalescer.stage(&packet(number))), "{name} does not fit a batch");
    assert_eq!(coalescer.coalesce(), writes, "{name} is another batch than it says");
    Workload::new(name, PACKETS as u64, move || {
        black_box(coalescer.coalesce());
    })
}

pub(super) fn workloads() -> [Workload; 4] {
    let sequence = |number: usize| number as u32 * u32::from(MSS);
    [
        workload("coalesce-tcp", 1, |number| tcp(40_000, sequence(number), MSS.into())),
        workload("coalesce-udp", 1, |_| udp(40_000, 1420)),
        workload("coalesce-four-flows", 4, |number| {
            tcp(40_000 + (number % 4) as u16, sequence(number / 4), MSS.into())
        }),
        workload("coalesce-acks", PACKETS, |number| tcp(40_000, sequence(number), 0)),
    ]
}
