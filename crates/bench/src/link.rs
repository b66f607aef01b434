//! `weft-bench link`: measures an emulated link and compares it with its specification.

mod measure;
mod report;

use anyhow::{Context as _, Result};
use clap::Args;
use weft_lab::Namespace;
use weft_lab::emulator::{Emulator, LinkSpec};
use weft_lab::link::LinkOptions;

use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::topology;

/// The arguments of `weft-bench link`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LinkArgs {
    /// The link, as keys and values with commas between them: rate=500mbit (whole Ethernet frames; without it no
    /// limit), delay=10ms (one way), queue=bdp|64kib|100p|20ms (drop-tail; bdp is rate × 2 × delay), loss=0.1%,
    /// reorder=0.5% (so many frames come late) with reorder-by=1ms, seed=1.
    #[arg(value_name = "SPEC")]
    pub(crate) spec: LinkSpec,
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub(crate) secs: u32,
    /// Print everything as JSON on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The address of the near end.
pub(crate) const NEAR: &str = "192.0.2.1";
/// The address of the far end.
pub(crate) const FAR: &str = "192.0.2.2";

/// Two namespaces with an emulated link between them.
#[derive(Debug)]
pub(crate) struct Lab {
    // Fields drop in this order.
    pub(crate) emulator: Emulator,
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
}

impl Lab {
    /// Creates both namespaces and the link, with TCP buffers large enough not to limit a measurement.
    pub(crate) fn new(spec: &LinkSpec) -> Result<Self> {
        let (near, far) = (topology::namespace("near")?, topology::namespace("far")?);
        for namespace in [&near, &far] {
            lift_tcp_limits(namespace)?;
        }
        let options = LinkOptions {
            addresses_a: vec![format!("{NEAR}/24").parse()?],
            addresses_b: vec![format!("{FAR}/24").parse()?],
            ..LinkOptions::default()
        };
        let emulator = Emulator::between(&near, &far, &options, spec).context("cannot emulate the link")?;
        Ok(Self { emulator, near, far })
    }
}

/// Raises the TCP buffer limits to several bandwidth-delay products, and disables the metrics cache, so that
/// a connection is independent of earlier ones.
pub(crate) fn lift_tcp_limits(namespace: &Namespace) -> Result<()> {
    /// Four times the bytes in flight and queued at 500 Mbit/s and 100 ms; a receiver counts the memory of
    /// its buffers, about twice their contents.
    const MOST: &str = "67108864";
    for name in ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"] {
        let sizes = namespace.sysctl(name)?;
        let mut sizes: Vec<&str> = sizes.split_whitespace().collect();
        if let Some(most) = sizes.last_mut() {
            *most = MOST;
        }
        namespace.set_sysctl(name, &sizes.join(" "))?;
    }
    Ok(namespace.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?)
}

/// Measures and prints the report.
pub(crate) fn run(args: &LinkArgs) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(0);
    let lab = Lab::new(&args.spec)?;
    let report = measure::all(&lab, args, &progress, &interrupt)?;
    crate::report::print(&report, args.json, report::text)
}
