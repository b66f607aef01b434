//! `weft set`: changes a running interface as its words say.

use weft_config::exit::Error;
use weft_uapi::client;

use crate::args::SetArgs;
use crate::output;

mod words;

/// Applies what the words say, all of it or nothing.
pub fn run(args: &SetArgs) -> Result<(), Error> {
    let parsed = words::parse(&args.settings)?;
    for warning in &parsed.warnings {
        output::warning(warning);
    }
    let change = parsed.draft.resolve()?;
    Ok(client::set(&args.interface, &change)?)
}
