//! The queues of `weft-sched`: packets that wait to be sealed, and messages that wait to be opened.
//!
//! The order of each flow and of each source is kept, everything that goes in comes out once, the bytes that
//! wait are what the queue says, and no batch is kept longer than its packets.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_sched::flow::FlowHash;
use weft_sched::{DeficitRoundRobin, FlowQueue, PacketBatch, Remaining, SourceQueues};
use weft_tunnel::{Offload, PacketMut, TAILROOM};

use crate::input::Input;

/// Steps of one input.
const STEPS: usize = 500;

pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 3 {
        0 => flow_queue(&mut input),
        1 => source_queues(&mut input),
        _ => deficit_round_robin(&mut input),
    }
}

/// Packets of a batch: the flow, the number in the flow, and the length.
struct Batch {
    packets: Vec<(u8, u32, Vec<u8>)>,
    alive: Rc<Cell<usize>>,
}

impl PacketBatch for Batch {
    fn remaining(&self) -> impl Iterator<Item = Remaining> {
        (0..).zip(&self.packets).map(|(number, (flow, _, packet))| Remaining {
            number,
            bytes: (packet.len() - TAILROOM) as u32,
            flow: FlowHash { value: 1 + u64::from(*flow), has_ports: true },
        })
    }

    fn packet(&mut self, number: u32) -> Option<PacketMut<'_>> {
        let (_, _, packet) = &mut self.packets[number as usize];
        let len = packet.len() - TAILROOM;
        PacketMut::new(packet, len, Offload::None)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

fn flow_queue(input: &mut Input<'_>) {
    let mut queue = FlowQueue::new();
    let alive = Rc::new(Cell::new(0));
    let (mut sent, mut received) = ([0_u32; 256], [0_u32; 256]);
    let (mut waiting, mut bytes) = (0_usize, 0_usize);
    let mut take = |queue: &mut FlowQueue<Batch>, waiting: &mut usize, bytes: &mut usize| {
        let packet = queue.next();
        assert_eq!(packet.is_some(), *waiting > 0, "nothing stays behind");
        let Some(packet) = packet else { return };
        let packet = packet.bytes();
        let (flow, number) = (packet[0], u32::from_le_bytes(*packet[1..].first_chunk().unwrap()));
        let next = &mut received[usize::from(flow)];
        assert_eq!(number, *next, "flow {flow} in order");
        *next += 1;
        *waiting -= 1;
        *bytes -= packet.len();
    };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let choice = input.byte();
        if choice & 1 == 0 {
            let mut batches = VecDeque::new();
            for _ in 0..1 + (choice >> 1 & 1) {
                let packets = (0..input.below(12)).map(|_| {
                    let flow = input.byte() % (1 << (choice >> 2 & 7));
                    let len = [5, 64, 1500, 3001, 65_535][input.below(5)];
                    let mut packet = vec![flow; len + TAILROOM];
                    let number = &mut sent[usize::from(flow)];
                    packet[1..5].copy_from_slice(&number.to_le_bytes());
                    *number += 1;
                    waiting += 1;
                    bytes += len;
                    (flow, *number, packet)
                });
                let packets = packets.collect();
                alive.set(alive.get() + 1);
                batches.push_back(Batch { packets, alive: Rc::clone(&alive) });
            }
            queue.extend(&mut batches);
        } else {
            (0..=choice >> 1 & 31).for_each(|_| take(&mut queue, &mut waiting, &mut bytes));
        }
        assert_eq!((queue.bytes(), queue.is_empty()), (bytes, waiting == 0));
        assert_eq!(queue.room(), (1_usize << 20).saturating_sub(bytes), "a MiB waits at most");
        assert!(alive.get() <= waiting + 1, "a batch ends with its packets");
    }
    while waiting > 0 {
        take(&mut queue, &mut waiting, &mut bytes);
    }
    assert!(queue.next().is_none() && alive.get() == 0);
}

fn source_queues(input: &mut Input<'_>) {
    let mut queues: SourceQueues<(u8, u32)> = SourceQueues::new();
    let mut now = Instant::now();
    let source = |number: u8| SocketAddr::from(([192, 0, 2, number], 51820));
    let mut waiting: HashMap<u8, VecDeque<(u32, bool)>> = HashMap::new();
    let (mut count, mut next) = (0, 0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let choice = input.byte();
        match choice & 7 {
            0..3 => {
                for _ in 0..=choice >> 4 {
                    let (from, may_be_shed) = (input.byte() & 31, choice & 8 == 0);
                    let cost = 1 + usize::from(input.u16());
                    queues.push(source(from), (from, next), cost, may_be_shed, now);
                    waiting.entry(from).or_default().push_back((next, may_be_shed));
                    (count, next) = (count + 1, next + 1);
                }
            }
            3..5 => {
                let popped = queues.pop(now);
                assert_eq!(popped.is_some(), count > 0, "nothing stays behind");
                if let Some(popped) = popped {
                    let (from, number) = popped.item;
                    let (oldest, may_be_shed) = waiting.get_mut(&from).and_then(VecDeque::pop_front).unwrap();
                    assert_eq!(number, oldest, "source {from} in order");
                    assert!(may_be_shed || !popped.sheds_first, "it may not be shed");
                    count -= 1;
                }
            }
            5 => {
                let popped = queues.pop_longest();
                assert_eq!(popped.is_some(), count > 0);
                if let Some((from, number)) = popped {
                    let (oldest, _) = waiting.get_mut(&from).and_then(VecDeque::pop_front).unwrap();
                    assert_eq!(number, oldest, "the oldest of source {from} goes");
                    count -= 1;
                }
            }
            6 => queues.record_authentic(source(input.byte() & 31)),
            _ => {
                now += Duration::from_micros(u64::from(input.u16()));
                if choice & 8 != 0 {
                    queues.resume(now);
                }
            }
        }
        assert_eq!((queues.len(), queues.is_empty()), (count, count == 0));
    }
    let mut rest = 0;
    while queues.pop(now).is_some() {
        rest += 1;
    }
    assert_eq!(rest, count, "everything comes out");
}

fn deficit_round_robin(input: &mut Input<'_>) {
    let count = 1 + input.below(9);
    let mut scheduler = DeficitRoundRobin::new(count);
    // Whether a queue has something for ever; what it delivered; and its rounds without a read.
    let mut is_full = vec![false; count];
    let mut delivered = vec![0_u64; count];
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let number = input.below(count);
        is_full[number] ^= true;
        delivered.fill(0);
        let brings = 1 + usize::from(input.u16());
        for _ in 0..=input.below(40) {
            scheduler.begin_round();
            let mut is_read = vec![false; count];
            while let Some(queue) = scheduler.next() {
                assert!(!std::mem::replace(&mut is_read[queue], true), "a queue is read once a round");
                if is_full[queue] {
                    scheduler.record(queue, brings);
                    delivered[queue] += brings as u64;
                } else {
                    scheduler.mark_empty(queue);
                }
            }
            let any = is_full.contains(&true);
            assert_eq!(scheduler.has_delivered(), any, "a round delivers something if there is something");
        }
    }
}
