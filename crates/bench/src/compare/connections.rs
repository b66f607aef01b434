//! Many concurrent TCP connections, from threads of this process, with every byte checked on arrival.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use weft_lab::traffic::{Amount, ReceivedFlow, STALL, SentFlow, TcpReceiver, TcpSenders};

use super::bench::{Bench, Outcome};
use super::case::FAILED;
use crate::report::{Figure, GBIT, RETRANSMITS, Sample};

/// Connections differ in their contents, which are the same in every run.
const SEED: u64 = 0x5eed;

/// Bytes of the slowest of the connections divided by those of the fastest.
const FAIRNESS: Figure = Figure::new("fairness", "slowest/fastest", 2);

pub(super) fn measure(bench: &mut Bench<'_>, count: u32) -> Result<Outcome> {
    let any: SocketAddr = (bench.tunnel.target, 0).into();
    let receiver =
        bench.tunnel.far.run(|| TcpReceiver::listen(any)).context("cannot listen in the tunnel")?;
    let start = Instant::now();
    let amount = Amount::Until(start + bench.span());
    let address = receiver.local_addr();
    let senders = TcpSenders::start(&bench.tunnel.near, address, count, amount, SEED)
        .context("cannot start the senders")?;
    let ended = wait(bench, &receiver, &senders, start);
    if ended.is_err() {
        senders.stop();
    }
    let speed = ended?;
    outcome(&senders.finish(), &receiver.finish(), speed)
}

/// Waits for all senders, and returns how many Gbit/s arrived while they sent: data that is still buffered at
/// the end may take any time.
fn wait(bench: &mut Bench<'_>, receiver: &TcpReceiver, senders: &TcpSenders, start: Instant) -> Result<f64> {
    bench.interrupt.sleep(bench.span().saturating_sub(start.elapsed()))?;
    let speed = receiver.bytes() as f64 * 8e-9 / start.elapsed().as_secs_f64();
    // Each connection ends by itself within one or two `STALL`s.
    bench.interrupt.wait_for("the end of the connections", STALL * 3, || {
        bench.tunnel.check()?;
        Ok(senders.is_finished().then_some(()))
    })?;
    Ok(speed)
}

fn outcome(sent: &[SentFlow], received: &[ReceivedFlow], speed: f64) -> Result<Outcome> {
    let wrong = received.iter().filter(|flow| flow.first_mismatch.is_some()).count();
    ensure!(wrong == 0, "{wrong} connections delivered other bytes than were sent");
    let bytes: u64 = received.iter().map(|flow| flow.bytes).sum();
    let confirmed = || sent.iter().map(|flow| if flow.error.is_none() { flow.confirmed } else { 0 });
    let failed = sent.iter().filter(|flow| flow.error.is_some()).count();
    let (least, most) = (confirmed().min().unwrap_or(0), confirmed().max().unwrap_or(0));
    let retransmits: u64 = sent.iter().map(|flow| flow.retransmits).sum();
    let sample = Sample::default()
        .with(GBIT, speed)
        .with(FAIRNESS, least as f64 / most as f64)
        .with(FAILED, failed as f64)
        .with(RETRANSMITS, retransmits as f64);
    let note = sent
        .iter()
        .find_map(|flow| flow.error.as_deref())
        .map(|error| format!("a connection failed: {error}"));
    Ok(Outcome { note, ..Outcome::new(sample, bytes as f64 * 8e-9) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_set_beside_the_fastest_and_failures_are_counted() {
        let sent = |confirmed, error: Option<&str>| SentFlow {
            confirmed,
            retransmits: 1,
            error: error.map(str::to_owned),
            ..SentFlow::default()
        };
        let received = |bytes| ReceivedFlow { bytes, ..ReceivedFlow::default() };
        let flows = [received(250_000_000), received(500_000_000)];
        let fair = outcome(&[sent(250_000_000, None), sent(500_000_000, None)], &flows, 5.5).unwrap();
        assert_eq!((fair.gbit, fair.sample.get(GBIT)), (6.0, Some(5.5)));
        assert_eq!(fair.sample.get(FAIRNESS), Some(0.5));
        assert_eq!(fair.sample.get(RETRANSMITS), Some(2.0));
        let broken = outcome(&[sent(1, Some("stalled")), sent(5, None)], &flows, 5.5).unwrap();
        assert_eq!(broken.sample.get(FAILED), Some(1.0));
        assert_eq!(broken.sample.get(FAIRNESS), Some(0.0));
        let wrong = ReceivedFlow { first_mismatch: Some(7), ..ReceivedFlow::default() };
        assert!(outcome(&[], &[wrong], 5.5).is_err());
    }
}
