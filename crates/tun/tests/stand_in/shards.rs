//! Several packet threads of one device: packets go to the thread that owns their flow, in order, and a
//! thread that takes nothing stops only the queues whose packets it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::*;

/// The maximum number of slabs of one queue.
const SLABS: usize = 6;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The devices of several packet threads, each with a runtime, which this one thread runs in turn.
struct World {
    shards: Vec<(Runtime, Device)>,
    woken: Vec<Arc<Woken>>,
    peers: Vec<UnixDatagram>,
}

/// The owner of flow n is shard n % 3.
fn owner(packet: &[u8]) -> u16 {
    u16::from(packet[21] % 3)
}

impl World {
    fn new(queues: usize, shards: usize) -> Self {
        let (ours, peers): (Vec<_>, Vec<_>) = (0..queues).map(|_| message_pair()).unzip();
        peers.iter().for_each(|peer| peer.set_nonblocking(true).unwrap());
        let offload = TunOffload::default();
        let devices = Device::shards_from_descriptors_for_test("weft-none", ours, false, offload, shards);
        // Time passes only where a test says so.
        let runtime = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let shards: Vec<_> = devices.unwrap().into_iter().map(|device| (runtime(), device)).collect();
        let count = shards.len();
        let mut world = Self { woken: shards.iter().map(|_| Arc::default()).collect(), shards, peers };
        // The first poll registers the queues with the runtime.
        (0..count).for_each(|shard| drop(world.read(shard, 1)));
        world
    }

    fn deliver(&self, queue: usize, flow: u8, number: u32) -> bool {
        self.peers[queue].send(&framed(&packet(flow, number))).is_ok()
    }

    /// Polls a shard once, after its runtime has asked the kernel what is readable.
    fn read(&mut self, shard: usize, max_bytes: usize) -> VecDeque<TunBatch> {
        let (runtime, device) = &mut self.shards[shard];
        let waker = Waker::from(Arc::clone(&self.woken[shard]));
        runtime.block_on(async {
            tokio::task::yield_now().await;
            let mut batches = VecDeque::new();
            let _ = device.poll_recv_many(&mut Context::from_waker(&waker), &mut batches, max_bytes);
            tokio::task::yield_now().await;
            batches
        })
    }

    /// Returns the number of packets that were dropped.
    fn hand_over(&mut self, shard: usize, batches: &mut VecDeque<TunBatch>) -> u64 {
        let own = shard as u16;
        self.shards[shard].1.hand_over(batches, |packet| Some(owner(packet)).filter(|owner| *owner != own))
    }

    /// Lets a second pass for a shard.
    fn wait_a_second(&mut self, shard: usize) {
        self.shards[shard].0.block_on(tokio::time::advance(Duration::from_secs(1)));
    }

    fn poll(&mut self, shard: usize, max_bytes: usize) -> VecDeque<TunBatch> {
        let mut batches = self.read(shard, max_bytes);
        if !batches.is_empty() {
            assert_eq!(self.hand_over(shard, &mut batches), 0);
        }
        batches
    }

    /// Writes a packet of each flow, and returns the queue that it came out of.
    fn write(&mut self, shard: usize, flows: &[u8]) -> Vec<usize> {
        let (runtime, device) = &mut self.shards[shard];
        runtime.block_on(async {
            for flow in flows {
                poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
                let range = device.plain_slab().push(&packet(*flow, 0)).unwrap();
                device.send(range).unwrap();
                device.flush().unwrap();
            }
            poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
        });
        let mut queue_of = vec![usize::MAX; 256];
        let mut buffer = [0; 2000];
        for (queue, peer) in self.peers.iter().enumerate() {
            while peer.recv(&mut buffer).is_ok() {
                queue_of[usize::from(buffer[VNET_HDR + 21])] = queue;
            }
        }
        flows.iter().map(|flow| queue_of[usize::from(*flow)]).collect()
    }

    /// Checks that every slab of every queue can be used.
    fn check_that_slabs_returned(&mut self) {
        let queues = self.peers.len();
        let shards = self.shards.len();
        for queue in 0..queues {
            let shard = (0..shards).find(|shard| queue < (shard + 1) * queues / shards).unwrap();
            // A flow that moved from another queue could wait.
            let flow = (shard + 3 * (10 + queue)) as u8;
            let mut kept = VecDeque::new();
            for number in 0..=SLABS as u32 {
                assert!(self.deliver(queue, flow, number));
                kept.extend(self.poll(shard, 1 << 20));
            }
            assert_eq!(contents(&kept).len(), SLABS, "queue {queue}");
            kept.clear();
            assert_eq!(contents(&self.poll(shard, 1 << 20)), [(flow, SLABS as u32)]);
        }
    }
}

/// Returns flow and number of every packet in the batches.
fn contents(batches: &VecDeque<TunBatch>) -> Vec<(u8, u32)> {
    batches.iter().flat_map(|batch| batch.remaining().map(flow_and_number)).collect()
}

#[test]
fn every_packet_arrives_once_and_in_order_at_the_owner_of_its_flow() {
    for seed in 1..=4_u64 {
        arrives_in_order(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

fn arrives_in_order(mut state: u64) {
    const FLOWS: u8 = 24;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % below
    };
    let mut world = World::new(7, 3);
    let mut sent = [0_u32; FLOWS as usize];
    let mut taken = [0_u32; FLOWS as usize];
    // The queue of each flow, and whether a packet of it was read from there. Only then the kernel moves it.
    let mut place: Vec<_> = (0..FLOWS).map(|_| (random(7), false)).collect();
    let mut kept: Vec<VecDeque<TunBatch>> = (0..3).map(|_| VecDeque::new()).collect();
    let mut stalled = [0_usize; 3];
    for step in 0..12_000 {
        let is_end = step >= 10_000;
        let flow = random(usize::from(FLOWS));
        if !is_end && random(40) == 0 && place[flow].1 {
            place[flow] = (random(7), false);
        }
        if !is_end && world.deliver(place[flow].0, flow as u8, sent[flow]) {
            sent[flow] += 1;
        }
        let shard = random(3);
        if !is_end && random(300) == 0 {
            stalled[shard] = 200;
        }
        stalled.iter_mut().for_each(|steps| *steps = steps.saturating_sub(1));
        if random(4) != 0 || (stalled[shard] > 0 && !is_end) {
            continue;
        }
        if is_end || random(3) == 0 {
            kept[shard].clear();
        }
        let max_bytes = [1, 5000, 1 << 20][random(3)];
        let batches = world.poll(shard, max_bytes);
        for batch in &batches {
            for packet in batch.remaining() {
                let (flow, number) = flow_and_number(packet);
                let flow = usize::from(flow);
                assert_eq!(usize::from(owner(packet)), shard);
                assert_eq!(number, taken[flow], "flow {flow}");
                taken[flow] += 1;
                place[flow].1 |= usize::from(batch.queue()) == place[flow].0;
            }
        }
        kept[shard].extend(batches);
    }
    assert_eq!(taken, sent);
    assert!(sent.iter().sum::<u32>() > 3000, "{sent:?}");
    kept.clear();
    world.check_that_slabs_returned();
}

#[test]
fn a_shard_that_takes_nothing_stops_only_the_queues_whose_packets_it_holds() {
    let mut world = World::new(4, 2);
    let mut number = 0;
    // Queues 0 and 1 are read by shard 0, 2 and 3 by shard 1, which takes nothing.
    while number < SLABS as u32 {
        assert!(world.deliver(0, 1, number));
        assert_eq!(contents(&world.poll(0, 1 << 20)), []);
        number += 1;
    }
    for more in 0..3 * SLABS as u32 {
        assert!(world.deliver(0, 1, number) && world.deliver(1, 0, more));
        assert_eq!(contents(&world.poll(0, 1 << 20)), [(0, more)], "another queue goes on");
        number += 1;
    }
    let all = world.poll(1, 1 << 20);
    assert_eq!(contents(&all), (0..SLABS as u32).map(|number| (1, number)).collect::<Vec<_>>());
    assert_eq!(contents(&world.poll(0, 1 << 20)), []);
    assert_eq!(contents(&world.poll(1, 1 << 20)), [], "its slabs are still there");
    world.woken[0].0.store(false, Ordering::SeqCst);
    drop(all);
    assert!(world.woken[0].0.load(Ordering::SeqCst), "a slab that returns wakes its reader");
    assert_eq!(contents(&world.poll(0, 1 << 20)), []);
    let rest = contents(&world.poll(1, 1 << 20));
    assert_eq!(rest, (SLABS as u32..number).map(|number| (1, number)).collect::<Vec<_>>());
    world.check_that_slabs_returned();
}

/// Queues 0 and 1 are read by shard 0, 2 and 3 by shard 1, 4 and 5 by shard 2. Flow 1 is shard 1's, which
/// took `taken` batches and then nothing for a second, with all slabs of queue 0 that it may have.
fn stalled(taken: u32) -> (World, Vec<VecDeque<TunBatch>>, u32) {
    let mut world = World::new(6, 3);
    let mut kept = Vec::new();
    for number in 0..SLABS as u32 {
        assert!(world.deliver(0, 1, number));
        assert_eq!(contents(&world.poll(0, 1 << 20)), []);
        if number < taken {
            kept.push(world.poll(1, 1 << 20));
            assert_eq!(contents(&kept[number as usize]), [(1, number)]);
        }
    }
    let number = SLABS as u32;
    assert!(world.deliver(0, 1, number));
    assert_eq!(contents(&world.poll(0, 1 << 20)), [], "there is no slab");
    assert_eq!(contents(&world.poll(2, 1 << 20)), [], "it takes that it was asked");
    world.woken[0].0.store(false, Ordering::SeqCst);
    world.wait_a_second(0);
    assert!(world.woken[0].0.load(Ordering::SeqCst), "the check wakes the shard");
    (world, kept, number)
}

impl World {
    /// Polls a shard twice, and returns its own packets and how many it dropped.
    fn poll_dropping(&mut self, shard: usize) -> (Vec<(u8, u32)>, u64) {
        let (mut own, mut dropped) = (Vec::new(), 0);
        for _ in 0..2 {
            let mut batches = self.read(shard, 1 << 20);
            dropped += self.hand_over(shard, &mut batches);
            own.extend(contents(&batches));
        }
        (own, dropped)
    }
}

#[test]
fn a_shard_that_takes_nothing_for_a_second_stops_no_queue_until_it_goes_on() {
    // It may have taken nothing, or all that there was, and hang with that.
    for taken in [0, 1, SLABS as u32] {
        let (mut world, kept, mut number) = stalled(taken);
        assert_eq!(world.poll_dropping(0), (vec![], 1));
        for more in 0..4 * SLABS as u32 {
            number += 1;
            assert!(world.deliver(0, 1, number) && world.deliver(0, 0, more) && world.deliver(0, 2, more));
            assert_eq!(world.poll_dropping(0), (vec![(0, more)], 1));
            assert_eq!(contents(&world.poll(2, 1 << 20)), [(2, more)], "other shards get theirs");
        }
        // What it has is all that it gets, in order, and then what comes from now on.
        let rest = contents(&world.poll(1, 1 << 20));
        assert_eq!(rest, (taken..SLABS as u32).map(|number| (1, number)).collect::<Vec<_>>());
        drop(kept);
        for _ in 0..2 * SLABS {
            number += 1;
            assert!(world.deliver(0, 1, number));
            assert_eq!(world.poll_dropping(0), (vec![], 0));
            assert_eq!(contents(&world.poll(1, 1 << 20)), [(1, number)]);
        }
        world.check_that_slabs_returned();
    }
}

#[test]
fn a_stalled_shard_gets_nothing_from_other_queues_either() {
    let (mut world, kept, _) = stalled(0);
    // It holds no slab of this queue.
    for number in 100..103 {
        assert!(world.deliver(1, 1, number));
        let (own, dropped) = world.poll_dropping(0);
        assert_eq!(own, []);
        assert!(dropped > 0, "{number}");
    }
    let taken = contents(&world.poll(1, 1 << 20));
    assert!(taken.iter().all(|(_, number)| *number < 100), "{taken:?}");
    drop(kept);
}

#[test]
fn what_a_shard_holds_that_goes_on_and_hangs_again_and_again_is_bounded() {
    let (mut world, mut kept, mut number) = stalled(0);
    let mut deliver_and_read = |world: &mut World| {
        number += 1;
        // The queue may be full.
        let _ = world.deliver(0, 1, number) && world.deliver(0, 0, number);
        let mut batches = world.read(0, 1 << 20);
        world.hand_over(0, &mut batches);
        batches
    };
    for _ in 0..10 {
        // The second is over. As many slabs as without a stall are there for the packets of others.
        let mut own = Vec::new();
        for _ in 0..3 * SLABS as u32 {
            own.extend(deliver_and_read(&mut world));
        }
        assert_eq!(own.len(), SLABS);
        // It takes something, and gets more, but never more slabs than without a stall.
        kept.push(world.poll(1, 1 << 20));
        drop(own);
        for _ in 0..3 * SLABS {
            deliver_and_read(&mut world);
        }
        kept.push(world.poll(1, 1 << 20));
        assert!(kept.iter().map(VecDeque::len).sum::<usize>() <= SLABS);
        // It is asked at the next check, and has a second from then on.
        for _ in 0..2 {
            world.wait_a_second(0);
            deliver_and_read(&mut world);
        }
    }
    let seen: Vec<_> = kept.iter().flat_map(contents).collect();
    assert!(seen.is_sorted(), "{seen:?}");
    kept.clear();
    for _ in 0..100 {
        let mut batches = world.read(0, 1 << 20);
        world.hand_over(0, &mut batches);
        world.poll(1, 1 << 20);
    }
    world.check_that_slabs_returned();
}

#[test]
fn a_shard_that_goes_on_while_packets_for_it_are_read_holds_no_more_slabs() {
    let (mut world, mut kept, mut number) = stalled(0);
    assert_eq!(world.poll_dropping(0), (vec![], 1));
    // These are read into the slabs that replace those of the stalled shard.
    let mut read = VecDeque::new();
    for _ in 0..SLABS {
        number += 1;
        assert!(world.deliver(0, 1, number));
        read.extend(world.read(0, 1 << 20));
    }
    assert_eq!(contents(&read).len(), SLABS);
    kept.push(world.poll(1, 1 << 20));
    read.extend(world.read(0, 1 << 20));
    assert_eq!(world.hand_over(0, &mut read), SLABS as u64);
    assert_eq!(contents(&world.poll(1, 1 << 20)), [], "it has all that it may have");
    assert_eq!(kept.iter().map(VecDeque::len).sum::<usize>(), SLABS);
    kept.clear();
    number += 1;
    assert!(world.deliver(0, 1, number));
    assert_eq!(world.poll_dropping(0), (vec![], 0));
    assert_eq!(contents(&world.poll(1, 1 << 20)), [(1, number)]);
    world.check_that_slabs_returned();
}

#[test]
fn a_shard_that_sleeps_is_not_stalled() {
    let mut world = World::new(4, 2);
    // Shard 0 uses all slabs of a queue itself, and shard 1 has nothing to take.
    let mut kept = Vec::new();
    for number in 0..SLABS as u32 {
        assert!(world.deliver(0, 0, number));
        kept.push(world.poll(0, 1 << 20));
    }
    assert!(world.deliver(0, 1, 0));
    world.woken[1].0.store(false, Ordering::SeqCst);
    assert_eq!(contents(&world.poll(0, 1 << 20)), []);
    assert!(world.woken[1].0.load(Ordering::SeqCst), "it is asked");
    assert_eq!(contents(&world.poll(1, 1 << 20)), []);
    world.wait_a_second(0);
    assert_eq!(contents(&world.poll(0, 1 << 20)), []);
    drop(kept);
    assert_eq!(contents(&world.poll(0, 1 << 20)), []);
    assert_eq!(contents(&world.poll(1, 1 << 20)), [(1, 0)], "it gets its packets");
}

#[test]
fn a_flow_is_written_where_it_was_last_read_also_to_a_queue_of_another_shard() {
    let mut world = World::new(6, 3);
    let flows: Vec<u8> = (0..60).filter(|flow| flow % 3 == 1).collect();
    for (queue, flow) in world.write(1, &flows).into_iter().zip(&flows) {
        assert!((2..4).contains(&queue), "a flow that was never read stays with its owner: {queue}");
        assert!(world.deliver(queue, *flow, 0));
    }
    let mut read = 0;
    for _ in 0..10 {
        read += contents(&world.poll(1, 1 << 20)).len();
    }
    assert_eq!(read, flows.len());
    for queue in [0, 5, 2, 4] {
        for flow in &flows {
            assert!(world.deliver(queue, *flow, 0));
        }
        let (reader, mut read) = (queue / 2, 0);
        if reader != 1 {
            assert_eq!(contents(&world.poll(reader, 1 << 20)), []);
        }
        for _ in 0..10 {
            read += contents(&world.poll(1, 1 << 20)).len();
        }
        assert_eq!(read, flows.len());
        assert_eq!(world.write(1, &flows), vec![queue; flows.len()]);
    }
}

#[test]
fn a_flow_that_moved_from_a_queue_of_another_shard_waits_until_that_is_drained() {
    let mut world = World::new(4, 2);
    for turn in 0..8 {
        let number = 10 * turn;
        // Flow 0 is read from queue 2 first, which is shard 1's.
        world.deliver(2, 0, number);
        assert_eq!(contents(&world.poll(1, 1 << 20)), []);
        assert_eq!(contents(&world.poll(0, 1 << 20)), [(0, number)]);
        world.deliver(2, 0, number + 1);
        world.deliver(0, 0, number + 2);
        if turn % 2 == 0 {
            assert_eq!(contents(&world.poll(0, 1 << 20)), [], "the old queue is not empty");
            world.woken[0].0.store(false, Ordering::SeqCst);
            let mut batches = world.read(1, 1 << 20);
            assert_eq!(contents(&batches), [(0, number + 1)]);
            assert_eq!(contents(&world.poll(0, 1 << 20)), [], "the other shard still has a packet");
            assert_eq!(world.hand_over(1, &mut batches), 0);
            assert!(world.woken[0].0.load(Ordering::SeqCst));
        } else {
            assert_eq!(contents(&world.poll(1, 1 << 20)), []);
            // Different flows turn the own queue and the inbox into the one that is read first.
            if turn % 4 == 1 {
                world.deliver(1, 6, 0);
            }
        }
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.extend(contents(&world.poll(0, 1)).into_iter().filter(|(flow, _)| *flow == 0));
        }
        assert_eq!(seen, [(0, number + 1), (0, number + 2)]);
        world.poll(0, 1 << 20);
    }
}

#[test]
fn what_is_held_goes_on_when_the_other_shard_becomes_idle_without_a_packet_for_it() {
    let mut world = World::new(2, 2);
    world.deliver(1, 0, 0);
    world.poll(1, 1 << 20);
    assert_eq!(contents(&world.poll(0, 1 << 20)), [(0, 0)]);
    world.deliver(1, 1, 0);
    world.deliver(0, 0, 1);
    assert_eq!(contents(&world.poll(0, 1 << 20)), []);
    while contents(&world.poll(0, 1 << 20)).is_empty() && world.woken[0].0.swap(false, Ordering::SeqCst) {}
    assert_eq!(contents(&world.poll(1, 1 << 20)), [(1, 0)]);
    assert!(world.woken[0].0.load(Ordering::SeqCst), "nothing else would wake it");
    assert_eq!(contents(&world.poll(0, 1 << 20)), [(0, 1)]);
}
