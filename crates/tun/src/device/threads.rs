//! A device with a reader and a writer thread for each queue, from the side of the packet thread: the
//! receiving end of the channel of batches, which all readers share, and the sending ends of the writers'
//! channels.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc as channel;
use weft_confine::{EndProcessOnPanic, Role};
use weft_sched::flow::FlowHasher;
use weft_tunnel::{PlainSlab, Plaintext};

use super::descriptor;
use super::plain_batch::{self, PlainBatch};
use super::pulse::{Bell, Channel, Line, Order, Pulse, WatchedThread};
use super::queue::Queue;
use super::reader::{self, Progress, Reader};
use super::writer::{BatchWriter, Coalescing, Writer};
use crate::batch::{Slab, TunBatch};
use crate::flows::{Flows, Pipelines};
use crate::stats::{QueueStats, TunStats};

/// Starts a thread. A panic of the thread ends the process.
fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(move || {
        let _guard = EndProcessOnPanic;
        weft_confine::thread(Role::Tun);
        body();
    })
}

/// The two threads of a queue, from the side of the packet thread.
#[derive(Debug)]
struct Pipeline<Q> {
    queue: Arc<Q>,
    progress: Arc<Progress>,
    batches: mpsc::Sender<Order>,
    /// Number of batches handed to the writer.
    sent: u64,
    /// Number of these batches that the writer has completed.
    completed: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Pipes<Q> {
    name: String,
    each: Vec<Pipeline<Q>>,
}

impl<Q: Queue> Pipelines for Pipes<Q> {
    fn is_drained(&self, queue: u16, taken: u64) -> bool {
        let pipeline = &self.each[usize::from(queue)];
        // The order matters. A packet that left the queue before the first check was read by its reader,
        // which is not idle from then on until it has put the packet into the channel and counted it.
        !descriptor::is_readable(&*pipeline.queue)
            && pipeline.progress.idle.load(Ordering::SeqCst)
            && pipeline.progress.batches.load(Ordering::SeqCst) == taken
    }

    fn packets_until_now(&self, queue: u16) -> u64 {
        // Packets handed over, packets that may be in the reader's slab, and packets that the kernel's ring
        // may hold.
        let pipeline = &self.each[usize::from(queue)];
        let handed_over = pipeline.progress.packets.load(Ordering::SeqCst);
        handed_over + reader::MAX_PACKETS + pipeline.queue.ring_packets(&self.name)
    }

    fn completed(&self, writer: u16) -> u64 {
        self.each[usize::from(writer)].completed.load(Ordering::Acquire)
    }
}

/// The threads of a device and the channels to them.
pub(super) struct Threads<Q> {
    lines: Vec<WatchedThread>,
    bell: Arc<Bell>,
    handles: Vec<JoinHandle<()>>,
    pipes: Pipes<Q>,
    batches: channel::Receiver<TunBatch>,
    home: channel::UnboundedReceiver<PlainBatch>,
    current: Option<PlainBatch>,
    /// An empty slab for the time when there is no current batch.
    no_slab: PlainSlab,
    hasher: FlowHasher,
    flows: Option<Flows>,
}

impl<Q: Queue> Threads<Q> {
    pub(super) fn start(
        name: &str,
        queues: Vec<Q>,
        hasher: FlowHasher,
        coalescing: &Arc<Coalescing>,
        stats: &TunStats,
    ) -> io::Result<Self> {
        let count = queues.len();
        let (batch_sender, batches) = channel::channel(count * reader::SLABS);
        let (home_sender, home) = channel::unbounded_channel();
        for _ in 0..plain_batch::SLABS {
            // The receiver exists, so sending cannot fail.
            let _ = home_sender.send(PlainBatch::new(count, hasher, coalescing.joins()));
        }
        let mut threads = Self {
            lines: Vec::with_capacity(2 * count),
            bell: Arc::default(),
            handles: Vec::with_capacity(2 * count),
            pipes: Pipes { name: name.to_owned(), each: Vec::with_capacity(count) },
            batches,
            home,
            current: None,
            no_slab: PlainSlab::new(0),
            hasher,
            flows: Flows::across(count, 0..count as u16),
        };
        // If a thread cannot be started, `threads` is dropped, which stops those that were started.
        for (number, (queue, stats)) in (0..).zip(queues.into_iter().zip(stats.each())) {
            threads.start_pipeline(number, queue, &batch_sender, &home_sender, coalescing, stats)?;
        }
        Ok(threads)
    }

    fn start_pipeline(
        &mut self,
        number: u16,
        queue: Q,
        batches: &channel::Sender<TunBatch>,
        home: &channel::UnboundedSender<PlainBatch>,
        coalescing: &Arc<Coalescing>,
        stats: &Arc<QueueStats>,
    ) -> io::Result<()> {
        let queue = Arc::new(queue);
        let (free_sender, free) = mpsc::channel();
        for _ in 0..reader::SLABS {
            let _ = free_sender.send(Slab::new(reader::SLAB_BYTES, self.hasher));
        }
        let (plain_sender, plain_batches) = mpsc::channel();
        let line = |letter| Line::new(format!("weft-tun-{letter}{number}"), &self.bell).map(Arc::new);
        let (reader_line, writer_line) = (line('r')?, line('w')?);
        let pipeline = Pipeline {
            queue: Arc::clone(&queue),
            progress: Arc::default(),
            batches: plain_sender.clone(),
            sent: 0,
            completed: Arc::default(),
        };
        let reader = Reader {
            number,
            queue: Arc::clone(&queue),
            line: Arc::clone(&reader_line),
            free,
            home: free_sender.clone(),
            batches: batches.clone(),
            progress: Arc::clone(&pipeline.progress),
            stats: Arc::clone(stats),
        };
        let writer = Writer {
            number,
            queue,
            line: Arc::clone(&writer_line),
            batches: plain_batches,
            home: home.clone(),
            completed: Arc::clone(&pipeline.completed),
            writer: BatchWriter::new(Arc::clone(coalescing), Arc::clone(stats)),
        };
        self.pipes.each.push(pipeline);
        self.handles.push(spawn(reader_line.name().to_owned(), move || reader.run())?);
        self.lines.push(WatchedThread { line: reader_line, channel: Channel::Reader(free_sender) });
        self.handles.push(spawn(writer_line.name().to_owned(), move || writer.run())?);
        self.lines.push(WatchedThread { line: writer_line, channel: Channel::Writer(plain_sender) });
        Ok(())
    }

    pub(super) fn pulse(&self) -> Pulse {
        Pulse::new(&self.lines, &self.bell)
    }

    pub(super) fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let Self { pipes, batches, flows, .. } = self;
        let mut taken = flows.as_mut().map_or(0, |flows| flows.release(pipes, out));
        let mut closed = false;
        while taken < max_bytes {
            let batch = match batches.poll_recv(cx) {
                Poll::Ready(Some(batch)) => batch,
                Poll::Ready(None) => {
                    closed = true;
                    break;
                }
                Poll::Pending => break,
            };
            match flows {
                Some(flows) => taken += flows.offer(batch, pipes, out),
                None => {
                    taken += batch.bytes();
                    out.push_back(batch);
                }
            }
        }
        if let Some(flows) = flows
            && taken == 0
            && flows.holds_any()
        {
            if closed {
                taken = flows.release_all(out);
            } else {
                // The other queue may become idle without another batch, so the task polls again at once. The
                // reader needs no longer than a few reads.
                cx.waker().wake_by_ref();
            }
        }
        if taken > 0 || closed { Poll::Ready(Ok(taken)) } else { Poll::Pending }
    }

    pub(super) fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.current.is_none() {
            let Some(mut batch) = ready!(self.home.poll_recv(cx)) else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            batch.clear();
            self.current = Some(batch);
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn plain_slab(&mut self) -> &mut PlainSlab {
        self.current.as_mut().map_or(&mut self.no_slab, |batch| &mut batch.slab)
    }

    pub(super) fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        let Self { pipes, flows, current, .. } = self;
        let batch = current.as_mut().ok_or(io::ErrorKind::WouldBlock)?;
        batch.stage(packet, |flow| match flows {
            Some(flows) => {
                let next = |writer: u16| pipes.each[usize::from(writer)].sent + 1;
                flows.stage(flow, next, |writer| pipes.completed(writer))
            }
            None => 0,
        });
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(batch) = self.current.take() else { return Ok(()) };
        if let Some(flows) = &mut self.flows {
            flows.tick();
        }
        let batch = Arc::new(batch);
        for (pipeline, staged) in self.pipes.each.iter_mut().zip(&batch.staged) {
            if !staged.is_empty() {
                pipeline.sent += 1;
                pipeline
                    .batches
                    .send(Order::Write(Arc::clone(&batch)))
                    .map_err(|_| io::ErrorKind::BrokenPipe)?;
            }
        }
        // Nothing was staged, or the writers have completed the batch already.
        if let Some(mut batch) = Arc::into_inner(batch) {
            batch.clear();
            self.current = Some(batch);
        }
        Ok(())
    }
}

impl<Q> Drop for Threads<Q> {
    fn drop(&mut self) {
        for thread in self.lines.drain(..) {
            thread.line.stop();
            // The thread may wait for its channel, which a `Pulse` keeps open.
            match thread.channel {
                Channel::Reader(slabs) => drop(slabs.send(Slab::message())),
                Channel::Writer(orders) => drop(orders.send(Order::End)),
            }
        }
        weft_confine::join_all(self.handles.drain(..)).for_each(drop);
    }
}
