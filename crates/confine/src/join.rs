//! Waits for threads that are told to end.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long threads may take to end. None of them has anything to do by then that takes longer, not even on a
/// busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Waits for a thread that was told to end, and returns its result. A thread that hangs delays its owner by
/// some seconds, is named in the log and left behind: `None`. The end of the process ends it.
pub fn join<T>(thread: JoinHandle<T>) -> Option<T> {
    join_all([thread]).next().flatten()
}

/// Waits for several threads, for all of them together as long as for one.
pub fn join_all<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> impl Iterator<Item = Option<T>> {
    join_within(PATIENCE, threads)
}

fn join_within<T>(
    patience: Duration,
    threads: impl IntoIterator<Item = JoinHandle<T>>,
) -> impl Iterator<Item = Option<T>> {
    let give_up = Instant::now() + patience;
    let results: Vec<_> = threads.into_iter().map(|thread| join_until(give_up, patience, thread)).collect();
    results.into_iter()
}

fn join_until<T>(give_up: Instant, patience: Duration, thread: JoinHandle<T>) -> Option<T> {
    let mut pause = FIRST_PAUSE;
    while !thread.is_finished() {
        if Instant::now() >= give_up {
            let name = thread.thread().name().unwrap_or("without a name");
            tracing::error!("thread {name} does not end within {patience:?}, and is left behind: it hangs");
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    // The guard of a thread that panics ends the process.
    thread.join().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_hangs_is_left_behind_and_the_others_give_their_results() {
        let (release, released) = mpsc::channel::<()>();
        let (ended, has_ended) = mpsc::channel();
        let hanging = thread::spawn(move || {
            let _ = released.recv();
            ended.send(()).unwrap();
            1
        });
        let ending = || thread::spawn(|| 2);
        let results = join_within(Duration::from_millis(20), [ending(), hanging, ending()]);
        let results: Vec<_> = results.collect();
        assert_eq!((results.len(), results[0], results[1]), (3, Some(2), None));
        // Left behind, and not ended.
        drop(release);
        has_ended.recv().unwrap();
        assert_eq!(join(ending()), Some(2));
    }
}
