//! `weft-bench rtt` where there are no network namespaces.

use anyhow::bail;
use clap::Args;

/// The arguments of `weft-bench rtt`: any, so that the answer is why there is none.
#[derive(Clone, Debug, Args)]
pub(crate) struct RttArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

/// Measures nothing.
pub(crate) fn run(_: &RttArgs) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
