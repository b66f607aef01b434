//! `weft-bench link` where there are no network namespaces.

use anyhow::bail;
use clap::Args;

/// The arguments of `weft-bench link`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LinkArgs {
    /// The link to emulate.
    spec: Vec<String>,
}

/// Measures nothing.
pub(crate) fn run(_: &LinkArgs) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
