//! `weft demo`.

use crate::cli::DemoArgs;
use crate::exit::{Code, Error};

/// Runs two tunnel ends on this machine.
pub fn run(_: &DemoArgs) -> Result<(), Error> {
    Err(Error::new(Code::Failure, "`weft demo` is not there yet"))
}
