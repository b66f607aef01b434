//! A device with one queue that the runtime reads and writes itself: no thread, no hand-over. It stands where
//! `threads.rs` stands, and drains and writes with the same code.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc as channel;
use weft_tunnel::{PlainSlab, Plaintext};

use super::queue::Queue;
use super::reader::{self, Drained};
use super::writer::{BatchWriter, Coalescing, PlainBatch, Written};
use crate::batch::{Slab, TunBatch};
use crate::stats::QueueStats;

/// Slabs of the device: the packet thread reads ahead about a megabyte.
const SLABS: usize = 6;

/// The registration with the runtime that polls the device, made at the first poll.
struct Readiness {
    queue: Arc<AsyncFd<Arc<Queue>>>,
    /// Ends when the device is deleted: tokio does not call that readable.
    gone: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Readiness {
    fn register(queue: &Arc<Queue>) -> io::Result<Self> {
        // SAFETY: an `Arc<Queue>` gives the same descriptor each time, and keeps it open as long as it lives.
        let queue = Arc::new(unsafe { AsyncFd::register(Arc::clone(queue)) }.map_err(io::Error::from)?);
        let watched = Arc::clone(&queue);
        let gone = Box::pin(async move { drop(watched.ready(Interest::ERROR).await) });
        Ok(Self { queue, gone })
    }
}

/// One queue and its slabs.
pub(super) struct Inline {
    queue: Arc<Queue>,
    readiness: Option<Readiness>,
    is_gone: bool,
    home: channel::UnboundedSender<Slab>,
    free: channel::UnboundedReceiver<Slab>,
    batch: PlainBatch,
    /// Whether `batch` is being written, and must not be touched.
    is_writing: bool,
    no_slab: PlainSlab,
    writer: BatchWriter,
    stats: Arc<QueueStats>,
}

impl Inline {
    pub(super) fn new(queue: Queue, coalescing: &Arc<Coalescing>, stats: &Arc<QueueStats>) -> Self {
        let (home, free) = channel::unbounded_channel();
        for _ in 0..SLABS {
            // The receiver is right here.
            let _ = home.send(Slab::new(reader::SLAB_BYTES));
        }
        Self {
            queue: Arc::new(queue),
            readiness: None,
            is_gone: false,
            home,
            free,
            batch: PlainBatch::new(1),
            is_writing: false,
            no_slab: PlainSlab::new(0),
            writer: BatchWriter::new(Arc::clone(coalescing), Arc::clone(stats)),
            stats: Arc::clone(stats),
        }
    }

    pub(super) fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let readiness = match &mut self.readiness {
            Some(readiness) => readiness,
            none => none.insert(Readiness::register(&self.queue)?),
        };
        let mut taken = 0;
        while taken < max_bytes && !self.is_gone {
            let Poll::Ready(guard) = readiness.queue.poll_read_ready(cx) else { break };
            let mut guard = guard?;
            // The sender is kept here: the channel never closes.
            let Poll::Ready(Some(mut slab)) = self.free.poll_recv(cx) else { break };
            let drained = reader::drain(&self.queue, &mut slab, &self.stats);
            match drained {
                Drained::Full => {}
                Drained::Empty => guard.clear_ready(),
                Drained::Gone => self.is_gone = true,
            }
            taken += slab.bytes();
            // An empty batch goes straight home.
            let batch = TunBatch::new(slab, 0, self.home.clone());
            if batch.packets() > 0 {
                out.push_back(batch);
            }
        }
        if taken > 0 || self.is_gone {
            return Poll::Ready(Ok(taken));
        }
        ready!(readiness.gone.as_mut().poll(cx));
        self.is_gone = true;
        Poll::Ready(Ok(0))
    }

    pub(super) fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_writing {
            return Poll::Ready(Ok(()));
        }
        let readiness = match &mut self.readiness {
            Some(readiness) => readiness,
            none => none.insert(Readiness::register(&self.queue)?),
        };
        loop {
            let mut guard = ready!(readiness.queue.poll_write_ready(cx))?;
            match self.writer.resume(&self.queue, &self.batch.slab, &self.batch.staged[0]) {
                Written::Blocked => guard.clear_ready(),
                Written::All => break,
            }
        }
        self.is_writing = false;
        self.batch.clear();
        Poll::Ready(Ok(()))
    }

    pub(super) fn plain_slab(&mut self) -> &mut PlainSlab {
        if self.is_writing { &mut self.no_slab } else { &mut self.batch.slab }
    }

    pub(super) fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        if self.is_writing {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.batch.staged[0].push(packet);
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.is_writing {
            return Ok(());
        }
        let Self { writer, batch, queue, .. } = self;
        writer.start(&batch.slab, &batch.staged[0]);
        match writer.resume(queue, &batch.slab, &batch.staged[0]) {
            Written::Blocked => self.is_writing = true,
            Written::All => batch.clear(),
        }
        Ok(())
    }
}
