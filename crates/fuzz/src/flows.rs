//! Flows across the queues of a device: read, moved by the kernel and written, in any order.
//!
//! The packets of a flow are read in the order in which the kernel queued them, though it moves the flow
//! between queues, and are written in the order in which they were sent. Each packet is read once and written
//! once.

use std::collections::VecDeque;

use weft_tun::{Tun as _, TunBatch};

use crate::input::Input;
use crate::stand_in::{StandIn, VNET_HDR};

const QUEUES: usize = 3;
const FLOWS: usize = 12;
/// Steps of one input.
const STEPS: usize = 400;

/// What the kernel knows of a flow.
#[derive(Clone, Copy, Default)]
struct Flow {
    queue: usize,
    /// Packets queued for weft, and read by it.
    queued: u32,
    read: u32,
    /// Packets that were queued when the kernel last moved the flow.
    before_move: u32,
    /// Packets sent, and written to the kernel.
    sent: u32,
    written: u32,
}

struct World {
    tun: StandIn,
    flows: [Flow; FLOWS],
    /// Batches that weft has read and not used yet.
    held: VecDeque<TunBatch>,
    staged: usize,
    /// Steps until weft reads what answered the first packet of a flow.
    unread_answer: Option<u8>,
}

pub(crate) fn check(bytes: &[u8]) {
    let mut world = World {
        tun: StandIn::new(QUEUES),
        flows: std::array::from_fn(|number| Flow { queue: number % QUEUES, ..Flow::default() }),
        held: VecDeque::new(),
        staged: 0,
        unread_answer: None,
    };
    let mut input = Input::new(bytes);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.flush();
    world.read_all();
    for flow in world.flows {
        assert_eq!((flow.read, flow.written), (flow.queued, flow.sent), "each packet arrives");
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        self.unread_answer = self.unread_answer.and_then(|steps| steps.checked_sub(1));
        if self.unread_answer == Some(0) {
            self.read_all();
        }
        let choice = input.byte();
        let flow = usize::from(choice >> 4) % FLOWS;
        match choice & 15 {
            0..5 => self.queue(flow, choice & 1 == 0),
            5..7 => self.move_to(flow, input.below(QUEUES)),
            7 => (0..=input.below(16)).for_each(|_| self.queue(flow, true)),
            8..10 => {
                let limit = [1, 1000, 70_000, usize::MAX][input.below(4)];
                self.read(limit);
            }
            10 => self.use_batches(1 + input.below(4)),
            11 => self.read_all(),
            12..15 => self.send(flow, choice & 1 == 0),
            _ => self.flush(),
        }
    }

    /// The kernel queues a packet for weft; not if the queue is full.
    fn queue(&mut self, number: usize, is_long: bool) {
        let flow = &mut self.flows[number];
        let packet = packet(number, flow.queued, is_long);
        let message = [&[0; VNET_HDR], &packet[..]].concat();
        if self.tun.queues[flow.queue].send(&message).is_ok() {
            flow.queued += 1;
        }
    }

    /// The kernel moves a flow, seconds after it last did: what the flow had in its queue before then was
    /// read long ago.
    fn move_to(&mut self, number: usize, queue: usize) {
        let flow = &mut self.flows[number];
        // weft cannot know the queue of a flow that it has not read yet.
        let is_known = flow.read > 0 || flow.queued == 0;
        // After a move, a packet of the new queue has to be read before the next move: until then weft knows
        // the old queue alone.
        if is_known && (flow.read > flow.before_move || flow.queued == flow.read) {
            (flow.queue, flow.before_move) = (queue, flow.queued);
        }
    }

    fn read(&mut self, max_bytes: usize) {
        let batches = self.tun.read(max_bytes);
        for batch in &batches {
            for packet in batch.remaining() {
                let (number, at) = flow_and_number(packet);
                let flow = &mut self.flows[number];
                assert_eq!(at, flow.read, "flow {number} in order");
                flow.read += 1;
            }
        }
        self.held.extend(batches);
    }

    fn use_batches(&mut self, count: usize) {
        self.held.drain(..count.min(self.held.len()));
    }

    /// Reads everything, and gives the slabs back in between.
    fn read_all(&mut self) {
        for _ in 0..10_000 {
            if self.flows.iter().all(|flow| flow.read == flow.queued) {
                return;
            }
            self.held.clear();
            self.read(usize::MAX);
        }
        panic!("packets stay unread");
    }

    fn send(&mut self, number: usize, is_long: bool) {
        let flow = &mut self.flows[number];
        let packet = packet(number, flow.sent, is_long);
        let Some(packet) = self.tun.device.plain_slab().push(&packet) else { return self.flush() };
        self.tun.device.send(packet).unwrap();
        flow.sent += 1;
        self.staged += 1;
    }

    fn flush(&mut self) {
        let written = self.tun.flush_all();
        for (queue, messages) in written.iter().enumerate() {
            for message in messages {
                let (number, at) = flow_and_number(&message[VNET_HDR..]);
                let flow = &mut self.flows[number];
                assert_eq!(at, flow.written, "flow {number} in order");
                flow.written += 1;
                if (flow.written, flow.queued) == (1, 0) {
                    // The kernel delivers a packet, and it is answered, before it learns the flow's queue.
                    self.queue(number, false);
                    let flow = &mut self.flows[number];
                    (flow.queue, flow.before_move) = (queue, flow.queued);
                    self.unread_answer = Some(3);
                }
            }
        }
        let count: usize = written.iter().map(Vec::len).sum();
        assert_eq!(count, std::mem::take(&mut self.staged), "each packet is written once");
    }
}

/// A UDP packet of a flow, with a number. Without a checksum it is never joined with another.
fn packet(flow: usize, number: u32, is_long: bool) -> Vec<u8> {
    let len = if is_long { 3000 } else { 60 };
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = 17;
    packet[21] = flow as u8;
    packet[24..26].copy_from_slice(&(len as u16 - 20).to_be_bytes());
    packet[28..32].copy_from_slice(&number.to_be_bytes());
    packet
}

fn flow_and_number(packet: &[u8]) -> (usize, u32) {
    (packet[21].into(), u32::from_be_bytes(*packet[28..].first_chunk().unwrap()))
}
