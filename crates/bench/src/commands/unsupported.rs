//! Where there are no network namespaces.

use anyhow::bail;

use crate::cli::Command;

/// Measures nothing.
pub(crate) fn run(_: &Command) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
