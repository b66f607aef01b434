//! The line in `systemctl status`: how many peers had a recent handshake, and what is wrong.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use weft_report::finding::{Finding, Level};
use weft_report::rules::SESSION_MS;
use weft_report::{StatusReport, diagnose};

use super::notify;

/// Minimum interval between changes of the line.
const PAUSE: Duration = Duration::from_secs(10);
/// With more peers than this a report takes a while, and is made less often.
const MANY_PEERS: usize = 1000;
/// Minimum interval with that many peers.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// Maximum characters of the line. `systemctl` prints it in one line.
const LONGEST: usize = 300;

/// Decides when the line is updated, and sends it if it changed. An idle interface causes no work: the line
/// is checked after events of peers, and when a session that it counts has ended.
#[derive(Debug)]
pub struct StatusLine {
    is_wanted: bool,
    shown: String,
    pause: Duration,
    looked: Instant,
    due: Option<Instant>,
}

impl StatusLine {
    /// Creates a line that was not sent yet.
    pub fn new(now: Instant) -> Self {
        Self::wanted(notify::shows_status(), now)
    }

    fn wanted(is_wanted: bool, now: Instant) -> Self {
        Self { is_wanted, shown: String::new(), pause: PAUSE, looked: now, due: None }
    }

    /// Notes that something happened that may change the line.
    pub fn touch(&mut self, now: Instant) {
        self.look_at(now);
    }

    /// Returns the line for this report, and schedules the next check.
    fn line(&mut self, report: &StatusReport, now: Instant) -> &str {
        self.shown = line(report);
        self.looked = now;
        self.pause = if report.peers.len() > MANY_PEERS { LONG_PAUSE } else { PAUSE };
        self.due = None;
        if let Some(next) = next_end(report) {
            self.look_at(now + next);
        }
        if is_early(report) {
            self.look_at(now + Duration::from_millis(SESSION_MS - report.uptime_ms));
        }
        // A first handshake is answered within a few seconds or not at all, and no event reports the missing
        // answer.
        if report.uptime_ms < PAUSE.as_millis() as u64 {
            self.look_at(now + PAUSE);
        }
        &self.shown
    }

    /// Reports to the service manager that everything is in place, at first or after a reload.
    pub fn ready(&mut self, report: impl FnOnce() -> Option<StatusReport>) {
        if notify::is_present()
            && let Some(report) = report()
        {
            notify::ready(self.line(&report, Instant::now()));
        }
    }

    /// Returns the next message, or `None` when all senders are gone. Meanwhile it keeps the line up to date
    /// with `report`, which returns `None` when packets have stopped.
    pub fn next<M>(
        &mut self,
        messages: &Receiver<M>,
        report: impl FnMut() -> Option<StatusReport>,
    ) -> Option<M> {
        self.next_until(None, messages, report).ok()
    }

    /// Returns the next message as [`Self::next`] does, or an error if there was none until then.
    pub fn next_until<M>(
        &mut self,
        until: Option<Instant>,
        messages: &Receiver<M>,
        mut report: impl FnMut() -> Option<StatusReport>,
    ) -> Result<M, RecvTimeoutError> {
        let is_over = |due: Option<Instant>| due.is_some_and(|due| due <= Instant::now());
        loop {
            if is_over(self.due) {
                match report() {
                    Some(report) => self.show(&report, Instant::now()),
                    None => (self.is_wanted, self.due) = (false, None),
                }
                continue;
            }
            let Some(due) = self.due.into_iter().chain(until).min() else { return Ok(messages.recv()?) };
            match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) if !is_over(until) => {}
                other => return other,
            }
        }
    }

    fn show(&mut self, report: &StatusReport, now: Instant) {
        let before = std::mem::take(&mut self.shown);
        let line = self.line(report, now);
        if line != before {
            notify::status(line);
        }
    }

    fn look_at(&mut self, at: Instant) {
        if self.is_wanted {
            let at = at.max(self.looked + self.pause);
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }
}

fn is_recent(age_ms: u64) -> bool {
    age_ms < SESSION_MS
}

/// Reports whether no peer had a handshake, and none need have had one by now.
fn is_early(report: &StatusReport) -> bool {
    let mut handshakes = report.peers.iter().map(|peer| peer.latest_handshake_ms);
    is_recent(report.uptime_ms) && !report.peers.is_empty() && handshakes.all(|ms| ms.is_none())
}

/// Returns the time until the first of the counted handshakes is no longer recent.
fn next_end(report: &StatusReport) -> Option<Duration> {
    let ages = report.peers.iter().filter_map(|peer| peer.latest_handshake_ms);
    let oldest = ages.filter(|age| is_recent(*age)).max()?;
    Some(Duration::from_millis(SESSION_MS - oldest))
}

/// Returns `2 of 10 peers had a handshake within 3 min`, and the worst problem, if any.
fn line(report: &StatusReport) -> String {
    let peers = report.peers.len();
    let recent = report.peers.iter().filter(|peer| peer.latest_handshake_ms.is_some_and(is_recent)).count();
    let mut text = match peers {
        0 => "no peers".to_owned(),
        _ if is_early(report) => "no handshake yet".to_owned(),
        1 if recent == 1 => "the peer had a handshake within 3 min".to_owned(),
        1 => "no handshake with the peer within 3 min".to_owned(),
        _ => format!("{recent} of {peers} peers had a handshake within 3 min"),
    };
    let findings = diagnose(report);
    let mut problems = findings.iter().filter(|finding| finding.level == Level::Problem);
    if let Some(Finding { about, says, .. }) = problems.next() {
        let about = about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default();
        text += &format!("; {about}{says}");
        match problems.count() {
            0 => {}
            1 => text += "; and 1 more problem",
            more => text += &format!("; and {more} more problems"),
        }
    }
    // A line break would begin another variable of the message.
    let line = text.chars().map(|c| if weft_config::is_unprintable(c) { ' ' } else { c });
    if text.chars().count() <= LONGEST {
        line.collect()
    } else {
        line.take(LONGEST - 1).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_config::settings::ReportSettings;
    use weft_report::PeerReport;

    fn peer(handshake_ms: Option<u64>) -> PeerReport {
        PeerReport {
            public_key: "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=".into(),
            latest_handshake_ms: handshake_ms,
            ..PeerReport::default()
        }
    }

    fn report(peers: Vec<PeerReport>) -> StatusReport {
        let public_key = Some("yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=".into());
        StatusReport { public_key, uptime_ms: 60_000, peers, ..StatusReport::default() }
    }

    #[test]
    fn peers_with_a_recent_handshake_are_counted() {
        assert_eq!(line(&report(vec![])), "no peers");
        assert_eq!(line(&report(vec![peer(Some(5))])), "the peer had a handshake within 3 min");
        assert_eq!(line(&report(vec![peer(None)])), "no handshake yet");
        let late = StatusReport { uptime_ms: 180_000, ..report(vec![peer(None)]) };
        assert_eq!(line(&late), "no handshake with the peer within 3 min");
        let some = report(vec![peer(Some(0)), peer(Some(179_999)), peer(Some(180_000)), peer(None)]);
        assert_eq!(line(&some), "2 of 4 peers had a handshake within 3 min");
    }

    #[test]
    fn the_worst_problem_is_in_the_line_and_the_others_are_counted() {
        let silent = |name: &str| PeerReport {
            settings: ReportSettings::named(name),
            endpoint: Some("192.0.2.1:51820".into()),
            has_configured_endpoint: true,
            tx_bytes: 148,
            ..peer(None)
        };
        let text = line(&report(vec![silent("an\nna"), silent("bert"), peer(Some(0))]));
        assert!(text.starts_with("1 of 3 peers had a handshake within 3 min; an na"), "{text}");
        assert!(text.contains("nothing came back") && text.ends_with("; and 1 more problem"), "{text}");
        let long = "x".repeat(1000);
        let text = line(&report(vec![silent(&long)]));
        assert!(text.chars().count() == LONGEST && text.ends_with('…'), "{text}");
    }

    #[test]
    fn an_interface_at_rest_is_left_alone() {
        let now = Instant::now();
        let mut line = StatusLine::wanted(true, now);
        line.line(&report(vec![peer(None), peer(Some(180_001))]), now);
        assert_eq!(line.due, None);
        line.line(&report(vec![peer(Some(1000)), peer(Some(100_000))]), now);
        assert_eq!(line.due, Some(now + Duration::from_secs(80)), "when the older session ends");
    }

    #[test]
    fn whatever_happens_the_line_is_made_at_most_every_ten_seconds() {
        let now = Instant::now();
        let mut line = StatusLine::wanted(true, now);
        line.line(&report(vec![peer(None)]), now);
        let second = Duration::from_secs(1);
        line.touch(now + second);
        line.touch(now + 2 * second);
        assert_eq!(line.due, Some(now + 10 * second));
        line.line(&report(vec![peer(Some(179_000))]), now + 10 * second);
        assert_eq!(line.due, Some(now + 20 * second));
        let later = now + 60 * second;
        line.line(&report(vec![peer(None)]), later - 30 * second);
        line.touch(later);
        assert_eq!(line.due, Some(later), "at once when it has been quiet");
    }

    #[test]
    fn nothing_is_due_without_a_reader() {
        let now = Instant::now();
        let mut line = StatusLine::wanted(false, now);
        line.touch(now);
        line.line(&report(vec![peer(Some(0))]), now);
        assert_eq!(line.due, None);
    }

    #[test]
    fn messages_come_through_while_the_line_waits_and_packets_that_stopped_end_it() {
        let (sender, messages) = std::sync::mpsc::channel();
        let mut line = StatusLine::wanted(true, Instant::now());
        line.due = Some(Instant::now() + Duration::from_secs(3600));
        sender.send(1).unwrap();
        assert_eq!(line.next(&messages, || None), Some(1));
        line.due = Some(Instant::now());
        sender.send(2).unwrap();
        assert_eq!(line.next(&messages, || None), Some(2));
        assert_eq!(line.due, None);
        line.touch(Instant::now());
        assert_eq!(line.due, None, "it stays ended");
        drop(sender);
        assert_eq!(line.next(&messages, || None), None);
    }

    #[test]
    fn a_first_handshake_that_is_not_answered_shows_after_a_few_seconds() {
        let now = Instant::now();
        let mut line = StatusLine::wanted(true, now);
        line.line(&StatusReport { uptime_ms: 20, ..report(vec![peer(None)]) }, now);
        assert_eq!(line.due, Some(now + PAUSE));
    }
}
