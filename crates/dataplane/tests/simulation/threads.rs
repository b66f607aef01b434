//! The packet threads of a daemon. One may take a turn in the middle of the turn of another, as with a second
//! processor.

use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use weft_dataplane::DataplaneError;

use crate::network::Network;

/// How often a call of the kernel takes as long as a turn of another packet thread, in percent.
const INTERLEAVED_PERCENT: u64 = 5;

/// What wakes the world.
pub(crate) type WorldWaker = Arc<Mutex<Option<Waker>>>;

type Running = Pin<Box<dyn Future<Output = Result<(), DataplaneError>>>>;

/// Whether an event loop is to be polled.
struct Flag {
    is_set: AtomicBool,
    world: WorldWaker,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Relaxed);
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*world {
            waker.wake_by_ref();
        }
    }
}

struct PacketThread {
    /// `None` in a turn, and when it has ended.
    event_loop: Option<Running>,
    flag: Arc<Flag>,
    has_ended: bool,
    /// It has no processor until then.
    waits_until: Duration,
}

/// The packet threads of a daemon.
#[derive(Default)]
pub(crate) struct Threads(RefCell<Vec<PacketThread>>);

impl Threads {
    pub(crate) fn start(
        &self,
        event_loop: impl Future<Output = Result<(), DataplaneError>> + 'static,
        world: WorldWaker,
    ) {
        self.0.borrow_mut().push(PacketThread {
            event_loop: Some(Box::pin(event_loop)),
            flag: Arc::new(Flag { is_set: AtomicBool::new(true), world }),
            has_ended: false,
            waits_until: Duration::ZERO,
        });
    }

    /// Returns the packet threads that are to take a turn and are in none, and since when.
    pub(crate) fn awake(&self) -> Vec<(usize, Duration)> {
        let threads = self.0.borrow();
        let awake = threads.iter().enumerate().filter(|(_, thread)| thread.flag.is_set.load(Relaxed));
        let awake = awake.filter(|(_, thread)| thread.event_loop.is_some() || thread.has_ended);
        awake.map(|(number, thread)| (number, thread.waits_until)).collect()
    }

    /// Takes the processor from a packet thread, if there are several.
    pub(crate) fn wait_until(&self, number: usize, until: Duration) {
        let mut threads = self.0.borrow_mut();
        if threads.len() > 1 {
            threads[number].waits_until = until;
        }
    }

    pub(crate) fn have_ended(&self) -> bool {
        self.0.borrow().iter().all(|thread| thread.has_ended)
    }

    /// Runs a turn of a packet thread.
    pub(crate) fn turn(&self, number: usize) {
        let (event_loop, flag) = {
            let thread = &mut self.0.borrow_mut()[number];
            thread.flag.is_set.store(false, Relaxed);
            (thread.event_loop.take(), Arc::clone(&thread.flag))
        };
        let Some(mut event_loop) = event_loop else { return };
        let polled = event_loop.as_mut().poll(&mut Context::from_waker(&Waker::from(flag)));
        let thread = &mut self.0.borrow_mut()[number];
        match polled {
            Poll::Pending => thread.event_loop = Some(event_loop),
            Poll::Ready(Ok(())) => thread.has_ended = true,
            Poll::Ready(Err(error)) => panic!("an event loop ended: {error}"),
        }
    }
}

/// Lets another packet thread of a node take a turn now and then, in the middle of a turn of one.
pub(crate) fn interleave(threads: &Weak<Threads>, network: &RefCell<Network>, node: usize) {
    let Some(threads) = threads.upgrade().filter(|threads| threads.0.borrow().len() > 1) else { return };
    let (outer, other) = {
        let mut network = network.borrow_mut();
        if !network.chance.happens(INTERLEAVED_PERCENT) {
            return;
        }
        let now = network.now;
        let awake: Vec<_> = threads.awake().into_iter().filter(|(_, since)| *since <= now).collect();
        if awake.is_empty() {
            return;
        }
        let (other, _) = *network.chance.one_of(&awake);
        (mem::take(&mut network.kernels[node].books.turn), other)
    };
    threads.turn(other);
    mem::replace(&mut network.borrow_mut().kernels[node].books.turn, outer).check();
}
