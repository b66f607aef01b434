//! Writes a batch of inbound packets to its queue: the last step of an inbound packet. Before it: the packet
//! thread's flush. After it: the kernel's receive path, which runs inside the `writev`.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::mpsc as channel;
use weft_tunnel::{PlainSlab, ip};

use super::backoff::Backoff;
use super::coalesce::Coalescer;
use super::plain_batch::{PlainBatch, Staged};
use super::pulse::{Line, Order, Wait};
use super::queue::{Queue, Until, WriteError};
use super::vnet_hdr;
use crate::config::TunOffload;
use crate::stats::QueueStats;

/// The packets that the writers still join; shared by the queues of a device.
#[derive(Debug)]
pub(super) struct Coalescing {
    tcp: AtomicBool,
    udp: AtomicBool,
}

impl Coalescing {
    /// Joins packets into the super-packets that the device takes.
    pub(super) fn new(offload: TunOffload) -> Self {
        let TunOffload { tcp, udp } = offload;
        Self { tcp: AtomicBool::new(tcp), udp: AtomicBool::new(udp) }
    }

    pub(super) fn allowed(&self) -> TunOffload {
        TunOffload { tcp: self.tcp.load(Ordering::Relaxed), udp: self.udp.load(Ordering::Relaxed) }
    }

    /// Reports whether any packets are joined.
    pub(super) fn joins(&self) -> bool {
        self.allowed() != TunOffload::default()
    }

    fn allows(&self, protocol: u8) -> bool {
        let allowed = self.allowed();
        if protocol == ip::UDP { allowed.udp } else { allowed.tcp }
    }

    /// Stops joining packets of this protocol, and logs it the first time.
    fn refuse(&self, protocol: u8) {
        let (allowed, label) = if protocol == ip::UDP { (&self.udp, "UDP") } else { (&self.tcp, "TCP") };
        if allowed.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                "the kernel refuses {label} super-packets on this TUN: writing single packets from now on"
            );
        }
    }
}

/// Whether a batch was written completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Everything was written, or refused by the kernel and counted.
    All,
    /// The queue is full until its descriptor is writable; [`BatchWriter::resume`] continues where it
    /// stopped.
    Blocked,
    /// The queue is full and does not announce room; [`BatchWriter::resume`] continues after this time.
    Pause(Duration),
}

/// Writes one batch at a time, and remembers its position in the batch.
pub(super) struct BatchWriter {
    coalescer: Coalescer,
    coalescing: Arc<Coalescing>,
    stats: Arc<QueueStats>,
    /// Number of completed writes, as the coalescer planned them.
    position: usize,
    /// Number of packets of the write at `position` that were written one by one, because the kernel refuses
    /// them as a whole.
    singles: Option<usize>,
    packets_written: u64,
    backoff: Backoff,
}

impl BatchWriter {
    pub(super) fn new(coalescing: Arc<Coalescing>, stats: Arc<QueueStats>) -> Self {
        Self {
            coalescer: Coalescer::default(),
            coalescing,
            stats,
            position: 0,
            singles: None,
            packets_written: 0,
            backoff: Backoff::default(),
        }
    }

    /// Returns the number of packets that were written; a super-packet counts once.
    #[cfg_attr(windows, allow(dead_code, reason = "asked by a device without threads"))]
    pub(super) fn packets_written(&self) -> u64 {
        self.packets_written
    }

    /// Begins a batch. The previous batch must be completed.
    pub(super) fn start(&mut self, slab: &PlainSlab, packets: &[Staged]) {
        self.coalescer.plan(slab, packets, self.coalescing.allowed());
        self.position = 0;
        self.singles = None;
    }

    /// Writes until the batch is completed or the queue is full. A packet that the kernel refuses does not
    /// stop the rest.
    pub(super) fn resume<Q: Queue>(&mut self, queue: &Q, slab: &PlainSlab, packets: &[Staged]) -> Written {
        self.resume_with(slab, packets, |pieces| queue.write(pieces).map_err(Q::meaning_of))
    }

    fn resume_with(
        &mut self,
        slab: &PlainSlab,
        packets: &[Staged],
        mut write: impl FnMut(&[IoSlice<'_>]) -> Result<(), WriteError>,
    ) -> Written {
        let Self { coalescer, coalescing, stats, position, singles, packets_written, backoff } = self;
        let (mut written, mut segments, mut bytes, mut failures) = (0, 0, 0, 0);
        let mut pieces = Vec::new();
        let full = 'batch: loop {
            let Some(group) = coalescer.groups().get(*position) else { break None };
            let is_joined = group.segments > 1;
            if is_joined && singles.is_none() && !coalescing.allows(group.protocol()) {
                *singles = Some(0);
            }
            if let Some(done) = singles.filter(|_| is_joined) {
                for (number, member) in coalescer.members(*position).enumerate().skip(done) {
                    let packet = slab.get(packets[member].packet);
                    let single = [IoSlice::new(&vnet_hdr::NOTHING_TO_DO), IoSlice::new(packet)];
                    match write(&single) {
                        Ok(()) => {
                            written += 1;
                            segments += 1;
                            bytes += packet.len() as u64;
                        }
                        Err(error @ (WriteError::Full | WriteError::FullUnannounced)) => {
                            *singles = Some(number);
                            break 'batch Some(error);
                        }
                        Err(_) => failures += 1,
                    }
                }
            } else {
                pieces.clear();
                coalescer.gather(*position, slab, packets, &mut pieces);
                match write(&pieces) {
                    Ok(()) => {
                        written += 1;
                        segments += u64::from(group.segments);
                        bytes += u64::from(group.len);
                    }
                    Err(error @ (WriteError::Full | WriteError::FullUnannounced)) => break Some(error),
                    Err(WriteError::Invalid) if is_joined => {
                        coalescing.refuse(group.protocol());
                        continue;
                    }
                    Err(_) => failures += u64::from(group.segments),
                }
            }
            *position += 1;
            *singles = None;
        };
        *packets_written += written;
        let stats = &stats.inbound;
        stats.packets_written.add(written);
        stats.segments_written.add(segments);
        stats.bytes_written.add(bytes);
        stats.write_failures.add(failures);
        if written > 0 || full.is_none() {
            backoff.reset();
        }
        match full {
            None => Written::All,
            Some(WriteError::FullUnannounced) => Written::Pause(backoff.next_pause()),
            Some(_) => Written::Blocked,
        }
    }

    /// Drops the rest of the batch, and counts its packets as write failures.
    pub(super) fn abandon(&mut self) {
        let rest = self.coalescer.groups().get(self.position..).unwrap_or_default();
        let segments: u64 = rest.iter().map(|group| u64::from(group.segments)).sum();
        self.stats.inbound.write_failures.add(segments - self.singles.unwrap_or_default() as u64);
        self.position += rest.len();
        self.singles = None;
    }
}

/// The state of a writer thread.
pub(super) struct Writer<Q> {
    pub(super) number: u16,
    pub(super) queue: Arc<Q>,
    pub(super) line: Arc<Line>,
    pub(super) batches: mpsc::Receiver<Order>,
    pub(super) home: channel::UnboundedSender<PlainBatch>,
    /// Number of batches that the thread has completed.
    pub(super) completed: Arc<AtomicU64>,
    pub(super) writer: BatchWriter,
}

impl<Q: Queue> Writer<Q> {
    /// Writes every batch until the end. After a stop, writes only as long as the queue accepts packets.
    pub(super) fn run(mut self) {
        while let Ok(order) = self.batches.recv() {
            let batch = match order {
                Order::Write(batch) => batch,
                Order::Answer => {
                    self.line.answer_queued();
                    continue;
                }
                Order::End => return,
            };
            self.line.answer();
            let packets = &batch.staged[usize::from(self.number)];
            self.writer.start(&batch.slab, packets);
            loop {
                let wait = match self.writer.resume(&*self.queue, &batch.slab, packets) {
                    Written::All => break,
                    Written::Blocked => self.line.wait(&*self.queue, Until::Writable),
                    Written::Pause(pause) => self.line.pause(pause),
                };
                if wait != Wait::Ready {
                    self.writer.abandon();
                    break;
                }
            }
            self.completed.fetch_add(1, Ordering::Release);
            if let Some(batch) = Arc::into_inner(batch) {
                // Sending fails only if the device was dropped.
                let _ = self.home.send(batch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_sched::flow::FlowHasher;

    use super::*;

    /// The byte of a packet with its number.
    const NUMBER: usize = 45;

    /// Three packets of one flow, which are joined.
    fn batch(protocol: u8) -> (PlainSlab, Vec<Staged>) {
        let hasher = FlowHasher::random();
        let mut slab = PlainSlab::new(1000);
        let packets = (0..3_u8).map(|number| {
            let mut packet = [0; 50];
            packet[..12].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet[NUMBER] = 10 * number;
            let checksum = match protocol {
                ip::UDP => {
                    packet[25] = 30;
                    26..28
                }
                _ => {
                    packet[27] = 10 * number;
                    packet[32..34].copy_from_slice(&[0x50, 0x10]);
                    36..38
                }
            };
            ip::write_ipv4_checksum(&mut packet, 20);
            let sum = ip::pseudo_header_sum(&packet[12..20], protocol, 30);
            let sum = !ip::fold(ip::checksum_add(sum, &packet[20..]));
            packet[checksum].copy_from_slice(&sum.to_be_bytes());
            Staged { packet: slab.push(&packet).unwrap(), flow: hasher.hash(&packet) }
        });
        let packets = packets.collect();
        (slab, packets)
    }

    fn writer() -> BatchWriter {
        let coalescing = Coalescing::new(TunOffload { tcp: true, udp: true });
        BatchWriter::new(Arc::new(coalescing), Arc::default())
    }

    /// Returns the number of the first packet of a write, and whether packets are joined in it.
    fn seen(pieces: &[IoSlice<'_>]) -> (u8, bool) {
        let headers = pieces[0].len() - vnet_hdr::VNET_HDR;
        (pieces[1][NUMBER - headers], pieces[0][1] != 0)
    }

    #[test]
    fn a_refused_super_packet_goes_out_in_single_packets_and_none_of_its_protocol_is_joined_again() {
        let allowed_then = [
            (ip::TCP, TunOffload { tcp: false, udp: true }),
            (ip::UDP, TunOffload { tcp: true, udp: false }),
        ];
        for (protocol, allowed_then) in allowed_then {
            let (slab, packets) = batch(protocol);
            let mut writer = writer();
            let mut log = Vec::new();
            for _ in 0..2 {
                writer.start(&slab, &packets);
                let written = writer.resume_with(&slab, &packets, |pieces| {
                    log.push(seen(pieces));
                    if seen(pieces).1 { Err(WriteError::Invalid) } else { Ok(()) }
                });
                assert_eq!(written, Written::All);
            }
            let singles = [(0, false), (10, false), (20, false)];
            assert_eq!(log, [&[(0, true)], &singles[..], &singles[..]].concat());
            let stats = writer.stats.snapshot();
            assert_eq!((stats.packets_written, stats.segments_written, stats.write_failures), (6, 6, 0));
            assert_eq!(writer.coalescing.allowed(), allowed_then);
        }
    }

    #[test]
    fn single_packets_of_a_refused_super_packet_go_on_where_the_queue_blocked() {
        let (slab, packets) = batch(ip::TCP);
        let mut writer = writer();
        writer.start(&slab, &packets);
        let mut log = Vec::new();
        let mut turn = 0;
        let mut resume = |writer: &mut BatchWriter| {
            writer.resume_with(&slab, &packets, |pieces| {
                turn += 1;
                match turn {
                    1 => return Err(WriteError::Invalid),
                    3 | 5 => return Err(WriteError::Full),
                    _ => log.push(seen(pieces)),
                }
                Ok(())
            })
        };
        assert_eq!(resume(&mut writer), Written::Blocked);
        assert_eq!(resume(&mut writer), Written::Blocked);
        assert_eq!(resume(&mut writer), Written::All);
        assert_eq!(log, [(0, false), (10, false), (20, false)]);
    }

    #[test]
    fn a_packet_that_is_refused_does_not_drop_the_rest() {
        let (slab, mut packets) = batch(ip::TCP);
        packets.swap(0, 2);
        let mut writer = writer();
        writer.start(&slab, &packets);
        let mut first = true;
        let written = writer.resume_with(&slab, &packets, |_| {
            if std::mem::take(&mut first) { Err(WriteError::Refused) } else { Ok(()) }
        });
        assert_eq!(written, Written::All);
        let stats = writer.stats.snapshot();
        assert_eq!((stats.write_failures, stats.segments_written), (1, 2));
    }

    #[test]
    fn what_is_given_up_is_counted_once() {
        let (slab, packets) = batch(ip::TCP);
        let mut writer = writer();
        writer.start(&slab, &packets);
        let mut results = [Err(WriteError::Invalid), Ok(()), Err(WriteError::Full)].into_iter();
        writer.resume_with(&slab, &packets, |_| results.next().unwrap());
        writer.abandon();
        let stats = writer.stats.snapshot();
        assert_eq!((stats.write_failures, stats.segments_written), (2, 1));
    }
}
