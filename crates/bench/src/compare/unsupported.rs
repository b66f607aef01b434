//! `weft-bench compare` where there are no network namespaces.

use anyhow::bail;

use crate::cli::CompareArgs;

/// Measures nothing.
pub(crate) fn run(_: &CompareArgs) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
