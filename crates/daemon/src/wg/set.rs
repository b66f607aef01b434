//! `weft set`: changes a running interface as its words say.

use weft_config::exit::Error;

use crate::cli::set::SetArgs;
use crate::output;
use crate::uapi_client;

mod words;

/// Applies what the words say, all of it or nothing.
pub fn run(args: &SetArgs) -> Result<(), Error> {
    let parsed = words::parse(&args.settings)?;
    for warning in &parsed.warnings {
        output::warning(warning);
    }
    let change = parsed.draft.resolve()?;
    Ok(uapi_client::set(&args.interface, &change)?)
}
