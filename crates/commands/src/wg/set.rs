//! `weft set`: changes a running interface as the words on the command line say.

use weft_config::exit::Error;
use weft_uapi::client;

use crate::args::SetArgs;
use crate::output;

mod words;

/// Applies the words completely or not at all.
pub fn run(args: &SetArgs) -> Result<(), Error> {
    let parsed = words::parse(&args.settings)?;
    for warning in &parsed.warnings {
        output::warning(warning);
    }
    let change = parsed.draft.resolve()?;
    Ok(client::set(&args.interface, &change)?)
}
