//! `weft-bench stages`: what each stage of the packet path takes for a packet: the CPU time of two daemons
//! with a steady flow between them, divided by the clocks of their packet threads.
//!
//! The flow leaves most of the machine idle, so that a stage seldom waits for a core. A system call's kernel
//! work counts for the stage: sending includes the veth up to the other socket, writing includes the receive
//! path up to the program's socket.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::Amount;
use weft_report::StatusReport;

use crate::args::TimeArgs;
use crate::implementation::{Daemon, Implementation, Side};
use crate::interrupt::Interrupt;
use crate::report::{Figure, Report, Sample};
use crate::site::{self, MTU};
use crate::status::Between;
use crate::topology::{NEAR, Tunnel};

/// Traffic that does not count, at the beginning.
const WARM_UP: Duration = Duration::from_millis(500);
const HEADERS: usize = 28;

/// The stages of the near daemon, and those of the far one, by their names in the status.
const STAGES: [[(&str, Figure); 3]; 2] = [
    [
        ("read", Figure::new("tun_read_ns", "TUN read", 0)),
        ("encrypt", Figure::new("split_and_encrypt_ns", "split and encrypt", 0)),
        ("send", Figure::new("udp_send_ns", "UDP send (and the veth)", 0)),
    ],
    [
        ("receive", Figure::new("udp_receive_ns", "UDP receive", 0)),
        ("decrypt", Figure::new("decrypt_ns", "decrypt", 0)),
        ("write", Figure::new("coalesce_and_write_ns", "coalesce and TUN write", 0)),
    ],
];

#[derive(Clone, Debug, Args)]
pub(crate) struct StagesArgs {
    #[command(flatten)]
    pub(crate) times: TimeArgs,
}

struct Shape {
    name: &'static str,
    /// Bytes of each IP packet.
    packet: usize,
    /// Packets in each send of the program: a number above 1 makes a super-packet.
    segments: u16,
    /// Packets a second.
    rate: u32,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "1420 bytes, in super-packets of 45", packet: 1420, segments: 45, rate: 90_000 },
    Shape { name: "64 bytes, one by one", packet: 64, segments: 1, rate: 50_000 },
];

pub(crate) fn run(args: &StagesArgs, json: bool) -> Result<()> {
    site::check_permission()?;
    let side = Side::new("weft", Implementation::weft(&["--tun-threads=0".to_owned()])?);
    let interrupt = Interrupt::watch()?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report = Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("MTU", &MTU)])?;
    let mut all_rounds = || -> Result<()> {
        for _ in 0..rounds {
            let tunnel = Tunnel::start(&side, None, &interrupt)?;
            for shape in &SHAPES {
                let sample = measure(shape, &tunnel, secs, &interrupt);
                report.attempt("ns per packet", shape.name, "", sample)?;
            }
        }
        Ok(())
    };
    let ended = all_rounds();
    report.finish(ended, json)
}

/// Sends packets for `secs` seconds, and divides the time of each stage by them.
fn measure(shape: &Shape, tunnel: &Tunnel, secs: u32, interrupt: &Interrupt) -> Result<Sample> {
    let options = NumberedOptions {
        datagram_bytes: shape.packet - HEADERS,
        datagrams_per_second: shape.rate,
        burst: shape.segments,
        segmentation_offload: shape.segments > 1,
        amount: Amount::Count(u64::MAX),
        ..NumberedOptions::default()
    };
    let flow = Numbered::start(&tunnel.near, NEAR.into(), &tunnel.far, tunnel.server, options)?;
    let status = || -> Result<Vec<StatusReport>> {
        let reports = tunnel.daemons.iter().map(Daemon::status).collect::<Option<_>>();
        reports.context("a daemon does not answer")
    };
    let watch = || -> Result<_> {
        interrupt.sleep(WARM_UP)?;
        let (then, used) = (status()?, tunnel.usages()?);
        interrupt.sleep(Duration::from_secs(secs.into()))?;
        let (now, usages) = (status()?, tunnel.usages()?);
        let cpu = usages.into_iter().zip(used).map(|(now, then)| now.since(then).cpu.as_nanos() as f64);
        Ok((then, now, cpu.collect::<Vec<_>>()))
    };
    let watched = watch();
    flow.stop();
    flow.finish();
    let (then, now, cpu) = watched?;
    let mut ends = then.iter().zip(&now).map(|(then, now)| Between { then, now });
    let (near, far) = ends.next().zip(ends.next()).context("a tunnel has two daemons")?;
    let packets = [near.grown(|near| near.tunnel.sealed), far.grown(|far| far.tunnel.opened)];
    ensure!(packets.iter().all(|packets| *packets > 0.0), "nothing was carried");
    let (mut sample, mut all) = (Sample::default(), 0.0);
    for (((end, packets), cpu), stages) in [near, far].into_iter().zip(packets).zip(cpu).zip(STAGES) {
        for (stage, figure) in stages {
            let ns = end.share_of(stage) * cpu / packets;
            sample = sample.with(figure, ns);
            all += ns;
        }
    }
    let writes = far.grown(|far| far.tun.packets_written);
    Ok(sample.with_all([
        ("all_ns", "all of them", 0, all),
        ("gbit_per_second", "Gbit/s, one core for both ends", 2, shape.packet as f64 * 8.0 / all),
        ("packets_per_write", "packets in a write", 1, far.grown(|far| far.tun.segments_written) / writes),
    ]))
}
