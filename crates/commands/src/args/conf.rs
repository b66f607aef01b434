//! The arguments of `weft setconf`, `addconf`, `syncconf` and `strip`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use weft_config::InterfaceName;

use super::EXIT_CODES;
use crate::complete;
use crate::own_file::interface_of;

/// The arguments of `weft setconf`, `weft addconf` and `weft syncconf`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ConfArgs {
    /// The interface, or its configuration file.
    #[arg(value_name = "NAME|FILE", value_parser = interface_of, add = complete::running())]
    pub interface: InterfaceName,
    /// The file; `-` or /dev/stdin: standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// The arguments of `weft strip`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Example:
  weft strip wg0 | sudo weft setconf wg0 -

{EXIT_CODES}"))]
pub struct StripArgs {
    /// A wg-quick configuration file, or a name: for the file that the running interface was brought up from,
    /// else /etc/wireguard/NAME.conf.
    #[arg(value_name = "FILE|NAME", add = complete::configured())]
    pub target: String,
}
