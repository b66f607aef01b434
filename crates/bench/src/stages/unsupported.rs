//! `weft-bench stages` where there are no network namespaces.

use anyhow::bail;

use self::args::StagesArgs;

pub(crate) mod args;

/// Measures nothing.
pub(crate) fn run(_: &StagesArgs) -> anyhow::Result<()> {
    bail!("weft-bench needs the network namespaces of Linux")
}
