//! `weft demo` where there are no network namespaces.

use crate::cli::DemoArgs;
use crate::exit::{Code, Error};

/// Says that the demo needs Linux.
///
/// # Errors
/// Always.
pub fn run(_: &DemoArgs) -> Result<(), Error> {
    Err(Error::new(Code::Failure, "`weft demo` needs the network namespaces of Linux"))
}
