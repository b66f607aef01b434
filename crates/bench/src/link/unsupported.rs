//! `weft-bench link` on systems without network namespaces: only its arguments. `commands/unsupported.rs`
//! reports the error.

use clap::Args;

/// An emulated link, which is not parsed here.
pub(crate) type Spec = String;

/// The arguments of `weft-bench link`: any, so that the answer is why there is none.
#[derive(Clone, Debug, Args)]
pub(crate) struct LinkArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}
