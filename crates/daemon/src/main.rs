//! The `weft` binary: reads the command line, starts the log, and runs one command.
//!
//! No thread is started here: `weft demo` may need a user namespace, which only a process with one thread can enter.

use std::process::ExitCode;

use clap::Parser as _;
use weft::cli::{Cli, Command};
use weft::exit::{Code, Error};
use weft::{check, demo, doctor, keys, logging, output, status, top, up};

fn main() -> ExitCode {
    let code = match run(Cli::parse()) {
        Ok(()) => Code::Success,
        Err(error) => {
            output::error(&error);
            error.code()
        }
    };
    code.into()
}

fn run(cli: Cli) -> Result<(), Error> {
    // These show tables of their own, which warnings about socket buffers and the like would tear.
    let shows_table = matches!(cli.command, Command::Demo(_) | Command::Top(_) | Command::Doctor(_));
    let level = if shows_table { "error" } else { "info" };
    logging::init(cli.log.as_deref(), level, cli.log_format)
        .map_err(|error| Error::new(Code::Usage, error))?;
    match cli.command {
        Command::Up(args) => up::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Genkey => keys::genkey(),
        Command::Genpsk => keys::genpsk(),
        Command::Pubkey => keys::pubkey(),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
    }
}
