//! The commands on systems without network namespaces.

use anyhow::bail;

use crate::cli::Command;

/// Returns an error: nothing can be measured.
pub(crate) fn run(_: &Command) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
