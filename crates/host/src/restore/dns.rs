//! Sets DNS again that other programs replace: dhclient, dhcpcd and NetworkManager write /etc/resolv.conf
//! when a lease or a network changes, and systemd-resolved forgets an interface that is reverted.
//!
//! What another program wrote is kept beneath, and comes back at the end. One that writes again and again is
//! not fought for ever.

use std::time::{Duration, Instant};

use super::super::execute::System as _;
use super::super::{Host, Step};
use crate::dns::{Method, Seen};

/// How often DNS is set again within [`WINDOW`].
const ATTEMPTS: usize = 5;
const WINDOW: Duration = Duration::from_secs(600);
/// The pause between two looks at a file.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause between two questions to systemd-resolved.
const PAUSE_BETWEEN_QUESTIONS: Duration = Duration::from_secs(5);

/// What became of DNS since it was set.
#[derive(Debug, Default)]
pub(in super::super) struct DnsWatch {
    /// When to look next.
    due: Option<Instant>,
    /// When DNS was set again.
    attempts: Vec<Instant>,
    /// Why DNS is not in force.
    lost: Option<String>,
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
        match self.kernel.resolver.look(&self.plan.interface, &record) {
            Ok(Seen::InForce) => self.dns_watch.lost = None,
            Ok(Seen::Replaced(by)) => self.set_dns_again(&Step::Dns(wanted), &by, now),
            Err(error) => tracing::debug!("cannot see whether DNS is in force: {error}"),
        }
        Some(due)
    }

    /// Returns why DNS is not in force, if that is known.
    pub fn lost_dns(&self) -> Option<&str> {
        self.dns_watch.lost.as_deref()
    }

    fn set_dns_again(&mut self, step: &Step, by: &str, now: Instant) {
        let interface = self.plan.interface.clone();
        let watch = &mut self.dns_watch;
        watch.attempts.retain(|attempt| now.saturating_duration_since(*attempt) < WINDOW);
        if watch.attempts.len() >= ATTEMPTS {
            let minutes = WINDOW.as_secs() / 60;
            let lost = format!(
                "another program replaces DNS again and again: there is {by}; it was set again {ATTEMPTS} times in \
                 {minutes} minutes"
            );
            if watch.lost.is_none() {
                tracing::warn!(%interface, "{lost}");
            }
            watch.lost = Some(lost);
            return;
        }
        watch.attempts.push(now);
        match self.kernel.apply(step) {
            Ok(_) => {
                watch.lost = None;
                tracing::warn!(%interface, "another program had replaced DNS by {by}; done again: {}", step.doing(&interface));
                // The method may be another one.
                if let Err(error) = self.write_what_is_in_force() {
                    tracing::warn!("{error}");
                }
            }
            Err(error) => {
                let lost = format!("another program has replaced DNS by {by}: {error}");
                if watch.lost.as_ref() != Some(&lost) {
                    tracing::warn!(%interface, "{lost}");
                }
                watch.lost = Some(lost);
            }
        }
    }
}
