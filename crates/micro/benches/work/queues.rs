//! Queues and tables: the transmit queue, staging, the flow table.

use std::hint::black_box;
use std::net::SocketAddr;

use weft_sched::flow::{FlowHash, FlowHasher, FlowTable};
use weft_tunnel::{MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS, Offload, TransmitQueue, bench};

use super::packets::{MSS, Outbound, tcp};
use super::{PACKETS, Work, Workload};

/// Length of the data message of a full packet.
const DATAGRAM: usize = 1420 + 32;

/// Fills a queue with datagrams of peers in turn, and removes the batches.
fn transmit(name: &'static str, peers: usize) -> Workload {
    let destination = SocketAddr::from(([192, 0, 2, 1], 51820));
    let paths: Vec<_> = (0..peers).map(|peer| bench::path(peer, destination)).collect();
    let mut queue = TransmitQueue::new(PACKETS + 2);
    const { assert!(PACKETS <= MAX_BATCH_SEGMENTS && PACKETS * DATAGRAM <= MAX_BATCH_BYTES) };
    Workload::new(name, PACKETS as u64, move || {
        for number in 0..PACKETS {
            bench::queue(&mut queue, paths[number % paths.len()], black_box(DATAGRAM));
        }
        while let Some(batch) = queue.pop() {
            black_box(batch.unsent().segments());
            queue.recycle(batch);
        }
    })
}

struct Staging(Outbound);

impl Work for Staging {
    fn run(&mut self) {
        if let Some(packet) = self.0.packet() {
            black_box(bench::stage(&packet, PACKETS));
        }
    }
}

/// Returns a flow hash with pseudo-random bits, as a hasher's.
fn flow(number: u64) -> FlowHash {
    let value = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    FlowHash { value: (value ^ value >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).max(1), has_ports: true }
}

fn flow_table(
    name: &'static str,
    flows: u64,
    mut each: impl FnMut(&mut FlowTable, FlowHash) + 'static,
) -> Workload {
    let mut table = FlowTable::new(0..4);
    for number in 0..flows {
        table.note_read(flow(number), (number % 4) as u16, |_| 0);
    }
    let mut next = 0;
    Workload::new(name, PACKETS as u64, move || {
        table.tick();
        for _ in 0..PACKETS {
            each(&mut table, flow(next % flows));
            next += 1;
        }
    })
}

/// Reads packets of new flows, with a full table.
fn new_flows() -> Workload {
    let mut table = FlowTable::new(0..4);
    let mut next = 0;
    let mut read = move |packets: usize| {
        table.tick();
        for _ in 0..packets {
            table.note_read(flow(next), (next % 4) as u16, |_| 0);
            next += 1;
        }
    };
    read(1 << 18);
    Workload::new("flow-table-new-flow", PACKETS as u64, move || read(PACKETS))
}

pub(super) fn workloads() -> [Workload; 8] {
    let hasher = FlowHasher::with_seed(1);
    let packet = tcp(40_000, 1, MSS.into());
    [
        transmit("transmit-queue-one-peer", 1),
        transmit("transmit-queue-peers-in-turn", 2),
        Workload::new("staging", PACKETS as u64, Staging(Outbound::new(packet.clone(), Offload::None))),
        Workload::new("flow-hash", PACKETS as u64, move || {
            for _ in 0..PACKETS {
                black_box(hasher.hash(black_box(&packet)));
            }
        }),
        flow_table("flow-table-read-one-flow", 1, |table, flow| table.note_read(flow, 1, |_| 0)),
        flow_table("flow-table-read-1000-flows", 1000, |table, flow| table.note_read(flow, 1, |_| 0)),
        flow_table("flow-table-stage-1000-flows", 1000, |table, flow| {
            black_box(table.stage(flow, |queue| queue, |_| 2, |_| 1));
        }),
        new_flows(),
    ]
}
