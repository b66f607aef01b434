//! Takes the samples of one end.

use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep};
use weft_report::StatusReport;

use crate::load::{Lanes, Load};
use crate::sample::{Counters, Sample, Sent, micros};
use crate::{SAMPLE_EVERY, cpu, tcp_events};

/// Asks the daemon for its state; may block. `None`: it does not answer.
pub type Probe = Arc<dyn Fn() -> Option<StatusReport> + Send + Sync>;

/// The daemon may spend one part in this number on reports: with 10,000 peers one takes longer than a
/// sample's time.
const SHARE_OF_REPORTS: u32 = 20;

/// The counters of the daemon, read on another thread.
#[derive(Clone)]
pub(crate) struct Watch {
    probe: Probe,
    peer: String,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    began: Instant,
    latest: Option<Counters>,
    /// When the next report may be asked for; `None` while one is on its way.
    next: Option<Instant>,
}

impl Watch {
    /// Watches the counters for this peer.
    pub(crate) fn new(probe: Probe, peer: &str) -> Self {
        let now = Instant::now();
        let shared = Shared { began: now, latest: None, next: Some(now) };
        Self { probe, peer: peer.to_owned(), shared: Arc::new(Mutex::new(shared)) }
    }

    /// Begins with this report, for which was asked then.
    pub(crate) fn after(probe: Probe, peer: &str, report: &StatusReport, asked: Instant) -> Self {
        let watch = Self::new(probe, peer);
        watch.lock().take(Some(report), peer, asked);
        watch
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the time from now on. The counters from before get the time 0.
    fn begin(&self, began: Instant) {
        let mut shared = self.lock();
        shared.began = began;
        if let Some(before) = &mut shared.latest {
            before.at_us = 0;
        }
    }

    /// Returns the newest counters, and asks for newer ones when it is time.
    pub(crate) fn look(&self) -> Option<Counters> {
        let mut shared = self.lock();
        if shared.next.is_some_and(|next| next <= Instant::now()) {
            shared.next = None;
            let watch = self.clone();
            spawn_blocking(move || watch.read());
        }
        shared.latest.clone()
    }

    fn read(&self) {
        let asked = Instant::now();
        let report = (self.probe)();
        self.lock().take(report.as_ref(), &self.peer, asked);
    }

    /// Returns counters that are read now.
    pub(crate) async fn now(&self) -> Option<Counters> {
        loop {
            let is_free = self.lock().next.take().is_some();
            if is_free {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        let watch = self.clone();
        // Fails only if the probe panics, which ends the process.
        let _ = spawn_blocking(move || watch.read()).await;
        self.lock().latest.clone()
    }
}

impl Shared {
    /// Takes the counters of a report that has come.
    fn take(&mut self, report: Option<&StatusReport>, peer: &str, asked: Instant) {
        let took = asked.elapsed();
        if let Some(report) = report {
            let at_us = micros(asked.saturating_duration_since(self.began) + took / 2);
            self.latest = Some(Counters::of(report, peer, at_us));
        }
        self.next = Some(asked + (took * SHARE_OF_REPORTS).max(SAMPLE_EVERY / 2));
    }
}

/// One end of a test that runs.
pub(crate) struct Sampler {
    began: Instant,
    until: Instant,
    load: Option<Load>,
    watch: Watch,
    daemon: Option<u32>,
    tick: Interval,
    is_over: bool,
    /// What was sent when it was looked at last.
    sent: Sent,
}

impl Sampler {
    /// Begins to send or to receive. `daemon` is the process of the daemon, if it is another one.
    pub(crate) fn begin(
        lanes: Lanes,
        sends: bool,
        duration: Duration,
        watch: Watch,
        daemon: Option<u32>,
    ) -> Self {
        let began = Instant::now();
        watch.begin(began);
        let mut tick = interval(SAMPLE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let until = began + duration;
        let load = Some(Load::start(lanes, sends, until));
        Self { began, until, load, watch, daemon, tick, is_over: false, sent: Sent::default() }
    }

    /// Returns the time at which the sender stops.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Reports whether the last sample was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Waits for the time of the next sample; for ever after the last one. Cancelling it loses nothing.
    ///
    /// # Errors
    /// A connection of the sender breaks.
    pub(crate) async fn next(&mut self) -> io::Result<Sample> {
        let Some(load) = self.load.as_mut().filter(|_| !self.is_over) else { return pending().await };
        tokio::select! {
            _ = self.tick.tick() => {}
            error = load.broken() => return Err(error),
        }
        let now = Instant::now();
        self.is_over = now >= self.until;
        let (received, tcp, datagrams) = load.observe();
        let at_us = micros(now - self.began);
        let events = tcp.is_some().then(tcp_events::read);
        let (cpu, counters) = (cpu::read(self.daemon), self.watch.look());
        Ok(Sample { at_us, received, tcp, datagrams, events, cpu, counters })
    }

    /// Returns what this end has sent so far.
    pub(crate) fn sent(&mut self) -> Sent {
        if let Some(load) = &self.load {
            self.sent = load.sent();
        }
        self.sent
    }

    /// Resets the connections.
    pub(crate) fn end(&mut self) {
        self.sent();
        self.load = None;
    }
}
