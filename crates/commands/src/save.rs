//! `weft save`: writes the state of a running interface into its file.

use weft_config::exit::{Code, Error};
use weft_host as host;
use weft_ipc::runtime_dir::runtime_dir;
use weft_uapi::client;

use crate::args::SaveArgs;
use crate::own_file::interface_of;

/// Reads the state from the daemon, and writes it into the file that the interface was brought up from.
///
/// # Errors
/// When no daemon of `weft up` answers, when it does not report the private key, or when the file cannot be
/// replaced.
pub fn run(args: &SaveArgs) -> Result<(), Error> {
    let interface = interface_of(&args.target)?;
    let reported = client::get(&interface).map_err(|error| Error::new(error.exit_code(), error))?;
    if reported.state.settings.private_key.is_none() {
        let reason = format!("{interface}: its daemon does not reveal the private key, which the file needs");
        return Err(Error::new(Code::Failure, reason));
    }
    let file = host::save_running(&runtime_dir(), &interface, &reported.state)?;
    tracing::info!(%interface, file = %file.display(), "the state of the interface is saved");
    Ok(())
}
