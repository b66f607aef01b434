//! `weft-bench floods` where there are no network namespaces: its arguments. `commands/unsupported.rs`
//! answers.

use clap::Args;

/// The arguments of `weft-bench floods`: any, so that the answer is why there is none.
#[derive(Clone, Debug, Args)]
pub(crate) struct FloodsArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

/// Nothing to say.
pub(crate) fn help() -> String {
    String::new()
}
