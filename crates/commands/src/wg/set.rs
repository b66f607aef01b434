//! `weft set`: changes a running interface as the words on the command line say.

use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_tunnel::PublicKey;
use weft_uapi::client;

use crate::args::SetArgs;
use crate::output;
use crate::wg::endpoints;

mod words;

/// Applies the words completely or not at all.
pub fn run(args: &SetArgs) -> Result<(), Error> {
    let (change, warnings) = words::parse(&args.settings, |name| peer_named(&args.interface, name))?;
    for warning in &warnings {
        output::warning(warning);
    }
    Ok(client::set(&args.interface, &endpoints::resolve(change, &args.interface)?)?)
}

/// Returns the key of the peer with this name; `None` if the daemon of the interface knows no names, because
/// it is not weft's.
fn peer_named(interface: &InterfaceName, name: &str) -> Result<Option<PublicKey>, Error> {
    let Some(report) = super::weft_status(interface)? else { return Ok(None) };
    let peer = report.peer(name).map_err(|error| Error::new(Code::Failure, error))?;
    Ok(peer.public_key.parse().ok())
}
