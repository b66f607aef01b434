//! `weft reload`: sends the file of an interface to the daemon that runs it.
//!
//! This process reads the file and its key files, because an unprivileged daemon may not be able to.

use weft_config::exit::{Code, Error};
use weft_config::{self as config, LoadError};
use weft_report::control_socket::{Client, Reload, ReloadReport};

use crate::args::ReloadArgs;
use crate::{output, own_file};

/// Checks the file, and asks the daemon to apply it.
///
/// # Errors
/// Errors in the file, and errors of the daemon, after which nothing has changed. [`Code::Permission`] if the
/// daemon refused some of the changes.
pub fn run(args: &ReloadArgs) -> Result<(), Error> {
    let target = own_file::file_of(&args.target)?;
    // Read once: it may be a pipe, or change meanwhile.
    let (file, text) = config::read_text(&target)?;
    let name = config::name_of(&file)?;
    // Errors in the file are reported here, before the daemon is asked for a change.
    match config::parse(&text, &file, name.clone()) {
        // The daemon may have the key as a credential.
        Err(errors) if !errors.lacks_only_keys() => return Err(LoadError::from(errors).into()),
        _ => {}
    }
    let text = config::with_keys_in_place(&text, &file);
    let failed = |error: weft_report::control_socket::ClientError| Error::new(error.exit_code(), error);
    let mut client = Client::connect(&name).map_err(failed)?;
    if client.is_of_runtime_directory() {
        weft_host::refuse_elsewhere(&name, client.server_process())?;
    }
    let file = std::path::absolute(&file).unwrap_or(file);
    let own = client.status().map_err(failed)?.file;
    let another = own.and_then(|own| own_file::warning_of_another(&name, own.as_ref(), &file));
    let within_command = weft_host::is_within_command(&name);
    let reload = Reload { text, file, dry_run: args.dry_run, within_command };
    let mut report = client.reload(&reload).map_err(failed)?;
    report.warnings.splice(..0, another);
    if args.json {
        output::print_json(&report)?;
    } else {
        for warning in &report.warnings {
            output::warning(warning);
        }
        output::print(told(&report).as_bytes())?;
    }
    if report.refused.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::Permission, report.refused.join("\n")))
}

fn told(report: &ReloadReport) -> String {
    if report.steps.is_empty() {
        return "nothing to change\n".to_owned();
    }
    report.steps.iter().map(|step| format!("{step}\n")).collect()
}
