//! The attacker of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result};
use weft_lab::flood::{self, Contents, Flood, Junk, ObservedMessage, Sent, Sources, same_queue};
use weft_tunnel::PublicKey;

use super::attack::{Attack, Kind};
use super::scanner::Scanner;
use super::site::{Networks, Site, TO_CLIENT, behind_attacker, target};
use crate::interrupt::Interrupt;
use crate::worker::Worker;

/// Timeout for observing a data message of the client.
const LOOK: Duration = Duration::from_secs(10);
const MANY: usize = 4096;

/// Starts a prepared attack.
pub(super) type Start<'a> = Box<dyn FnOnce() -> Result<SoFar> + 'a>;
/// Returns what a running attack has sent so far. The attack ends when this is dropped.
pub(super) type SoFar = Box<dyn Fn() -> Sent>;

/// Prepares the attack; an aimed attack observes the client, which has to be sending.
pub(super) fn prepare<'a>(
    attack: Attack,
    site: &'a Site,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Start<'a>> {
    if attack.kind != Kind::Scan {
        let flood = of_stranger(attack, &site.networks, site.key, time)?;
        return Ok(Box::new(move || {
            let running = site.networks.flood(flood)?;
            Ok(Box::new(move || running.so_far()))
        }));
    }
    let scanner = Scanner::new(site, interrupt)?;
    Ok(Box::new(move || {
        let sent = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&sent);
        let work = move |stop: &AtomicBool| scanner.run(attack.per_second, stop, &counter);
        let scan = Worker::start("scan", work)?;
        Ok(Box::new(move || {
            let _ = &scan;
            Sent { datagrams: sent.load(Relaxed), ..Sent::default() }
        }))
    }))
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
