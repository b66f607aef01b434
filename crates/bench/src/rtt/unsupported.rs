//! `weft-bench rtt` on systems without network namespaces: only its arguments. `commands/unsupported.rs`
//! reports the error.

use clap::Args;

/// The arguments of `weft-bench rtt`: any, so that the answer is why there is none.
#[derive(Clone, Debug, Args)]
pub(crate) struct RttArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}
