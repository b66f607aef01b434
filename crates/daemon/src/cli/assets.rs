//! The arguments of `weft completions` and `weft man`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;

/// The arguments of `weft completions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  weft completions bash > /usr/share/bash-completion/completions/weft
  weft completions zsh > /usr/share/zsh/site-functions/_weft
  weft completions fish > /usr/share/fish/vendor_completions.d/weft.fish")]
pub struct CompletionsArgs {
    /// The shell that the completions are for.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The arguments of `weft man`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  weft man | man -l -
  weft man --out ./man")]
pub struct ManArgs {
    /// Write weft.1, a page for each command, and weft.conf.5 into this directory, which is made if need be;
    /// without it weft.1 goes to standard output.
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}
