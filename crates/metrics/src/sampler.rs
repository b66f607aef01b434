//! Snapshots that concurrent requests share.
//!
//! However many clients there are, at most one snapshot is in progress, and later requests reuse a snapshot
//! for 250 ms. So the packet thread takes at most a few per second.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use weft_report::control_socket::ManageError;
use weft_report::{PeerReport, StatusReport, add_recent, diagnose};

/// Maximum age of a snapshot that is reused.
const FRESH: Duration = Duration::from_millis(250);
/// Minimum interval over which rates and growing drops are reported.
const WINDOW: Duration = Duration::from_millis(900);
/// Time limit for a snapshot. A turn of the event loop takes less than a millisecond, and a snapshot of many
/// peers takes several turns.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes a full report of the interface. It may block.
pub type TakeReport = dyn Fn() -> Result<StatusReport, ManageError> + Send + Sync;

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSample {
    /// The event loop hangs, or the machine is badly overloaded.
    #[error("the event loop did not take a turn within {} s", PATIENCE.as_secs())]
    Stuck,
    /// The interface's error.
    #[error(transparent)]
    Refused(#[from] ManageError),
}

/// The interface at one moment, and the texts made from it so far.
#[derive(Debug)]
pub(super) struct Sample {
    /// With recent changes and findings.
    pub(super) report: Arc<StatusReport>,
    /// The report without peers.
    pub(super) head: StatusReport,
    taken: Instant,
    texts: [OnceLock<Bytes>; 4],
}

impl Sample {
    fn new(mut report: StatusReport, taken: Instant) -> Self {
        let peers = std::mem::take(&mut report.peers);
        let head = report.clone();
        report.peers = peers;
        Self { report: Arc::new(report), head, taken, texts: Default::default() }
    }

    /// Returns the text number `which`, which is made once for all requests.
    pub(super) fn text(&self, which: usize, make: impl FnOnce(Arc<StatusReport>) -> String) -> Bytes {
        match self.texts.get(which) {
            Some(text) => text.get_or_init(|| make(Arc::clone(&self.report)).into()).clone(),
            None => make(Arc::clone(&self.report)).into(),
        }
    }
}

type Answer = Result<Arc<Sample>, NoSample>;

/// Takes snapshots of the interface, one at a time.
pub(super) struct Sampler {
    take_report: Arc<TakeReport>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Weak, because it is large with many peers: it lives while a request uses it, and while it is fresh.
    latest: Weak<Sample>,
    earlier: Earlier,
    under_way: Option<watch::Receiver<Option<Answer>>>,
}

impl Sampler {
    pub(super) fn new(take_report: Arc<TakeReport>) -> Arc<Self> {
        Arc::new(Self { take_report, state: Mutex::default() })
    }

    /// Returns the state of the interface, at most [`FRESH`] old.
    pub(super) async fn sample(self: &Arc<Self>) -> Answer {
        let mut answered = {
            let mut state = self.lock();
            if let Some(latest) = state.latest.upgrade().filter(|sample| sample.taken.elapsed() < FRESH) {
                return Ok(latest);
            }
            state.under_way.get_or_insert_with(|| Self::ask(self)).clone()
        };
        match timeout(PATIENCE, answered.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => answer.clone().unwrap_or(Err(NoSample::Stuck)),
            // The task ended without an answer, because the server is ending.
            Ok(Err(_)) => Err(NoSample::Refused(ManageError::Ended)),
            Err(_) => Err(NoSample::Stuck),
        }
    }

    fn ask(sampler: &Arc<Self>) -> watch::Receiver<Option<Answer>> {
        let (answer, answered) = watch::channel(None);
        let sampler = Arc::clone(sampler);
        // Blocks on the packet thread and visits all peers, so it runs off the thread of the connections.
        tokio::task::spawn_blocking(move || {
            let outcome = sampler.take();
            sampler.lock().under_way = None;
            if let Ok(sample) = outcome.clone() {
                tokio::spawn(async move {
                    tokio::time::sleep(FRESH).await;
                    drop(sample);
                });
            }
            answer.send_replace(Some(outcome));
        });
        answered
    }

    fn take(&self) -> Answer {
        let mut report = (self.take_report)()?;
        let taken = Instant::now();
        let mut state = self.lock();
        state.earlier.compare(&mut report, taken);
        report.findings = diagnose(&report);
        let sample = Arc::new(Sample::new(report, taken));
        state.latest = Arc::downgrade(&sample);
        Ok(sample)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panics ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Earlier reports for comparison, and when they were taken. The newer report may be too recent to compare
/// with.
#[derive(Default)]
struct Earlier {
    older: Option<(Instant, StatusReport)>,
    newer: Option<(Instant, StatusReport)>,
}

impl Earlier {
    /// Fills in the changes since the newest report that is old enough, and keeps this report for later
    /// comparisons.
    fn compare(&mut self, report: &mut StatusReport, taken: Instant) {
        let is_old_enough = |(at, _): &&(Instant, StatusReport)| taken.duration_since(*at) >= WINDOW;
        let newer = self.newer.as_ref().filter(is_old_enough);
        if let Some((_, before)) = newer.or(self.older.as_ref().filter(is_old_enough)) {
            add_recent(report, before);
        }
        if newer.is_some() || self.newer.is_none() {
            self.older = self.newer.replace((taken, thinned(report)));
        }
    }
}

/// Returns the part of a report that a comparison needs.
fn thinned(report: &StatusReport) -> StatusReport {
    let peer = |peer: &PeerReport| PeerReport {
        public_key: peer.public_key.clone(),
        tx_bytes: peer.tx_bytes,
        rx_bytes: peer.rx_bytes,
        ..PeerReport::default()
    };
    StatusReport {
        interface: report.interface.clone(),
        pid: report.pid,
        uptime_ms: report.uptime_ms,
        tun: report.tun.clone(),
        udp: report.udp.clone(),
        drops: report.drops.clone(),
        packet_threads: report.packet_threads.clone(),
        times: report.times.clone(),
        peers: report.peers.iter().map(peer).collect(),
        ..StatusReport::default()
    }
}

#[cfg(test)]
mod tests {
    use weft_report::PacketThreadReport;

    use super::*;

    #[test]
    fn a_report_is_compared_with_the_newest_that_is_old_enough() {
        let begin = Instant::now();
        let mut earlier = Earlier::default();
        let mut window_at = |at: u64| {
            let mut report = StatusReport { uptime_ms: 1000 + at, ..StatusReport::default() };
            earlier.compare(&mut report, begin + Duration::from_millis(at));
            report.recent.map(|recent| recent.window_ms)
        };
        // A client that asks as often as there is a new snapshot.
        assert_eq!([0, 250, 500, 750].map(&mut window_at), [None; 4]);
        let windows: Vec<u64> = (4..40).map(|step| window_at(250 * step).unwrap()).collect();
        let range = 900..=2 * 1000;
        assert!(windows.iter().all(|window| range.contains(window)), "{windows:?}");
    }

    #[test]
    fn the_time_of_the_packet_threads_is_that_since_the_earlier_report() {
        for threads in [0, 1, 2] {
            let begin = Instant::now();
            let mut earlier = Earlier::default();
            let busy = [0, 1, 2].map(|seconds| {
                // Half of the time, also long before the first report.
                let busy_ns = 500_000_000 * (1000 + seconds);
                let mut report =
                    StatusReport { uptime_ms: 1000 * (1000 + seconds), ..StatusReport::default() };
                report.packet_threads =
                    vec![PacketThreadReport { busy_ns, ..PacketThreadReport::default() }; threads];
                report.times.turns.sum_ns = busy_ns * threads.max(1) as u64;
                earlier.compare(&mut report, begin + Duration::from_secs(seconds));
                report.recent.map(|recent| recent.busy)
            });
            assert_eq!(busy, [None, Some(0.5), Some(0.5)], "{threads} packet threads");
        }
    }

    #[test]
    fn one_who_asks_seldom_is_told_what_happened_since_he_asked() {
        let begin = Instant::now();
        let mut earlier = Earlier::default();
        let windows = [0, 15, 30, 45].map(|seconds| {
            let mut report = StatusReport { uptime_ms: 1000 * (1 + seconds), ..StatusReport::default() };
            earlier.compare(&mut report, begin + Duration::from_secs(seconds));
            report.recent.map(|recent| recent.window_ms)
        });
        assert_eq!(windows, [None, Some(15_000), Some(15_000), Some(15_000)]);
    }
}
