//! Writes a batch of inbound packets to its queue: the last step of an inbound packet. Before it the packet
//! thread's flush, after it the kernel's receive path, which runs inside the `writev`.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use nix::errno::Errno;
use nix::poll::PollFlags;
use tokio::sync::mpsc as channel;
use weft_tunnel::{MAX_PACKET, PlainSlab, Plaintext, ip};

use super::coalesce::Coalescer;
use super::queue;
use super::threads::{Stop, Wait};
use super::vnet_hdr;
use crate::config::TunOffload;
use crate::stats::TunStats;

/// Bytes of a slab: what four full GRO buffers decrypt to, the usual content of one `recvmmsg`.
pub(super) const SLAB_BYTES: usize = 4 * MAX_PACKET;
/// Slabs of a device: one being filled, one being written, and one more for each to be uneven.
pub(super) const SLABS: usize = 4;

/// A slab and which of its packets go to which queue. Shared by the writers that have something in it.
#[derive(Debug)]
pub(super) struct PlainBatch {
    pub(super) slab: PlainSlab,
    /// One list a queue, in the order of staging.
    pub(super) staged: Box<[Vec<Plaintext>]>,
}

impl PlainBatch {
    pub(super) fn new(queues: usize) -> Self {
        Self { slab: PlainSlab::new(SLAB_BYTES), staged: vec![Vec::new(); queues].into() }
    }

    pub(super) fn clear(&mut self) {
        self.slab.clear();
        self.staged.iter_mut().for_each(Vec::clear);
    }
}

/// Which super-packets the device still takes; shared by its queues.
#[derive(Debug)]
pub(super) struct Coalescing {
    tcp: AtomicBool,
    udp: AtomicBool,
}

impl Coalescing {
    pub(super) fn new(offload: TunOffload) -> Self {
        Self { tcp: AtomicBool::new(offload.tcp), udp: AtomicBool::new(offload.udp) }
    }

    pub(super) fn allowed(&self) -> TunOffload {
        TunOffload { tcp: self.tcp.load(Ordering::Relaxed), udp: self.udp.load(Ordering::Relaxed) }
    }

    fn allows(&self, protocol: u8) -> bool {
        let allowed = self.allowed();
        if protocol == ip::UDP { allowed.udp } else { allowed.tcp }
    }

    /// Stops joining packets of this protocol, and says so the first time.
    fn refuse(&self, protocol: u8) {
        let (allowed, label) = if protocol == ip::UDP { (&self.udp, "UDP") } else { (&self.tcp, "TCP") };
        if allowed.swap(false, Ordering::Relaxed) {
            tracing::warn!("the kernel refuses {label} super-packets on this TUN: writing single packets from now on");
        }
    }
}

/// Whether a batch was written to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Everything was written, or refused by the kernel and counted.
    All,
    /// The queue takes nothing now; [`BatchWriter::resume`] goes on where it was.
    Blocked,
}

/// Writes one batch at a time, and remembers how far it came.
pub(super) struct BatchWriter {
    coalescer: Coalescer,
    coalescing: Arc<Coalescing>,
    stats: Arc<TunStats>,
    /// Writes that are through, as the coalescer planned them.
    position: usize,
    /// Packets of the write at `position` that were written one by one, because it was refused as a whole.
    singles: Option<usize>,
}

impl BatchWriter {
    pub(super) fn new(coalescing: Arc<Coalescing>, stats: Arc<TunStats>) -> Self {
        Self { coalescer: Coalescer::new(), coalescing, stats, position: 0, singles: None }
    }

    /// Begins a batch. The one before must be through.
    pub(super) fn start(&mut self, slab: &PlainSlab, packets: &[Plaintext]) {
        self.coalescer.plan(slab, packets, self.coalescing.allowed());
        self.position = 0;
        self.singles = None;
    }

    /// Writes until the batch is through or the queue takes no more. One packet that the kernel refuses does not
    /// stop the rest.
    pub(super) fn resume(&mut self, queue: &OwnedFd, slab: &PlainSlab, packets: &[Plaintext]) -> Written {
        let Self { coalescer, coalescing, stats, position, singles } = self;
        let (mut written, mut segments, mut bytes, mut failures) = (0, 0, 0, 0);
        let mut pieces = Vec::new();
        let outcome = 'batch: loop {
            let Some(group) = coalescer.groups().get(*position) else { break Written::All };
            let is_joined = group.segments > 1;
            if is_joined && singles.is_none() && !coalescing.allows(group.protocol()) {
                *singles = Some(0);
            }
            if let Some(done) = singles.filter(|_| is_joined) {
                for (number, member) in coalescer.members(*position).enumerate().skip(done) {
                    let packet = slab.get(packets[member]);
                    let single = [IoSlice::new(&vnet_hdr::NOTHING_TO_DO), IoSlice::new(packet)];
                    match queue::write(queue.as_fd(), &single) {
                        Ok(()) => {
                            written += 1;
                            segments += 1;
                            bytes += packet.len() as u64;
                        }
                        Err(Errno::EAGAIN) => {
                            *singles = Some(number);
                            break 'batch Written::Blocked;
                        }
                        Err(_) => failures += 1,
                    }
                }
            } else {
                pieces.clear();
                coalescer.gather(*position, slab, packets, &mut pieces);
                match queue::write(queue.as_fd(), &pieces) {
                    Ok(()) => {
                        written += 1;
                        segments += u64::from(group.segments);
                        bytes += u64::from(group.len);
                    }
                    Err(Errno::EAGAIN) => break Written::Blocked,
                    Err(Errno::EINVAL) if is_joined => {
                        coalescing.refuse(group.protocol());
                        continue;
                    }
                    Err(_) => failures += u64::from(group.segments),
                }
            }
            *position += 1;
            *singles = None;
        };
        stats.packets_written.add(written);
        stats.segments_written.add(segments);
        stats.bytes_written.add(bytes);
        stats.write_failures.add(failures);
        outcome
    }

    /// Gives up the rest of the batch, and counts it.
    pub(super) fn abandon(&mut self) {
        let rest = self.coalescer.groups().get(self.position..).unwrap_or_default();
        let segments: u64 = rest.iter().map(|group| u64::from(group.segments)).sum();
        self.stats.write_failures.add(segments - self.singles.unwrap_or_default() as u64);
        self.position += rest.len();
        self.singles = None;
    }
}

/// What a writer thread owns.
pub(super) struct Writer {
    pub(super) number: u16,
    pub(super) queue: Arc<OwnedFd>,
    pub(super) stop: Arc<Stop>,
    pub(super) batches: mpsc::Receiver<Arc<PlainBatch>>,
    pub(super) home: channel::UnboundedSender<PlainBatch>,
    /// Batches that the thread is through with.
    pub(super) completed: Arc<AtomicU64>,
    pub(super) writer: BatchWriter,
}

impl Writer {
    /// Writes every batch until the channel closes; after a stop, as long as the queue takes them.
    pub(super) fn run(mut self) {
        while let Ok(batch) = self.batches.recv() {
            let packets = &batch.staged[usize::from(self.number)];
            self.writer.start(&batch.slab, packets);
            while self.writer.resume(&self.queue, &batch.slab, packets) == Written::Blocked {
                if self.stop.wait(&self.queue, PollFlags::POLLOUT) != Wait::Ready {
                    self.writer.abandon();
                    break;
                }
            }
            self.completed.fetch_add(1, Ordering::Release);
            if let Some(batch) = Arc::into_inner(batch) {
                // Nobody waits for it any more if this fails.
                let _ = self.home.send(batch);
            }
        }
    }
}
