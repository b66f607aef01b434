//! Back-pressure on every kind of queue that a platform has, in every way that it says that it is full:
//! packets arrive in order, none is lost, memory stays bounded, and few attempts are made meanwhile.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::device::{Device, OpenDevice};
use crate::family::FamilyQueue;
use crate::linux::vnet::VnetQueue;
use crate::plain::PlainQueue;
use crate::{Tun as _, TunBatch};

mod scripted;

use scripted::{FOR_EVER, Kernel, Kind, Script, Scripted, scripted};

type Family = FamilyQueue<OwnedFd>;

/// A header that says IPv4 is all that matters to the header of a platform.
const LIKE: &[u8] = &[0x45];
const PACKET: usize = 1000;
/// Bytes that a device may hold for a queue that takes nothing: its slabs, and what the socket holds.
const MAX_HELD: usize = 4 * 4 * 65_535 + (512 << 10);

fn packet(number: u32) -> Vec<u8> {
    let mut packet = vec![0; PACKET];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(PACKET as u16).to_be_bytes());
    packet[9] = 17;
    packet[28..32].copy_from_slice(&number.to_be_bytes());
    packet
}

fn number_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[28..32].try_into().unwrap())
}

struct World<Q: Kind> {
    device: Device<Scripted<Q>>,
    kernel: Kernel<Q>,
    script: Arc<Script>,
    sent: u32,
    taken: u32,
}

impl<Q: Kind> World<Q> {
    fn new(threads: bool, script: Arc<Script>) -> Self {
        let (queue, kernel) = scripted(&script);
        let device = Device::new(OpenDevice::without_offload("weft-none".into(), queue), threads).unwrap();
        Self { device, kernel, script, sent: 0, taken: 0 }
    }

    fn is_ready(&mut self) -> bool {
        self.device.poll_send_ready(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Sends a batch of at most `packets` packets. The device must be ready.
    fn send(&mut self, packets: usize) {
        for _ in 0..packets {
            let Some(range) = self.device.plain_slab().push(&packet(self.sent)) else { break };
            self.device.send(range).unwrap();
            self.sent += 1;
        }
        self.device.flush().unwrap();
    }

    /// Sends until the device accepts no more, for as long as it takes its threads to notice.
    async fn send_until_full(&mut self) {
        let mut refused = 0;
        while refused < 100 {
            if self.is_ready() {
                self.send(usize::MAX);
                refused = 0;
            } else {
                refused += 1;
                tokio::time::sleep(Duration::from_micros(1)).await;
            }
            let held = (self.sent - self.taken) as usize * PACKET;
            assert!(held <= MAX_HELD, "{held} bytes wait");
        }
    }

    /// Takes what was written and checks its order.
    fn take(&mut self) {
        while let Some(packet) = self.kernel.take() {
            assert_eq!(number_of(&packet), self.taken, "in order, and none lost");
            self.taken += 1;
        }
    }

    /// Polls the device as the event loop does, and takes packets, until every packet has arrived.
    async fn take_all(&mut self) {
        while self.taken < self.sent {
            let ready = poll_fn(|cx| self.device.poll_send_ready(cx));
            tokio::select! {
                biased;
                ready = ready => ready.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
            self.take();
        }
        poll_fn(|cx| self.device.poll_send_ready(cx)).await.unwrap();
    }

    /// Checks the counters, which a writer updates after its batch.
    fn check_counters(&self) {
        loop {
            let stats = self.device.stats().snapshot();
            assert_eq!(stats.write_failures, 0);
            if stats.segments_written == u64::from(self.sent) {
                assert_eq!(stats.bytes_written, u64::from(self.sent) * PACKET as u64);
                return;
            }
            std::thread::yield_now();
        }
    }
}

async fn stops_the_sender_and_resumes<Q: Kind>(threads: bool, script: Arc<Script>) {
    let mut world = World::<Q>::new(threads, script);
    for _ in 0..3 {
        world.send_until_full().await;
        assert!(!world.is_ready());
        world.take_all().await;
    }
    world.check_counters();
}

#[tokio::test]
async fn a_full_socket_stops_every_kind_of_queue() {
    for threads in [true, false] {
        stops_the_sender_and_resumes::<VnetQueue>(threads, Script::nothing()).await;
        stops_the_sender_and_resumes::<PlainQueue>(threads, Script::nothing()).await;
        stops_the_sender_and_resumes::<Family>(threads, Script::nothing()).await;
    }
}

#[tokio::test]
async fn a_full_ring_that_does_not_announce_room_stops_the_sender() {
    for threads in [true, false] {
        for error in [Errno::ENOSPC, Errno::ENOBUFS] {
            let ring = Script::new(error, 0, 0, 128 << 10);
            stops_the_sender_and_resumes::<Family>(threads, Arc::clone(&ring)).await;
            assert!(ring.failed.load(SeqCst) > 0, "the ring was full, and not the socket");
        }
    }
}

#[tokio::test]
async fn a_packet_that_is_refused_for_a_while_is_written_again_and_nothing_overtakes_it() {
    for threads in [true, false] {
        for (error, burst) in [(Errno::ENOSPC, 1), (Errno::ENOBUFS, 3), (Errno::ENOSPC, 6)] {
            // Every packet is refused, so every batch is written in parts.
            let mut world = World::<Family>::new(threads, Script::new(error, burst, burst, usize::MAX));
            for _ in 0..3 {
                poll_fn(|cx| world.device.poll_send_ready(cx)).await.unwrap();
                world.send(20);
            }
            world.take_all().await;
            world.check_counters();
            let attempts = world.script.attempts.load(SeqCst);
            assert_eq!(attempts, u64::from(world.sent) * (burst + 1), "one attempt a pause, one a packet");
        }
    }
}

/// The most attempts in this time: a hundred microseconds after the first, then after twice the pause, up to
/// a millisecond.
fn most_attempts(elapsed: Duration) -> u64 {
    5 + elapsed.as_millis() as u64
}

#[tokio::test]
async fn a_queue_that_is_stuck_is_tried_seldom_and_goes_on_by_itself() {
    for threads in [true, false] {
        for error in [Errno::ENOSPC, Errno::ENOBUFS] {
            let mut world = World::<Family>::new(threads, Script::new(error, FOR_EVER, 0, usize::MAX));
            let start = Instant::now();
            world.send_until_full().await;
            // The event loop runs for other reasons, and polls the device each time.
            while world.script.attempts.load(SeqCst) < 12 {
                assert!(!world.is_ready());
                tokio::task::yield_now().await;
            }
            assert!(world.device.pulse().silent(Duration::from_secs(30)).is_empty());
            let attempts = world.script.attempts.load(SeqCst);
            let most = most_attempts(start.elapsed());
            assert!(attempts <= most, "{attempts} attempts, and not {most}");
            // The latest attempt of the writer thread may still be under way, and others may follow.
            assert!(world.script.failed.load(SeqCst) + 1 >= attempts, "every attempt failed");
            assert_eq!(world.kernel.take(), None);

            world.script.failing.store(0, SeqCst);
            world.take_all().await;
            world.check_counters();
        }
    }
}

#[tokio::test]
async fn a_thread_that_is_stuck_for_long_takes_little_of_a_core() {
    /// The pause before an attempt is ten milliseconds once the queue has taken nothing for a second.
    const STALLED_ATTEMPTS: u64 = 1010;
    let mut world = World::<Family>::new(true, Script::new(Errno::ENOSPC, FOR_EVER, 0, usize::MAX));
    world.send_until_full().await;
    // The time of the thread, and the time, at an attempt.
    let at = async |attempts| {
        while world.script.attempts.load(SeqCst) < attempts {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (weft_lab::cpu::thread_time(world.script.thread.load(SeqCst)).unwrap(), Instant::now())
    };
    let (thread_before, before) = at(STALLED_ATTEMPTS).await;
    let (thread_after, after) = at(STALLED_ATTEMPTS + 30).await;
    let (taken, elapsed) = (thread_after - thread_before, after - before);
    assert!(taken > Duration::ZERO && taken < elapsed / 20, "{taken:?} of {elapsed:?}");
}

#[tokio::test]
async fn a_stuck_device_can_be_shut_down() {
    for threads in [true, false] {
        let mut world = World::<Family>::new(threads, Script::new(Errno::ENOSPC, FOR_EVER, 0, usize::MAX));
        world.send_until_full().await;
        world.device.shutdown();
        assert!(world.kernel.take().is_none());
    }
}

async fn reads_what_is_well_formed<Q: Kind>(threads: bool, malformed: &[&[u8]]) {
    let mut world = World::<Q>::new(threads, Script::nothing());
    for bytes in malformed {
        world.kernel.deliver_bytes(bytes);
    }
    for number in 0..20 {
        world.kernel.deliver(&packet(number));
    }
    let (mut batches, mut packets) = (VecDeque::new(), Vec::new());
    while packets.len() < 20 {
        let read = poll_fn(|cx| world.device.poll_recv_many(cx, &mut batches, 1 << 20)).await.unwrap();
        assert!(read > 0);
        // The reader needs the slabs again, if it read few packets at once.
        packets.extend(batches.iter().flat_map(TunBatch::remaining).map(<[u8]>::to_vec));
        batches.clear();
    }
    assert!(packets.iter().cloned().eq((0..20).map(packet)), "as they were routed");
    let stats = world.device.stats().snapshot();
    assert_eq!((stats.malformed_reads, stats.packets_read), (malformed.len() as u64, 20));
}

#[tokio::test]
async fn every_kind_of_queue_reads_its_packets_and_counts_what_is_none() {
    let good = packet(0);
    let family = Family::header(&good);
    let ipv6 = Family::header(&[0x60]);
    let longer = [&good[..], &[0]].concat();
    for threads in [true, false] {
        reads_what_is_well_formed::<PlainQueue>(threads, &[&[1], &good[..19], &good[..500], &longer]).await;
        let behind = |header: &[u8], packet: &[u8]| [header, packet].concat();
        reads_what_is_well_formed::<Family>(
            threads,
            &[
                &family[..3],
                &family,
                &good,
                &behind(&ipv6, &good),
                &behind(&[0; 4], &good),
                &behind(&[family[3], 0, 0, 0], &good),
                &behind(&family, &good[..500]),
            ],
        )
        .await;
    }
}
