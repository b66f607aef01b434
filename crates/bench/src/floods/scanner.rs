//! A peer that scans: it sends to others that are away, with its own key.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::pace::Pace;

use super::site::{Site, absent_peer};
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, Workbench};
use crate::peers::packet::{Flow, HEADERS, STAMP, Stamp};
use crate::site::GATEWAY;

const HANDSHAKE: Duration = Duration::from_secs(20);
/// Source and destination port of its packets. No program has the destination.
const FROM: u16 = 4004;
const TO: u16 = 9;
/// Packets between two clock reads.
const BURST: u32 = 8;

/// The peer, with a session.
pub(super) struct Scanner {
    client: Client,
    absent: usize,
    bench: Workbench,
}

impl Scanner {
    /// Creates the peer and waits until it has a session.
    pub(super) fn new(site: &Site, interrupt: &Interrupt) -> Result<Self> {
        let mut this = Self { client: site.scanner()?, absent: site.absent.max(1), bench: Workbench::new() };
        this.send_to(GATEWAY, Instant::now())?;
        interrupt.wait_for("the session of the peer that scans", HANDSHAKE, || {
            this.receive(Instant::now())?;
            Ok(this.client.has_session().then_some(()))
        })?;
        Ok(this)
    }

    /// Scans until `stop` is set, and counts the packets in `sent`.
    pub(super) fn run(mut self, per_second: u32, stop: &AtomicBool, sent: &AtomicU64) -> Result<()> {
        let mut pace = Pace::new(per_second, Instant::now());
        let mut numbers = (0..self.absent).cycle();
        while !stop.load(Relaxed) {
            pace.wait();
            let now = Instant::now();
            for number in numbers.by_ref().take(BURST as usize) {
                self.send_to(absent_peer(number), now)?;
            }
            self.receive(now)?;
            sent.fetch_add(BURST.into(), Relaxed);
            pace.spent(BURST.into());
        }
        Ok(())
    }

    /// Sends a packet to an address in the tunnel. Without a session a handshake begins.
    fn send_to(&mut self, destination: Ipv4Addr, now: Instant) -> Result<()> {
        let flow = Flow { source: (self.client.inner, FROM), destination: (destination, TO) };
        let stamp = Stamp::default();
        Ok(self.client.send_flow(flow, HEADERS + STAMP, stamp, 1, now, &mut self.bench)?)
    }

    fn receive(&mut self, now: Instant) -> Result<()> {
        self.client.receive(now, &mut self.bench, |_, _| {})?;
        Ok(self.client.timers(now, &mut self.bench)?)
    }
}
