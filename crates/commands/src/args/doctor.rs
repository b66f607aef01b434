//! The arguments of `weft doctor`.

use clap::Args;

use crate::complete;

/// The arguments of `weft doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  sudo weft doctor              what the machine has for weft
  sudo weft doctor wg0          and what /etc/wireguard/wg0.conf asks of it
  sudo weft doctor ./office.conf --json

Exit codes:
  0   there is no problem
  1   there is a problem
  2   the command line is wrong
  77  the configuration may not be read
  78  the configuration is wrong")]
pub struct DoctorArgs {
    /// A wg-quick configuration file, or a name: for the file that the running interface was brought up from,
    /// else /etc/wireguard/NAME.conf; without it the machine alone.
    #[arg(value_name = "NAME|FILE", add = complete::configured())]
    pub target: Option<String>,
    /// Print the findings as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}
