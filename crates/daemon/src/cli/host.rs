//! The arguments of the commands that set the system up around an interface (`up`) and undo that setup
//! (`down`).

use clap::{Args, ValueEnum};
use weft_commands::args::EXIT_CODES;
use weft_commands::complete;
use weft_config as config;

/// How `weft up` changes the system around the interface.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct HostArgs {
    /// Go to the background once the interface is up; `weft down` ends it. Its later log is kept only if
    /// standard error is a file.
    #[arg(short, long, conflicts_with = "dry_run")]
    pub daemon: bool,
    /// Print what would be done, and do nothing. Ends with the exit code of the start, as far as it is known
    /// before: 77 without the permission.
    #[arg(long)]
    pub dry_run: bool,
    /// Let nothing leave except through the tunnel: `on`, or `allow-local` to spare local networks. Counts
    /// instead of the file's `# weft: KillSwitch = …`, and holds until `weft down`, also when weft crashes.
    #[arg(long, value_name = "MODE", value_enum, num_args = 0..=1, default_missing_value = "on", require_equals = true)]
    pub kill_switch: Option<KillSwitch>,
}

/// The traffic that a kill switch lets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KillSwitch {
    /// All: there is no kill switch.
    Off,
    /// The tunnel and DHCP alone.
    On,
    /// Local networks too.
    AllowLocal,
}

impl From<KillSwitch> for config::KillSwitch {
    fn from(mode: KillSwitch) -> Self {
        match mode {
            KillSwitch::Off => Self::Off,
            KillSwitch::On => Self::On,
            KillSwitch::AllowLocal => Self::AllowLocal,
        }
    }
}

/// The arguments of `weft down`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
Examples:
  sudo weft down wg0              ends its daemon, or removes what a crash left
  sudo weft down ./office.conf    the interface `office`
  weft down wg0 --dry-run         prints what would be taken back

{EXIT_CODES}"))]
pub struct DownArgs {
    /// The interface's name, or the configuration file that names it.
    #[arg(value_name = "NAME|FILE", add = complete::running())]
    pub target: String,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Keep the kill switch of a daemon that crashed, do not end a running daemon, and succeed if nothing is
    /// left to take down. For ExecStopPost= of a service that is started again.
    #[arg(long)]
    pub keep_kill_switch: bool,
}
