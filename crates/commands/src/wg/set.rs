//! `weft set`: changes a running interface as the words on the command line say.

use weft_config::exit::Error;
use weft_uapi::client;

use crate::args::SetArgs;
use crate::output;
use crate::wg::endpoints;

mod words;

/// Applies the words completely or not at all.
pub fn run(args: &SetArgs) -> Result<(), Error> {
    let (change, warnings) = words::parse(&args.settings)?;
    for warning in &warnings {
        output::warning(warning);
    }
    Ok(client::set(&args.interface, &endpoints::resolve(change, &args.interface)?)?)
}
