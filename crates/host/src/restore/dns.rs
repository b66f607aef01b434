//! Sets DNS again that other programs replace: dhclient, dhcpcd and NetworkManager write /etc/resolv.conf
//! when a lease or a network changes, and systemd-resolved and resolvconf forget an interface that is removed
//! there.
//!
//! What another program wrote is kept beneath, and comes back at the end. One that writes again and again is
//! not fought for ever.

use std::fmt;
use std::time::{Duration, Instant};

use weft_config::exit::Code;
use weft_config::{Dns, InterfaceName};

use super::super::execute::System as _;
use super::super::{Host, Step, programs};
use crate::dns::{Method, Overruled, Record, Seen, System};

/// How often DNS is set again at once within [`WINDOW`]: a laptop that changes its network has a few such
/// changes.
const ATTEMPTS: usize = 5;
const WINDOW: Duration = Duration::from_secs(600);
/// The pause before DNS is set again after that, and where it had no effect.
const LONG_PAUSE: Duration = Duration::from_secs(10);
/// The pause between two looks at a file.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause between two questions to systemd-resolved.
const PAUSE_BETWEEN_QUESTIONS: Duration = Duration::from_secs(5);

/// What became of DNS since it was set.
#[derive(Debug, Default)]
pub(in super::super) struct DnsWatch {
    /// When to look next.
    due: Option<Instant>,
    /// When DNS was set again, with effect.
    attempts: Vec<Instant>,
    /// When that was tried last.
    tried: Option<Instant>,
    /// How often in a row it had no effect.
    useless: usize,
    /// Why it could not be seen at the last look.
    unseen: Option<String>,
    /// Why DNS is not in force, as last told.
    past: Option<DnsPast>,
}

/// Why names are looked up past the name servers of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsPast {
    /// They are not set any more, for this reason.
    Lost(String),
    /// Something else comes before them.
    Overruled(Overruled),
}

impl fmt::Display for DnsPast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Lost(why) | Self::Overruled(Overruled { by: why, .. })) = self;
        write!(f, "names are looked up past the tunnel: {why}")
    }
}

impl DnsPast {
    /// Returns what to do.
    pub fn advice(&self) -> &str {
        match self {
            Self::Lost(_) => {
                "see which program writes /etc/resolv.conf, and keep it from that: in NetworkManager `dns=none`, for \
                 dhcpcd `nohook resolv.conf`, for dhclient and ifupdown the package openresolv, which weft uses too; \
                 a resolvconf that writes nothing may need `resolvconf --enable-updates`; `weft reload` sets them again"
            }
            Self::Overruled(overruled) => &overruled.advice,
        }
    }
}

/// Looks whether the name servers of a record are in force. `None`: they are, or that cannot be seen.
pub(crate) fn dns_past(resolver: &System, interface: &InterfaceName, record: &Record) -> Option<DnsPast> {
    match resolver.look(interface, record) {
        Ok(Seen::InForce) => None,
        Ok(Seen::Replaced(by)) => {
            Some(DnsPast::Lost(format!("another program has undone DNS: there is {by}")))
        }
        Ok(Seen::Overruled(overruled)) => Some(DnsPast::Overruled(overruled)),
        // An ordinary user may not see it.
        Err(error) if error.exit_code() == Code::Permission => None,
        Err(error) => Some(DnsPast::Lost(error.to_string())),
    }
}

impl Host {
    /// Looks once in a while whether DNS is in force, and sets it again. Returns when to look next; `None`:
    /// there is nothing to look after.
    pub fn look_after_dns(&mut self, now: Instant) -> Option<Instant> {
        let wanted = self.plan.dns()?.clone();
        let record = self.kernel.dns.clone()?;
        if let Some(due) = self.dns_watch.due.filter(|due| *due > now) {
            return Some(due);
        }
        let pause = if record.method == Method::Resolved { PAUSE_BETWEEN_QUESTIONS } else { PAUSE };
        let due = now + pause;
        self.dns_watch.due = Some(due);
        // What is asked of weft meanwhile does not wait for two programs.
        if now.checked_sub(PAUSE).is_some_and(programs::has_hung_since) {
            return Some(due);
        }
        programs::look(|| self.look_at_dns(&record, wanted, now));
        Some(due)
    }

    fn look_at_dns(&mut self, record: &Record, wanted: Dns, now: Instant) {
        let unseen = self.dns_watch.unseen.take();
        match self.kernel.resolver.look(&self.plan.interface, record) {
            Ok(Seen::InForce) => self.dns_watch.past = None,
            Ok(Seen::Overruled(overruled)) => self.dns_watch.past = Some(DnsPast::Overruled(overruled)),
            Ok(Seen::Replaced(by)) => self.set_dns_again(&Step::Dns(wanted), &by, now),
            Err(error) => {
                let error = error.to_string();
                // A resolver that is just being restarted is not told.
                if unseen.is_some() {
                    self.dns_watch.past = Some(DnsPast::Lost(error.clone()));
                }
                self.dns_watch.unseen = Some(error);
            }
        }
    }

    /// Returns why DNS is not in force, if that is known.
    pub fn dns_past(&self) -> Option<&DnsPast> {
        self.dns_watch.past.as_ref()
    }

    /// Reports whether a reload has to set DNS again. Looks at once.
    pub(in super::super) fn is_dns_undone(&self) -> bool {
        let look = |record| programs::look(|| self.kernel.resolver.look(&self.plan.interface, record));
        let seen = self.kernel.dns.as_ref().map(look);
        !matches!(seen, None | Some(Ok(Seen::InForce)))
    }

    /// Looks at DNS as after a start.
    pub(in super::super) fn forget_dns_watch(&mut self) {
        self.dns_watch = DnsWatch { past: self.dns_watch.past.take(), ..DnsWatch::default() };
    }

    fn set_dns_again(&mut self, step: &Step, by: &str, now: Instant) {
        let is_fought = self.dns_watch.is_fought(now);
        if is_fought {
            let minutes = WINDOW.as_secs() / 60;
            self.dns_watch.past = Some(DnsPast::Lost(format!(
                "another program replaces DNS again and again: there is {by}; it was set again {ATTEMPTS} times in \
                 {minutes} minutes, and is every {} seconds now",
                LONG_PAUSE.as_secs()
            )));
        }
        if !self.dns_watch.may_try(now, is_fought) {
            return;
        }
        let done = self.kernel.apply(step).map_err(|error| error.to_string());
        let record = self.kernel.dns.clone();
        let seen = record.map(|record| self.kernel.resolver.look(&self.plan.interface, &record));
        let useless = match (done, seen) {
            (Err(error), _) => Some(format!("another program has undone DNS: there is {by}; {error}")),
            (Ok(_), Some(Ok(Seen::Replaced(by)))) => Some(format!(
                "another program has undone DNS: there is {by}, and it has no effect to set it again"
            )),
            (Ok(_), _) => None,
        };
        self.dns_watch.record(now, useless.is_some());
        if let Some(why) = useless {
            self.dns_watch.past = Some(DnsPast::Lost(why));
            return;
        }
        // That it lasts is seen at the next look.
        if !is_fought {
            self.dns_watch.past = None;
        }
        let interface = &self.plan.interface;
        tracing::warn!(%interface, "another program had undone DNS: there was {by}; done again: {}", step.doing(interface));
        // The method may be another one.
        if let Err(error) = self.write_what_is_in_force() {
            tracing::warn!("{error}");
        }
    }
}

impl DnsWatch {
    /// Reports whether another program replaces DNS again and again.
    fn is_fought(&mut self, now: Instant) -> bool {
        self.attempts.retain(|attempt| now.saturating_duration_since(*attempt) < WINDOW);
        self.attempts.len() >= ATTEMPTS
    }

    fn may_try(&self, now: Instant, is_fought: bool) -> bool {
        let is_rested = |tried| now.saturating_duration_since(tried) >= LONG_PAUSE;
        !(is_fought || self.useless >= ATTEMPTS) || self.tried.is_none_or(is_rested)
    }

    fn record(&mut self, now: Instant, is_useless: bool) {
        self.tried = Some(now);
        if is_useless {
            self.useless += 1;
        } else {
            self.useless = 0;
            self.attempts.push(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// Replaces DNS each second of a time. Returns the seconds in which it was set again.
    fn set_again(start: Instant, seconds: Range<u64>, watch: &mut DnsWatch, is_useless: bool) -> Vec<u64> {
        let times = seconds.map(|second| (second, start + Duration::from_secs(second)));
        times
            .filter_map(|(second, now)| {
                let is_fought = watch.is_fought(now);
                watch.may_try(now, is_fought).then(|| watch.record(now, is_useless)).map(|()| second)
            })
            .collect()
    }

    #[test]
    fn one_that_writes_again_and_again_is_undone_at_once_and_then_seldom() {
        let (start, mut watch) = (Instant::now(), DnsWatch::default());
        assert_eq!(set_again(start, 0..30, &mut watch, false), [0, 1, 2, 3, 4, 14, 24]);
        // After a quiet time it is as at first.
        assert_eq!(set_again(start, 800..805, &mut watch, false), [800, 801, 802, 803, 804]);
    }

    #[test]
    fn what_has_no_effect_is_tried_seldom_and_no_fight() {
        let (start, mut watch) = (Instant::now(), DnsWatch::default());
        assert_eq!(set_again(start, 0..30, &mut watch, true), [0, 1, 2, 3, 4, 14, 24]);
        // The last one has an effect, and the others do not count.
        assert_eq!(set_again(start, 40..46, &mut watch, false), [40, 41, 42, 43, 44]);
    }
}
