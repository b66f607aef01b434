//! Shell completions and manual pages for packages. Both come from the definition of the command line, so
//! that they always agree with it. A shell runs weft to complete a word, and weft knows the names.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::roff::{Roff, roman};
use weft_commands::output;
use weft_config::exit::{Code, Error};
use weft_ipc::OutputFile;

use crate::cli::Cli;
use crate::cli::assets::{CompletionsArgs, ManArgs};

mod pages;

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

/// The variable with which a shell's script asks weft for the words that may come next.
pub const COMPLETE: &str = "WEFT_COMPLETE";

/// Called by the file in zsh's function path, which defines it, at the first completion too.
const ZSH_FIRST: &str = "[ \"$funcstack[1]\" != _weft ] || _clap_dynamic_completer_weft \"$@\"\n";

/// Returns the command line for a shell that completes a word of it. Options are for a word that begins as
/// one: they would stand between the names.
pub fn to_complete() -> clap::Command {
    let line: Vec<OsString> = env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let index = env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
    let word = line.get(index.unwrap_or(line.len().saturating_sub(1)));
    let is_option = word.is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
    let mut command = Cli::command();
    command.build();
    if is_option { command } else { without_options(command) }
}

fn without_options(command: clap::Command) -> clap::Command {
    let hide = |argument: clap::Arg| if argument.is_positional() { argument } else { argument.hide(true) };
    command.mut_args(hide).mut_subcommands(without_options)
}

/// Prints the completion script of a shell.
pub fn completions(args: &CompletionsArgs) -> Result<(), Error> {
    let mut script = Vec::new();
    let name = args.shell.to_string();
    if let Some(shell) = Shells::builtins().completer(&name) {
        let written = shell.write_registration(COMPLETE, "weft", "weft", "weft", &mut script);
        written.map_err(|error| Error::new(Code::Failure, error))?;
    }
    if args.shell == Shell::Zsh {
        script.extend_from_slice(ZSH_FIRST.as_bytes());
    }
    output::print(&script)
}

/// Prints the manual page of `weft`, or writes it and a page for each command into a directory.
pub fn man(args: &ManArgs) -> Result<(), Error> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.out else { return output::print(&page(&root)?) };
    fs::create_dir_all(directory)
        .and_then(|()| write_all(directory, &root))
        .map_err(|error| AssetError::Write { directory: directory.clone(), error }.into())
}

fn write_all(directory: &Path, root: &clap::Command) -> io::Result<()> {
    write_pages(directory, root)?;
    let page = pages::of_configuration(root.get_version().unwrap_or_default());
    OutputFile::write_whole(&directory.join("weft.conf.5"), 0o666, page.render().as_bytes())
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
    // A page has what only `--help` shows.
    let whole = command.clone().mut_args(|argument| argument.hide_short_help(false));
    let man =
        clap_mangen::Man::new(whole).title(name_of(command)).source(format!("weft {version}")).manual("weft");
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
    if name_of(command) == "weft" {
        pages::add_to_weft(&mut rest);
    }
    rest.control("SH", ["SEE ALSO"]).text([roman("weft(1), weft.conf(5), wg(8), wg-quick(8)")]);
    rest.to_writer(&mut page)?;
    Ok(page)
}
