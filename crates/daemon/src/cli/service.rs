//! The arguments of `weft service`.

use clap::{Args, Subcommand};
use weft_commands::args::EXIT_CODES;
use weft_commands::complete;

/// The arguments of `weft service`.
#[derive(Clone, Debug, Args)]
#[command(disable_help_subcommand = true, after_help = format!("\
Examples:
  sudo weft service install utun7          now and at every start of the machine
  sudo weft service install ./tun7.conf    runs the file where it is
  weft service install wg0                 on Windows, as an administrator
  weft service status utun7
  sudo weft service remove utun7

{EXIT_CODES}"))]
pub struct ServiceArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ServiceAction,
}

/// What to do with a service.
#[derive(Clone, Debug, Subcommand)]
pub enum ServiceAction {
    /// Run an interface now and at every start of the machine.
    ///
    /// The same again changes nothing; other arguments replace the service and restart it.
    Install(ServiceTarget),
    /// Take the interface of a service down, and remove the service; its log stays.
    Remove(ServiceTarget),
    /// Show whether a service is installed and running; exit code 0 if it runs.
    Status(ServiceStatusArgs),
}

/// The interface of a service.
#[derive(Clone, Debug, Args)]
pub struct ServiceTarget {
    /// The interface's name, for /etc/wireguard/NAME.conf (Windows: %ProgramData%\weft\NAME.conf), or its
    /// configuration file.
    #[arg(value_name = "NAME|FILE", add = complete::configured())]
    pub target: String,
}

/// The arguments of `weft service status`.
#[derive(Clone, Debug, Args)]
pub struct ServiceStatusArgs {
    /// The interface's name, or its configuration file.
    #[arg(value_name = "NAME|FILE", add = complete::configured())]
    pub target: String,
    /// Print the state as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}
