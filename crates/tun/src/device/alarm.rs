//! Wakes the packet thread after a pause that is shorter than the millisecond of the runtime's timer: between
//! two attempts to write to a full queue that does not announce room. The thread starts when it is needed for
//! the first time, which is never where every queue announces room.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weft_confine::EndProcessOnPanic;

/// What the thread is to do.
#[derive(Debug, Default)]
struct Task {
    wake: Option<(Instant, Waker)>,
    is_ended: bool,
}

/// A pause of a device without threads.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// The end of the present pause.
    until: Option<Instant>,
    /// Whom the thread wakes at the end of it.
    awaited_by: Option<Waker>,
    thread: Option<(Arc<Mutex<Task>>, JoinHandle<()>)>,
}

impl Alarm {
    /// Begins a pause, which [`Self::poll`] awaits.
    pub(super) fn set(&mut self, pause: Duration) {
        self.until = Some(Instant::now() + pause);
        self.awaited_by = None;
    }

    /// Polls until the pause is over. Without a pause it is ready, at no cost.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(until) = self.until else { return Poll::Ready(Ok(())) };
        if Instant::now() >= until {
            self.until = None;
            return Poll::Ready(Ok(()));
        }
        if self.awaited_by.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let (task, thread) = match &self.thread {
            Some(running) => running,
            None => match start() {
                Ok(started) => self.thread.insert(started),
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        let waker = self.awaited_by.insert(cx.waker().clone());
        task.lock().unwrap_or_else(PoisonError::into_inner).wake = Some((until, waker.clone()));
        thread.thread().unpark();
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some((task, thread)) = self.thread.take() {
            task.lock().unwrap_or_else(PoisonError::into_inner).is_ended = true;
            thread.thread().unpark();
            weft_confine::join(thread);
        }
    }
}

fn start() -> io::Result<(Arc<Mutex<Task>>, JoinHandle<()>)> {
    let task = Arc::<Mutex<Task>>::default();
    let shared = Arc::clone(&task);
    let thread = thread::Builder::new().name("weft-tun-alarm".to_owned()).spawn(move || {
        let _guard = EndProcessOnPanic;
        run(&shared);
    })?;
    Ok((task, thread))
}

fn run(task: &Mutex<Task>) {
    loop {
        let mut guard = task.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_ended {
            return;
        }
        let remaining = guard.wake.as_ref().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        match remaining {
            Some(Duration::ZERO) => {
                let due = guard.wake.take();
                drop(guard);
                due.into_iter().for_each(|(_, waker)| waker.wake());
            }
            Some(remaining) => {
                drop(guard);
                thread::park_timeout(remaining);
            }
            None => {
                drop(guard);
                thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_task_is_woken_after_its_pause() {
        let mut alarm = Alarm::default();
        poll_fn(|cx| alarm.poll(cx)).await.unwrap();
        assert!(alarm.thread.is_none(), "without a pause there is no thread");
        for pause in [1, 100, 2000] {
            let pause = Duration::from_micros(pause);
            let start = Instant::now();
            alarm.set(pause);
            poll_fn(|cx| alarm.poll(cx)).await.unwrap();
            assert!(start.elapsed() >= pause);
        }
    }

    #[test]
    fn a_pause_without_a_waiter_keeps_no_thread() {
        let mut alarm = Alarm::default();
        alarm.set(Duration::from_secs(3600));
        assert!(alarm.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(alarm);
    }
}
