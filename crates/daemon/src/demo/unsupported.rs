//! `weft demo` on platforms without network namespaces.

use weft_config::exit::{Code, Error};

use crate::cli::DemoArgs;

/// Reports that the demo needs Linux.
///
/// # Errors
/// Always.
pub fn run(_: &DemoArgs) -> Result<(), Error> {
    Err(Error::new(Code::Failure, "`weft demo` needs the network namespaces of Linux"))
}
