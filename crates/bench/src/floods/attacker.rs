//! The attacker of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::flood::{self, Contents, Flood, Junk, ObservedMessage, Running, Sent, Sources, same_queue};
use weft_tunnel::PublicKey;

use super::attack::{Attack, Kind};
use super::scanner::Scanner;
use super::site::{Networks, Site, TO_CLIENT, behind_attacker, target};
use crate::interrupt::Interrupt;
use crate::worker::Worker;

/// Timeout for observing a data message of the client.
const LOOK: Duration = Duration::from_secs(10);
const MANY: usize = 4096;

/// A prepared attack that has not begun.
pub(super) enum Prepared {
    Flood(Flood),
    Scan(Box<Scanner>, u32),
}

/// A running attack.
pub(super) enum Attacking {
    Flood(Running),
    Scan(Arc<AtomicU64>, #[expect(dead_code, reason = "it ends when this is dropped")] Worker<Result<()>>),
}

impl Prepared {
    /// Prepares the attack; an aimed attack observes the client, which has to be sending.
    pub(super) fn new(attack: Attack, site: &Site, time: Duration, interrupt: &Interrupt) -> Result<Self> {
        Ok(match attack.kind {
            Kind::Scan => Self::Scan(Box::new(Scanner::new(site, interrupt)?), attack.per_second),
            _ => Self::Flood(of_stranger(attack, &site.networks, site.key, time)?),
        })
    }

    /// Starts the attack.
    pub(super) fn start(self, site: &Site) -> Result<Attacking> {
        match self {
            Self::Flood(flood) => Ok(Attacking::Flood(site.networks.flood(flood)?)),
            Self::Scan(scanner, per_second) => {
                let sent = Arc::<AtomicU64>::default();
                let counter = Arc::clone(&sent);
                let work = move |stop: &AtomicBool| scanner.run(per_second, stop, &counter);
                Ok(Attacking::Scan(sent, Worker::start("scan", work)?))
            }
        }
    }
}

/// Returns the flood of a stranger; an aimed one observes the client, which has to be sending.
pub(crate) fn of_stranger(
    attack: Attack,
    networks: &Networks,
    key: PublicKey,
    time: Duration,
) -> Result<Flood> {
    let Attack { kind, count, per_second, is_v6 } = attack;
    let (count, target, behind) = (count as usize, target(is_v6), behind_attacker(is_v6));
    let seen = if kind.is_aimed() {
        let seen = ObservedMessage::on_path(&networks.inside, TO_CLIENT, target, LOOK);
        Some(seen.context("nothing is seen of the client")?)
    } else {
        None
    };
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
        (Kind::AimedIndex, Some(seen)) => (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), ports()),
        (Kind::AimedName, Some(seen)) => {
            (flood::Kind::Junk(Junk::ForIndex(seen.receiver_index)), Sources::one(seen.source))
        }
        (Kind::Data, _) => (flood::Kind::Junk(Junk::Data), ports()),
        (Kind::AimedThread, _) => (flood::Kind::Junk(Junk::ForThread { number: 1, count: 2 }), ports()),
        _ => (flood::Kind::Junk(Junk::Mixed), ports()),
    };
    Ok(Flood { kind, target, key, sources, per_second, time })
}

impl Attacking {
    /// Returns the counters so far.
    pub(super) fn so_far(&self) -> Sent {
        match self {
            Self::Flood(running) => running.so_far(),
            Self::Scan(sent, _) => Sent { datagrams: sent.load(Relaxed), ..Sent::default() },
        }
    }
}
