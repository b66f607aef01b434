//! The attacker of a measurement.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use weft_lab::flood::{self, Contents, Flood, Junk, ObservedMessage, Running, Sent, Sources, same_queue};
use weft_lab::pace::Pace;

use super::attack::{Attack, Kind};
use super::site::{OUTER, Site, TO_ATTACKER, TO_CLIENT, absent_peer};
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, Workbench};
use crate::peers::packet::{Flow, HEADERS, STAMP, Stamp};

/// Timeout for observing a data message of the client.
const LOOK: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(20);
const MANY: usize = 4096;
/// Source and destination port of the scan's packets.
const FROM: u16 = 4004;
const TO: u16 = 9;
/// Packets between two clock reads.
const SCAN_BURST: u32 = 8;

/// A prepared attack that has not begun.
pub(super) enum Prepared {
    Flood(Flood),
    Scan(Box<Client>, u32),
}

/// A running attack.
pub(super) enum Attacking {
    Flood(Running),
    Scan(Scan),
}

pub(super) struct Scan {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    _thread: JoinHandle<io::Result<()>>,
}

impl Prepared {
    /// Prepares the attack; an aimed attack observes the client, which has to be sending.
    pub(super) fn new(attack: Attack, site: &Site, time: Duration, interrupt: &Interrupt) -> Result<Self> {
        let Attack { kind, count, per_second, .. } = attack;
        let count = count as usize;
        let seen = if kind.is_aimed() {
            let seen = ObservedMessage::on_path(&site.inside, TO_CLIENT, site.target(), LOOK);
            Some(seen.context("nothing is seen of the client")?)
        } else {
            None
        };
        let behind = site.behind_attacker();
        let addresses = || Sources::addresses(behind, count);
        let ports = || Sources::ports(behind, count);
        let (kind, sources) = match (kind, seen) {
            (Kind::NoMac1, _) => (flood::Kind::WithoutMac1, addresses()),
            (Kind::Mac1, _) => (flood::Kind::WithMac1(Contents::Random), addresses()),
            (Kind::UnknownKey, _) => (flood::Kind::WithMac1(Contents::UnknownKey), addresses()),
            (Kind::Proven, _) => {
                // Complete initiations take a while to make, and each source needs a message.
                let contents = if count <= MANY { Contents::UnknownKey } else { Contents::Random };
                (flood::Kind::WithCookie(contents), addresses())
            }
            (Kind::AimedHash, Some(seen)) => {
                let all = Sources::ports(behind, 60_000);
                let aimed = all.filter(|source| same_queue(source, seen.source)).first(count);
                (flood::Kind::Junk(Junk::Data), aimed)
            }
            (Kind::AimedAddress, Some(seen)) => {
                let sources = Sources::ports(seen.source.ip(), count);
                let sources = sources.filter(|source| source != seen.source);
                (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), sources)
            }
            (Kind::AimedIndex, Some(seen)) => {
                (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), ports())
            }
            (Kind::AimedName, Some(seen)) => {
                (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), Sources::one(seen.source))
            }
            (Kind::Scan, _) => return Self::scan(site, per_second, interrupt),
            (Kind::Data, _) => (flood::Kind::Junk(Junk::Data), ports()),
            (Kind::AimedThread, _) => (flood::Kind::Junk(Junk::ForThread { number: 1, count: 2 }), ports()),
            (Kind::Junk, _) | (_, None) => (flood::Kind::Junk(Junk::Mixed), ports()),
        };
        Ok(Self::Flood(Flood { kind, target: site.target(), key: site.key(), sources, per_second, time }))
    }

    /// Creates the scanning peer and waits until it has a session.
    fn scan(site: &Site, per_second: u32, interrupt: &Interrupt) -> Result<Self> {
        let (mut client, mut bench) = (site.scanner()?, Workbench::new());
        let stamp = Stamp { run: 0, peer: 0, number: 0 };
        client.send((FROM, TO), HEADERS + STAMP, stamp, 1, Instant::now(), &mut bench)?;
        interrupt.wait_for("the scanning peer's session", HANDSHAKE, || {
            client.receive(Instant::now(), &mut bench, |_, _| {})?;
            client.timers(Instant::now(), &mut bench)?;
            Ok(client.has_session().then_some(()))
        })?;
        Ok(Self::Scan(Box::new(client), per_second))
    }

    /// Starts the attack.
    pub(super) fn start(self, site: &Site) -> Result<Attacking> {
        match self {
            Self::Flood(flood) => {
                let running = flood.start(&site.attacker, OUTER, &site.inside, TO_ATTACKER);
                Ok(Attacking::Flood(running.context("the flood does not begin")?))
            }
            Self::Scan(client, per_second) => {
                let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
                let (ended, counter, absent) = (Arc::clone(&stop), Arc::clone(&sent), site.absent());
                let work = move || scan(*client, per_second, absent, &ended, &counter);
                let thread = std::thread::Builder::new().name("scan".to_owned()).spawn(work)?;
                Ok(Attacking::Scan(Scan { stop, sent, _thread: thread }))
            }
        }
    }
}

impl Attacking {
    /// Returns the counters so far.
    pub(super) fn so_far(&self) -> Sent {
        match self {
            Self::Flood(running) => running.so_far(),
            Self::Scan(scan) => Sent { datagrams: scan.sent.load(Relaxed), ..Sent::default() },
        }
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Sends packets to the absent peers in turn until `stop` is set.
fn scan(
    mut client: Client,
    per_second: u32,
    absent: usize,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> io::Result<()> {
    let mut bench = Workbench::new();
    let mut pace = Pace::new(per_second, Instant::now());
    let mut to = (0..absent.max(1)).map(absent_peer).cycle();
    while !stop.load(Relaxed) {
        pace.wait();
        let now = Instant::now();
        for destination in to.by_ref().take(SCAN_BURST as usize) {
            let flow = Flow { source: (client.inner, FROM), destination: (destination, TO) };
            let stamp = Stamp { run: 0, peer: 0, number: 0 };
            client.send_flow(flow, HEADERS + STAMP, stamp, 1, now, &mut bench)?;
        }
        client.receive(now, &mut bench, |_, _| {})?;
        client.timers(now, &mut bench)?;
        sent.fetch_add(SCAN_BURST.into(), Relaxed);
        pace.spent(SCAN_BURST.into());
    }
    Ok(())
}
