//! Junk: while much of it arrives, the kernel is told which receiver indices there are, so that what carries others costs it
//! and not the packet thread.

use std::time::{Duration, Instant};

use weft_tunnel::{DropReason, Tunnel};

use crate::udp::Udp;

/// Messages for no session within a window, from which on the kernel drops them.
const MUCH: u64 = 1000;
const WINDOW: Duration = Duration::from_secs(1);
/// The kernel goes on for so long after the last window with much junk.
const QUIET: Duration = Duration::from_secs(10);
/// Indices beyond which the kernel cannot tell them apart anyway: no more are gathered.
const MOST: usize = 4096;

/// Whether the kernel drops messages for no session.
#[derive(Debug, Default)]
pub(super) struct JunkFilter {
    window_began: Option<Instant>,
    /// What had been dropped when the window began.
    dropped_before: u64,
    on: Option<On>,
}

#[derive(Debug)]
struct On {
    /// Of the indices that the kernel knows.
    version: u64,
    indices: Vec<u32>,
    /// What the kernel had dropped when the window began.
    dropped_before: u64,
    last_much: Instant,
}

impl JunkFilter {
    /// Once a turn.
    pub(super) fn turn(&mut self, now: Instant, tunnel: &Tunnel, udp: &mut impl Udp) {
        let dropped = dropped(tunnel);
        if self.on.is_none() && dropped.saturating_sub(self.dropped_before) > MUCH {
            self.switch_on(now, tunnel, udp);
            // Where nothing can be dropped, not before the next window.
            self.dropped_before = u64::MAX;
        }
        if self.window_began.is_some_and(|began| now.duration_since(began) < WINDOW) {
            return;
        }
        (self.window_began, self.dropped_before) = (Some(now), dropped);
        self.refresh(tunnel, udp);
        let Some(on) = &mut self.on else { return };
        let junk = udp.stats().junk_dropped;
        if junk.saturating_sub(on.dropped_before) > MUCH {
            on.last_much = now;
        }
        on.dropped_before = junk;
        if now.duration_since(on.last_much) >= QUIET {
            udp.let_pass(None);
            self.on = None;
            tracing::info!("no more junk arrives: messages with any receiver index are looked at again");
        }
    }

    /// Tells the kernel of new indices; before messages that carry them leave.
    pub(super) fn refresh(&mut self, tunnel: &Tunnel, udp: &mut impl Udp) {
        let Some(on) = &mut self.on else { return };
        let version = tunnel.receiver_indices_version();
        if on.version == version {
            return;
        }
        on.version = version;
        gather(&mut on.indices, tunnel);
        udp.let_pass(Some(&on.indices));
    }

    fn switch_on(&mut self, now: Instant, tunnel: &Tunnel, udp: &mut impl Udp) {
        let mut indices = Vec::new();
        gather(&mut indices, tunnel);
        if !udp.let_pass(Some(&indices)) {
            return;
        }
        tracing::info!(
            indices = indices.len(),
            "much junk arrives: the kernel drops messages with unknown receiver indices"
        );
        let (version, dropped_before) = (tunnel.receiver_indices_version(), udp.stats().junk_dropped);
        self.on = Some(On { version, indices, dropped_before, last_much: now });
    }
}

/// What the kernel could have dropped.
fn dropped(tunnel: &Tunnel) -> u64 {
    let drops = tunnel.drops();
    drops.get(DropReason::UnknownReceiverIndex) + drops.get(DropReason::MalformedDatagram)
}

fn gather(indices: &mut Vec<u32>, tunnel: &Tunnel) {
    indices.clear();
    indices.extend(tunnel.receiver_indices().take(MOST));
}
