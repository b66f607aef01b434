//! `weft reload`: hands the file of an interface to the daemon that runs it.
//!
//! The file is read here, and the files of its keys: a daemon without privileges may not be able to.

use weft_config::exit::{Code, Error};
use weft_config::{self as config, LoadError};
use weft_report::control_socket::{Client, Reload, ReloadReport};

use crate::args::ReloadArgs;
use crate::output;

/// Checks the file, and has the daemon make the interface what it says.
///
/// # Errors
/// What is wrong with the file, and what the daemon answers: nothing has changed then.
pub fn run(args: &ReloadArgs) -> Result<(), Error> {
    // What is wrong is said here, before anybody is asked.
    let name = match config::load(&args.target) {
        Ok(parsed) => parsed.config.interface.name,
        // The daemon may have it as a credential.
        Err(LoadError::Config(errors)) if errors.lacks_only_keys() => {
            config::name_of(&config::path_of(&args.target))?
        }
        Err(error) => return Err(error.into()),
    };
    let (file, text) = config::read_text(&args.target)?;
    let text = config::with_keys_in_place(&text, &file);
    let failed = |error: weft_report::control_socket::ClientError| Error::new(error.exit_code(), error);
    let mut client = Client::connect(&name).map_err(failed)?;
    let file = std::path::absolute(&file).unwrap_or(file);
    let report = client.reload(&Reload { text, file, dry_run: args.dry_run }).map_err(failed)?;
    if args.json {
        let mut text =
            serde_json::to_vec_pretty(&report).map_err(|error| Error::new(Code::Failure, error))?;
        text.push(b'\n');
        output::print(&text)?;
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
