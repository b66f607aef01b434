//! `weft reload`: sends the file of an interface to the daemon that runs it.
//!
//! This process reads the file and its key files, because an unprivileged daemon may not be able to.

use std::path::Path;

use weft_config::exit::{Code, Error};
use weft_config::{self as config, InterfaceName, LoadError};
use weft_report::control_socket::{Client, ClientError, Reload, ReloadReport};

use crate::args::ReloadArgs;
use crate::{output, own_file, running};

/// Checks the file, and asks the daemon to apply it.
///
/// # Errors
/// Errors in the file, and errors of the daemon, after which nothing has changed, unless its answer was lost.
/// [`Code::Failure`] if some of the changes could not be made.
pub fn run(args: &ReloadArgs) -> Result<(), Error> {
    // Read once: it may be a pipe, or change meanwhile.
    let source = config::Source::read(&own_file::file_of(&args.target)?)?;
    // Of an interface with another name than its file.
    let name = own_file::interface_of(&args.target)?;
    // Errors in the file are reported here, before the daemon is asked for a change.
    let mut told = match source.parse() {
        // The daemon may have the key as a credential.
        Err(LoadError::Config(errors)) if errors.lacks_only_keys() => errors.warnings,
        parsed => parsed?.warnings,
    };
    // The daemon sees the text alone, and warns of that.
    told.retain(|warning| warning.notice.is_about_access());
    let mut client = Client::connect(&name).inspect_err(|_| running::warn_of_leftovers(Some(&name)))?;
    refuse_elsewhere(&client)?;
    let own = client.status()?.file;
    let absolute = std::path::absolute(&source.file).unwrap_or_else(|_| source.file.clone());
    let another = own.and_then(|own| own_file::warning_of_another(&name, own.as_ref(), &absolute));
    let sent = send(&mut client, &absolute, &source.text, args.dry_run);
    let mut report = sent.map_err(|error| match error.is_answer() || args.dry_run {
        true => error.into(),
        false => Error::new(error.exit_code(), format!("{error}; {}", unknown(&name, &absolute))),
    })?;
    report.warnings.splice(..0, told.iter().map(ToString::to_string).chain(another));
    if args.json {
        output::print_json(&report)?;
    } else {
        for warning in &report.warnings {
            output::warning(warning);
        }
        output::print(steps_of(&report).as_bytes())?;
    }
    if report.refused.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::Failure, report.refused.join("\n")))
}

/// Refuses an interface of the same name in another network namespace.
pub(crate) fn refuse_elsewhere(client: &Client) -> Result<(), Error> {
    if client.is_of_runtime_directory() {
        weft_host::refuse_elsewhere(client.name(), client.server_process())?;
    }
    Ok(())
}

/// Asks the daemon to apply the text of a file.
pub(crate) fn send(
    client: &mut Client,
    file: &Path,
    text: &str,
    dry_run: bool,
) -> Result<ReloadReport, ClientError> {
    let reload = Reload { dry_run, ..request(client.name(), file, text) };
    client.reload(&reload)
}

/// Returns what asks a daemon to apply the text of a file.
pub(crate) fn request(interface: &InterfaceName, file: &Path, text: &str) -> Reload {
    Reload {
        text: config::with_keys_in_place(text, file),
        file: std::path::absolute(file).unwrap_or_else(|_| file.to_owned()),
        dry_run: false,
        within_command: weft_host::is_within_command(interface),
        is_saved: false,
    }
}

/// Returns what to say if the answer of a daemon was lost: it may have applied the file.
pub(crate) fn unknown(name: &InterfaceName, file: &Path) -> String {
    format!(
        "whether {name} has applied the change is not known: `weft reload --dry-run {}` says what still differs",
        file.display()
    )
}

fn steps_of(report: &ReloadReport) -> String {
    if report.steps.is_empty() {
        return "nothing to change\n".to_owned();
    }
    report.steps.iter().map(|step| format!("{step}\n")).collect()
}
