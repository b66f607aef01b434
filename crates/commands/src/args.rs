//! The arguments of the commands.

use clap::Args;

use crate::complete;

mod capture;
mod conf;
mod doctor;
mod peer;
mod set;
mod show;
mod speedtest;
mod status;

pub use capture::CaptureArgs;
pub use conf::{ConfArgs, StripArgs};
pub use doctor::DoctorArgs;
pub use peer::{
    GatewayArgs, PeerAddArgs, PeerArgs, PeerCommand, PeerExtendArgs, PeerListArgs, PeerNameArgs,
    PeerRenameArgs,
};
pub use set::SetArgs;
pub use show::{Field, Part, ShowArgs, ShowconfArgs, Subject};
pub use speedtest::{Directions, SpeedtestArgs};
pub use status::{StatusArgs, TOP_KEYS, TopArgs};

/// The end of a command's help.
pub const EXIT_CODES: &str = "\
Exit codes:
  0   all went well
  1   something failed
  2   the command line is wrong
  77  a permission is missing (root, CAP_NET_ADMIN, or to read the file)
  78  the configuration is wrong, or the interface is up already (up, run)";

/// The arguments of `weft check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  weft check wg0              checks /etc/wireguard/wg0.conf
  weft check ./office.conf --json

Exit codes:
  0   the file is right
  1   the file is right, and on this machine it would not start now, or not work
  2   the command line is wrong
  77  the file may not be read
  78  the configuration is wrong, or the interface is up already (up, run)"))]
pub struct CheckArgs {
    /// A wg-quick configuration file of any name, `-` for standard input, or a name: for the file that the
    /// running interface was brought up from, else /etc/wireguard/NAME.conf.
    #[arg(value_name = "FILE|NAME", add = complete::configured())]
    pub target: String,
    /// Print the result, with errors and warnings, as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `weft save`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Example:
  sudo weft save wg0    after `weft set wg0 …` or `wg set wg0 …`

A file that its owner may not write (chmod a-w) stays as it is, as with `weft
peer`; SaveConfig in the file itself writes it all the same.

{EXIT_CODES}"))]
pub struct SaveArgs {
    /// The interface's name, or the configuration file that names it.
    #[arg(value_name = "NAME|FILE", add = complete::running())]
    pub target: String,
}

/// The arguments of `weft reload`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft reload wg0              after editing its file
  sudo weft reload wg0 --dry-run    prints what would change

Commands (PreUp, PostUp, …) do not run; those for the way down are the new
ones from then on.

{EXIT_CODES}"))]
pub struct ReloadArgs {
    /// The interface's name, for the file that it was brought up from, or another file.
    #[arg(value_name = "NAME|FILE", add = complete::running())]
    pub target: String,
    /// Print what would change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Print the changes and warnings as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}
