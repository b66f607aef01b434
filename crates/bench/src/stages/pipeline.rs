//! Bursts of packets through every stage, one after the other on one thread, with a separate time for each
//! stage.
//!
//! ```text
//! socket ─► near tun0 ─► read ─► seal ─► send ─► veth ─► receive ─► open ─► coalesce, write ─► far tun0 ─►
//! socket
//! ```
//!
//! It uses the daemon's code on the same batches, without its event loop: nothing waits, and nothing runs
//! beside a stage. A system call's kernel work counts for the stage: sending includes the veth up to the
//! other socket, writing includes the receive path up to the program's socket.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use weft_tun::{Tun as _, TunBatch};
use weft_tunnel::{Inbound, MAX_PACKET, PrivateKey, TransmitQueue};
use weft_udp::{RecvBuffers, Udp as _};

use super::ends::{self, End, Side};
use super::times::{Bursts, Costs, Stage, Times};
use crate::interrupt::Interrupt;

/// As in the daemon's outbound direction.
const TRANSMIT_BATCHES: usize = 8;
const SEND_AT: usize = 2;
const READ_BYTES: usize = 256 * 1024;
/// How long a burst may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bursts that do not count.
const WARM_UP: u64 = 8;
const DISCARD: u16 = 9;
/// Bytes of an IPv4 and a UDP header.
const HEADERS: usize = 28;

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    name: &'static str,
    /// Bytes of each IP packet.
    pub(super) packet: usize,
    /// Packets in each send of the program: a number above 1 makes a super-packet.
    segments: usize,
    /// Sends in a burst: fewer than the TUN's queue holds.
    sends: usize,
}

impl Shape {
    pub(super) const ALL: [Self; 2] = [
        Self { name: "1420 bytes, in super-packets of 45", packet: 1420, segments: 45, sends: 24 },
        Self { name: "64 bytes, one by one", packet: 64, segments: 1, sends: 768 },
    ];

    fn packets(&self) -> usize {
        self.segments * self.sends
    }

    fn payload(&self) -> usize {
        self.packet - HEADERS
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// The state of the stages.
struct Pipeline {
    near: End,
    far: End,
    now: Instant,
    source: UdpSocket,
    sink: UdpSocket,
    batches: VecDeque<TunBatch>,
    queue: TransmitQueue,
    buffers: RecvBuffers,
    payload: Vec<u8>,
}

/// Sends bursts for `secs` seconds and measures the stages.
pub(super) fn measure(shape: Shape, secs: u32, interrupt: &Interrupt) -> Result<Costs> {
    let interrupt = interrupt.clone();
    let measure = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut pipeline = Pipeline::new(shape)?;
            pipeline.bursts(shape, Duration::from_secs(secs.into()), &interrupt).await
        })
    };
    // On a new thread, since it moves into the namespaces.
    let thread = std::thread::Builder::new().name("stages".into()).spawn(measure)?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Pipeline {
    fn new(shape: Shape) -> Result<Self> {
        let [near, far] = ends::namespaces()?;
        let [a, b] = [PrivateKey::generate()?, PrivateKey::generate()?];
        let public = [a.public_key(), b.public_key()];
        let mut near = End::open(near, Side::Near, a, public[1])?;
        let mut far = End::open(far, Side::Far, b, public[0])?;
        let now = ends::shake_hands(&mut near, &mut far)?;

        let address = SocketAddr::new(Side::Far.inner(), DISCARD);
        let sink = far.namespace.run(|| UdpSocket::bind(address))?;
        sink.set_nonblocking(true)?;
        setsockopt(&sink, sockopt::UdpGroSegment, &true).context("the kernel has no UDP GRO")?;
        setsockopt(&sink, sockopt::RcvBufForce, &(64 << 20))?;
        let source = near.namespace.run(|| UdpSocket::bind((Side::Near.inner(), 0)))?;
        source.connect(address)?;
        let mut batch = shape.segments;
        if batch > 1 {
            ensure!(near.device.offload().udp, "the kernel's TUN has no UDP segmentation (Linux 6.2)");
            let segment = i32::try_from(shape.payload())?;
            setsockopt(&source, sockopt::UdpGsoSegment, &segment).context("the kernel has no UDP GSO")?;
        } else {
            batch = 1;
        }
        Ok(Self {
            near,
            far,
            now,
            source,
            sink,
            batches: VecDeque::new(),
            queue: TransmitQueue::new(TRANSMIT_BATCHES),
            buffers: RecvBuffers::default(),
            payload: vec![0x5a; shape.payload() * batch],
        })
    }

    async fn bursts(&mut self, shape: Shape, time: Duration, interrupt: &Interrupt) -> Result<Costs> {
        let mut bursts = Bursts::default();
        let start = Instant::now();
        let packets = shape.packets() as u64;
        let mut number = 0;
        while number < 2 * WARM_UP || start.elapsed() < time {
            interrupt.check()?;
            let mut times = Times::default();
            let burst = self.burst(shape, &mut times);
            tokio::time::timeout(PATIENCE, burst).await.context("a burst was lost on its way")??;
            let arrived = self.drain_sink()?;
            let expected = shape.packets() * shape.payload();
            ensure!(arrived == expected, "{arrived} of {expected} bytes of a burst arrived");
            if number >= WARM_UP {
                bursts.add(&times, packets);
            }
            number += 1;
        }
        let written = self.far.device.stats().snapshot();
        let packets_per_write = written.segments_written as f64 / written.packets_written as f64;
        bursts.costs(packets_per_write).context("too few bursts")
    }

    async fn burst(&mut self, shape: Shape, times: &mut Times) -> Result<()> {
        for _ in 0..shape.sends {
            self.source.send(&self.payload).context("cannot send into the TUN")?;
        }
        let mut remaining = shape.packets();
        while remaining > 0 {
            let bytes = poll_fn(|cx| {
                poll_timed(times, Stage::TunRead, || {
                    self.near.device.poll_recv_many(cx, &mut self.batches, READ_BYTES)
                })
            });
            ensure!(bytes.await? > 0, "the TUN is gone");
            while !self.batches.is_empty() {
                let sent = self.seal_and_send(times).await?;
                self.receive(sent, times).await?;
                remaining = remaining.checked_sub(sent).context("more packets than were sent")?;
            }
        }
        Ok(())
    }

    /// Seals until the queue is worth a send, as the event loop does, and sends. Returns the number of
    /// datagrams.
    async fn seal_and_send(&mut self, times: &mut Times) -> Result<usize> {
        let Self { near, batches, queue, now, .. } = self;
        times.time(Stage::Seal, || {
            while let Some(batch) = batches.front_mut() {
                while queue.len() < SEND_AT && queue.has_room_for_super_packet() {
                    let Some(mut packet) = batch.next_packet() else { break };
                    // The tunnel counts a drop, and the burst then misses bytes at the end.
                    let _ = near.tunnel.handle_tun_packet(&mut packet, *now, queue);
                }
                if !batch.is_done() {
                    return;
                }
                batches.pop_front();
            }
        });
        let mut datagrams = 0;
        while let Some(mut batch) = self.queue.pop() {
            datagrams += batch.unsent().segments();
            loop {
                let sent = poll_fn(|cx| {
                    poll_timed(times, Stage::Send, || self.near.udp.poll_send(cx, &batch.unsent()))
                });
                if batch.advance(sent.await?.bytes) {
                    break;
                }
            }
            self.queue.recycle(batch);
        }
        Ok(datagrams)
    }

    /// Receives `datagrams` datagrams, opens them and writes them, as the event loop does.
    async fn receive(&mut self, datagrams: usize, times: &mut Times) -> Result<()> {
        let mut remaining = datagrams;
        while remaining > 0 {
            let Self { far, buffers, .. } = self;
            poll_fn(|cx| poll_timed(times, Stage::Receive, || far.udp.poll_recv(cx, buffers))).await?;
            while !self.buffers.is_done() {
                poll_fn(|cx| self.far.device.poll_send_ready(cx)).await?;
                let opened = times.time(Stage::Open, || self.open())?;
                remaining = remaining.checked_sub(opened).context("more datagrams than were sent")?;
                times.time(Stage::TunWrite, || self.far.device.flush())?;
            }
        }
        Ok(())
    }

    /// Opens received datagrams while the slab has room. Returns the number of packets.
    fn open(&mut self) -> Result<usize> {
        let Self { far, buffers, now, .. } = self;
        let mut datagrams = 0;
        while far.device.plain_slab().room() >= MAX_PACKET {
            let Some(mut received) = buffers.next() else { break };
            let meta = received.meta;
            for datagram in received.whole().chunks_mut(meta.stride) {
                let (slab, control) = (far.device.plain_slab(), &mut far.control);
                match far.tunnel.handle_datagram(&meta, datagram, *now, slab, control) {
                    Ok(Inbound::Packet(packet)) => {
                        far.device.send(packet)?;
                        datagrams += 1;
                    }
                    Ok(Inbound::Consumed | Inbound::Elsewhere(_)) => {}
                    Err(reason) => bail!("a datagram was dropped: {reason:?}"),
                }
            }
        }
        Ok(datagrams)
    }

    /// Drains the receiving socket and returns the number of bytes.
    fn drain_sink(&mut self) -> Result<usize> {
        let mut buffer = [0; MAX_PACKET];
        let mut bytes = 0;
        loop {
            match self.sink.recv(&mut buffer) {
                Ok(len) => bytes += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(bytes),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Times a poll if it is ready; pending polls are waiting time.
fn poll_timed<T>(times: &mut Times, stage: Stage, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
    let before = *times;
    let result = times.time(stage, poll);
    if result.is_pending() {
        *times = before;
    }
    result
}
