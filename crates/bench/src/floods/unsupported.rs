//! `weft-bench floods` on systems without network namespaces: only its arguments. `commands/unsupported.rs`
//! reports the error.

use clap::Args;

/// The arguments of `weft-bench floods`: any, so that the answer is why there is none.
#[derive(Clone, Debug, Args)]
pub(crate) struct FloodsArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

/// Returns an empty help text.
pub(crate) fn help() -> String {
    String::new()
}
