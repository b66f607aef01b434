//! Generates shell completions and manual pages for packages. Both come from the definition of the command
//! line, so that they always agree with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_mangen::roff::{Roff, roman};
use weft_commands::output;
use weft_config::exit::{Code, Error};
use weft_ipc::OutputFile;

use crate::cli::Cli;
use crate::cli::assets::{CompletionsArgs, ManArgs};

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

/// Prints the manual page of `weft`, or writes it and a page for each command into a directory.
pub fn man(args: &ManArgs) -> Result<(), Error> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.out else { return output::print(&page(&root)?) };
    fs::create_dir_all(directory)
        .and_then(|()| write_pages(directory, &root))
        .map_err(|error| AssetError::Write { directory: directory.clone(), error }.into())
}

/// Writes the pages of a command and of the commands below it.
fn write_pages(directory: &Path, command: &clap::Command) -> io::Result<()> {
    let path = directory.join(format!("{}.1", name_of(command)));
    OutputFile::write_whole(&path, 0o666, &page(command)?)?;
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| write_pages(directory, command))
}

/// Returns `weft`, `weft-COMMAND` or `weft-COMMAND-COMMAND`.
fn name_of(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let version = command.get_version().unwrap_or_default();
    let man = clap_mangen::Man::new(command.clone())
        .title(name_of(command))
        .source(format!("weft {version}"))
        .manual("weft");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    // Examples and tables are formatted already.
    let mut rest = Roff::new();
    if let Some(help) = command.get_after_help() {
        rest.control("SH", ["DETAILS"]).control("nf", []);
        for line in help.to_string().lines() {
            rest.text([roman(line)]);
        }
        rest.control("fi", []);
    }
    rest.control("SH", ["SEE ALSO"]).text([roman("weft(1), wg(8), wg-quick(8)")]);
    rest.to_writer(&mut page)?;
    Ok(page)
}
