//! Numbered datagrams below the link's capacity: without a full queue, loss and reordering are caused by the
//! path.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use weft_lab::emulator::LinkSpec;
use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::Amount;

use super::path::{Path, payload_shares};
use crate::interrupt::Interrupt;
use crate::topology::Tunnel;

/// Payload that fits into every tunnel.
const DATAGRAM: usize = 1372;
const FLOWS: u32 = 4;
const BURST: u16 = 8;
const SPAN: Duration = Duration::from_secs(4);
const GRACE: Duration = Duration::from_secs(60);
/// Rate, as a share of the link's capacity for payload.
const PART: f64 = 0.8;
/// Assumed rate of a link without one, in bits a second.
const ANY_RATE: u64 = 200_000_000;

/// Counts of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Sample {
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) out_of_order: u64,
    /// Lost in the receiving socket, not on the path.
    pub(super) socket_full: u64,
}

/// Sends datagrams over the path and counts them.
pub(super) fn measure(path: &mut Path, link: &LinkSpec, interrupt: &Interrupt) -> Result<Sample> {
    let rate = link.rate.unwrap_or(ANY_RATE) as f64 * payload_shares()[1] * PART;
    let options = NumberedOptions {
        flows: FLOWS,
        datagram_bytes: DATAGRAM,
        datagrams_per_second: (rate / (DATAGRAM as f64 * 8.0)).round().max(1.0) as u32,
        burst: BURST,
        amount: Amount::Until(Instant::now() + SPAN),
        ..NumberedOptions::default()
    };
    let before = path.counters()?;
    let Tunnel { near, far, source, target, .. } = &path.tunnel;
    let flows = Numbered::start(near, *source, far, *target, options)?;
    interrupt.wait_for("the end of the datagrams", SPAN + GRACE, || {
        path.check()?;
        Ok(flows.is_sent().then_some(()))
    })?;
    let tally = flows.finish().forward;
    ensure!(tally.corrupt == 0, "{} datagrams were changed on their way", tally.corrupt);
    let far = path.counters()?[1].since(&before[1]);
    Ok(Sample {
        sent: tally.sent,
        lost: tally.lost,
        out_of_order: tally.out_of_order,
        socket_full: far.udp_receive_buffer_full(),
    })
}
