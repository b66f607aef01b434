//! The attacker of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use weft_lab::flood::{self, Contents, Flood, Junk, ObservedMessage, Running, Sent, Sources, same_queue};
use weft_lab::pace::Pace;

use super::attack::{Attack, Kind};
use super::malicious_peer::MaliciousPeer;
use super::site::{Site, TO_CLIENT, behind_attacker, target};
use crate::interrupt::Interrupt;
use crate::worker::Worker;

/// Timeout for observing a data message of the client.
const LOOK: Duration = Duration::from_secs(10);
const MANY: usize = 4096;

/// A prepared attack that has not begun.
pub(super) enum Prepared {
    Flood(Flood),
    Peer(Box<MaliciousPeer>, u32),
}

/// A running attack.
pub(super) enum Attacking {
    Flood(Running),
    Peer(Arc<AtomicU64>, #[expect(dead_code, reason = "it ends when this is dropped")] Worker<Result<()>>),
}

impl Prepared {
    /// Prepares the attack; an aimed attack observes the client, which has to be sending.
    pub(super) fn new(attack: Attack, site: &Site, time: Duration, interrupt: &Interrupt) -> Result<Self> {
        let Attack { kind, count, per_second, .. } = attack;
        let count = count as usize;
        let seen = if kind.is_aimed() {
            let seen = ObservedMessage::on_path(&site.networks.inside, TO_CLIENT, target(attack.is_v6), LOOK);
            Some(seen.context("nothing is seen of the client")?)
        } else {
            None
        };
        let behind = behind_attacker(attack.is_v6);
        let addresses = || Sources::addresses(behind, count);
        let ports = || Sources::ports(behind, count);
        let (kind, sources) = match (kind, seen) {
            (Kind::NoMac1, _) => (flood::Kind::WithoutMac1, addresses()),
            (Kind::Mac1, _) => (flood::Kind::WithMac1(Contents::Random), addresses()),
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
            (Kind::AimedIndex, Some(seen)) => {
                (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), ports())
            }
            (Kind::AimedName, Some(seen)) => {
                (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), Sources::one(seen.source))
            }
            (kind, _) if kind.is_of_peer() => {
                let peer = MaliciousPeer::new(kind, site, interrupt)?;
                return Ok(Self::Peer(Box::new(peer), per_second));
            }
            (Kind::Data, _) => (flood::Kind::Junk(Junk::Data), ports()),
            (Kind::AimedThread, _) => (flood::Kind::Junk(Junk::ForThread { number: 1, count: 2 }), ports()),
            _ => (flood::Kind::Junk(Junk::Mixed), ports()),
        };
        Ok(Self::Flood(Flood {
            kind,
            target: target(attack.is_v6),
            key: site.key,
            sources,
            per_second,
            time,
        }))
    }

    /// Starts the attack.
    pub(super) fn start(self, site: &Site) -> Result<Attacking> {
        match self {
            Self::Flood(flood) => Ok(Attacking::Flood(site.networks.flood(flood)?)),
            Self::Peer(peer, per_second) => {
                let sent = Arc::<AtomicU64>::default();
                let counter = Arc::clone(&sent);
                let work = move |stop: &AtomicBool| attack(*peer, per_second, stop, &counter);
                Ok(Attacking::Peer(sent, Worker::start("peer", work)?))
            }
        }
    }
}

impl Attacking {
    /// Returns the counters so far.
    pub(super) fn so_far(&self) -> Sent {
        match self {
            Self::Flood(running) => running.so_far(),
            Self::Peer(sent, _) => Sent { datagrams: sent.load(Relaxed), ..Sent::default() },
        }
    }
}

/// Lets the peer attack until `stop` is set.
fn attack(mut peer: MaliciousPeer, per_second: u32, stop: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let mut pace = Pace::new(per_second, Instant::now());
    while !stop.load(Relaxed) {
        pace.wait();
        let count = peer.burst(Instant::now())?;
        sent.fetch_add(count.into(), Relaxed);
        pace.spent(count.into());
    }
    Ok(())
}
