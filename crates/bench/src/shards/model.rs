//! What follows for many packet threads from the stages as measured on one: a machine with many cores was not
//! measured.

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::report::{Figure, Report, Sample};
use crate::stages::{self, times::Costs, times::Stage};

/// Packet threads up to which the model goes.
const THREADS: u32 = 32;

const INBOUND: Figure = Figure::new("inbound", "from peers", 1);
/// One core delivers all that arrives to the sockets.
const ONE_QUEUE: Figure = Figure::new("inbound_one_receive_queue", "from peers, one receive queue", 1);
const OUTBOUND: Figure = Figure::new("outbound", "to peers, flows of the peers", 1);
const BEGUN_HERE: Figure = Figure::new("outbound_begun_here", "to peers, flows begun here", 1);
const FOREIGN: Figure = Figure::new("foreign_percent", "handed over, %", 0);

const ASSUMPTIONS: [&str; 6] = [
    "each packet thread has a core to itself, as fast as the one measured: caches, memory and clock frequency that \
     cores share are left out",
    "all packet threads have as much traffic: many peers, none of which is heavy",
    "the kernel's work before a socket or a queue of the TUN is done by other cores; with one receive queue, one core \
     does all of it, measured as \"UDP send\" with the veth",
    "the kernel chooses the queue of a flow that begins here, so with K threads (K-1)/K of these packets are handed \
     over; the hand-over was measured on one thread, without waking another",
    "flows that the peers begin stay with the thread of the peer",
    "receiving includes writing to the TUN up to the socket of a program here, and sending the way up to the \
     receiver's socket: behind a network card both cost the packet thread less",
];

/// Measures the stages, and adds the model to the report.
pub(super) fn add(report: &mut Report, secs: u32, interrupt: &Interrupt) -> Result<()> {
    let (packet_bytes, costs, hand_over) = stages::of_long_packets(secs, interrupt)?;
    report.add("stages, ns per packet", "", "", costs.sample(packet_bytes));
    for threads in 1..=THREADS {
        let case = format!("{threads:>2}");
        report.add("packet threads, Gbit/s", case, "", row(&costs, hand_over, packet_bytes, threads));
    }
    report.set("ns for a hand-over", format!("{hand_over:.1}"));
    ASSUMPTIONS.iter().for_each(|text| report.note(format!("the model assumes that {text}")));
    Ok(())
}

fn row(costs: &Costs, hand_over: f64, packet_bytes: usize, threads: u32) -> Sample {
    let inbound = costs.of(&[Stage::Receive, Stage::Open, Stage::Coalesce, Stage::TunWrite]);
    let outbound = costs.of(&[Stage::TunRead, Stage::Seal, Stage::Send]);
    let threads = f64::from(threads);
    let foreign = (threads - 1.0) / threads;
    // Bits per nanosecond are Gbit/s.
    let bits = packet_bytes as f64 * 8.0;
    let all_inbound = threads * bits / inbound;
    Sample::default()
        .with(INBOUND, all_inbound)
        .with(ONE_QUEUE, all_inbound.min(bits / costs.of(&[Stage::Send])))
        .with(OUTBOUND, threads * bits / outbound)
        .with(BEGUN_HERE, threads * bits / (outbound + foreign * hand_over))
        .with(FOREIGN, 100.0 * foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_until_one_core_delivers_no_more_and_the_hand_over_costs_its_share() {
        let stages = [100.0, 700.0, 200.0, 50.0, 550.0, 50.0, 150.0];
        let costs = Costs { stages, packets_per_write: 1.0 };
        let of = |threads, figure| row(&costs, 100.0, 1000, threads).get(figure).unwrap();
        assert_eq!([INBOUND, OUTBOUND, BEGUN_HERE].map(|figure| of(1, figure)), [10.0, 8.0, 8.0]);
        assert_eq!([4, 8].map(|threads| of(threads, INBOUND)), [40.0, 80.0]);
        assert_eq!([4, 8].map(|threads| of(threads, ONE_QUEUE)), [40.0, 40.0]);
        assert_eq!((of(4, FOREIGN), of(4, OUTBOUND)), (75.0, 32.0));
        assert!((of(4, BEGUN_HERE) - 4.0 * 8000.0 / 1075.0).abs() < 1e-9);
    }
}
