//! `weft-bench rtt` where there are no network namespaces.

use anyhow::bail;
use clap::Args;

/// The arguments of `weft-bench rtt`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RttArgs {}

/// Measures nothing.
pub(crate) fn run(_: &RttArgs) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
