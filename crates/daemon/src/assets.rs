//! What a package brings beside the program: completions for shells, and manual pages. Both are made from the command line
//! itself, so that they never say anything else.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::CommandFactory as _;

use crate::cli::Cli;
use crate::cli::assets::{CompletionsArgs, ManArgs};
use crate::exit::{Code, Error};
use crate::output;

/// Why the manual pages could not be written.
#[derive(Debug, thiserror::Error)]
enum AssetError {
    #[error("{}: cannot write the manual pages: {error}", .directory.display())]
    Write { directory: PathBuf, error: io::Error },
}

impl From<AssetError> for Error {
    fn from(error: AssetError) -> Self {
        let AssetError::Write { error: reason, .. } = &error;
        let permission = reason.kind() == io::ErrorKind::PermissionDenied;
        Self::new(if permission { Code::Permission } else { Code::Failure }, error)
    }
}

/// Prints the completion script of a shell.
pub fn completions(args: &CompletionsArgs) -> Result<(), Error> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    output::print(&script)
}

/// Prints the manual page, or writes it and those of the commands into a directory.
pub fn man(args: &ManArgs) -> Result<(), Error> {
    let Some(directory) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return output::print(&page);
    };
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| AssetError::Write { directory: directory.clone(), error }.into())
}
