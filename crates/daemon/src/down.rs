//! `weft down`: takes an interface down from outside.

use crate::cli::DownArgs;
use crate::config::{InterfaceName, LoadError, name_of, path_of};
use crate::exit::Error;
use crate::host::{self, Down, HostError, Keep};
use crate::output;

/// Ends the daemon that runs the interface, or takes back what one left behind.
///
/// # Errors
/// Those of [`HostError`].
pub fn run(args: &DownArgs) -> Result<(), Error> {
    let interface = interface_of(&args.target)?;
    let directory = host::directory();
    if args.dry_run {
        return output::print(host::told_down(&directory, &interface)?.as_bytes());
    }
    let keep = if args.keep_kill_switch { Keep::KillSwitch } else { Keep::Nothing };
    let down = match host::down(&directory, &interface, keep) {
        Err(HostError::NotUp { .. }) if args.keep_kill_switch => return Ok(()),
        down => down?,
    };
    match down {
        Down::Ended => tracing::info!(%interface, "interface is down"),
        Down::CleanedUp => tracing::info!(%interface, "what a daemon had left behind is taken back"),
    }
    Ok(())
}

/// The file need not be there any more.
fn interface_of(target: &str) -> Result<InterfaceName, LoadError> {
    name_of(&path_of(target))
}
