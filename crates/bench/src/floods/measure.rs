//! One measurement: a gateway at rest, and then under an attack.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use weft_report::StatusReport;

use super::attack::{Attack, Kind};
use super::attacker::prepare;
use super::figures::{self, Moment};
use super::load::{MBIT_PER_SECOND, PacedStream};
use super::pinger;
use super::site::Site;
use super::visitors::{self, LIMIT};
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::report::Sample;
use crate::site::GATEWAY;

/// Excluded start-up time: slow start, and credit that a flood uses up at once.
const WARM_UP: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(2);

/// Measures one gateway beside one attack.
pub(super) fn measure(
    attack: Attack,
    secs: u32,
    client: &Implementation,
    implementation: &Implementation,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let site = Site::start(attack, implementation, client, interrupt)?;
    let span = Duration::from_secs(secs.into());
    let warm_up = match attack.kind {
        // Each source sends its first message without a cookie.
        Kind::Proven => WARM_UP + Duration::from_secs(attack.count.into()) / attack.per_second,
        _ => WARM_UP,
    };
    let stream = PacedStream::start(&site.networks.client, &site.networks.inside, GATEWAY, MBIT_PER_SECOND)?;
    let pings = pinger::start(&site.networks.client)?;
    // The flood lasts longer than everything measured beside it.
    let start = prepare(attack, &site, warm_up + span + LIMIT + WARM_UP, interrupt)?;
    interrupt.sleep(WARM_UP)?;
    // Mbit/s of TCP payload received since a moment.
    let mbit = |(bytes, since): (u64, Instant)| {
        (stream.bytes() - bytes) as f64 * 8e-6 / since.elapsed().as_secs_f64()
    };
    let rest = (stream.bytes(), Instant::now());
    interrupt.sleep(REST)?;
    let rest = mbit(rest);

    let sent_so_far = start()?;
    interrupt.sleep(warm_up)?;
    let moment = |site: &Site| -> Result<Moment> {
        let status: Option<StatusReport> = site.gateway.status();
        let cpu = site.gateway.usage()?.cpu;
        Ok(Moment { at: Instant::now(), sent: sent_so_far(), cpu, status })
    };
    let (beside, before) = ((stream.bytes(), Instant::now()), moment(&site)?);
    let visitors = visitors::start(&site)?;
    interrupt.sleep(span)?;
    let (beside, until) = (mbit(beside), Instant::now());
    // The gateway may report its status late; the window is closed already.
    let after = moment(&site)?;
    let visits = visitors.join().map_err(|_| anyhow!("the visitors' thread panicked"))??;
    site.check()?;
    drop((sent_so_far, stream));
    let pings = pings.finish()??;
    Ok(figures::sample([rest, beside], (&pings, until), &before, &after, &visits))
}
