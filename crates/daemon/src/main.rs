//! The `weft` binary: reads the command line, starts the log, and runs one command.
//!
//! No thread is started here: `weft demo` may need a user namespace, and only a single-threaded process can
//! enter a user namespace.

use std::process::ExitCode;

use clap::Parser as _;
use clap_complete::CompleteEnv;
use weft::cli::drop_in::{Caller, command_line, with_suggestion};
use weft::cli::{Cli, Command};
use weft::wiping_allocator::{self, WipingAllocator};
use weft::{
    assets, cipher, demo, down, drop_in, exec, logging, proxy, service, service_manager, threads, up,
};
use weft_commands::{capture, check, doctor, keys, output, peer, reload, save, speedtest, status, top, wg};
use weft_config::exit::{Code, Error};

#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator;

fn main() -> ExitCode {
    wiping_allocator::keep_little();
    // Ends the process if a shell asks.
    CompleteEnv::with_factory(assets::to_complete).var(assets::COMPLETE).complete();
    #[cfg(unix)]
    weft_commands::signals::hear_of_children();
    let arguments = command_line(std::env::args_os(), &Caller::of_this_process());
    let mut cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => with_suggestion(error, &arguments).exit(),
        Err(help) => return ended(output::print_styled(&help.render().ansi().to_string())).into(),
    };
    match cli.service.take() {
        Some(interface) => service_manager::host(&interface, move |log| run_to_end(cli, log)).into(),
        None => match start_log(&cli, None) {
            Ok(()) if let Err(error) = prepare(&cli.command) => ended(Err(error)).into(),
            // Its exit code is that of its command.
            Ok(()) if let Command::Exec(args) = &cli.command => exec::run(args),
            started => ended(started.and_then(|()| run(cli.command))).into(),
        },
    }
}

/// Checks that threads can be started, for the commands that need them.
fn threads_for(command: &Command) -> Result<(), Error> {
    match command {
        Command::Up(_) | Command::Run(_) | Command::Exec(_) | Command::Proxy(_) | Command::Demo(_) => {
            threads::check()
        }
        Command::Top(_) | Command::Capture(_) | Command::Speedtest(_) => threads::check(),
        _ => Ok(()),
    }
}

/// Does what comes before the first thread.
fn prepare(command: &Command) -> Result<(), Error> {
    threads_for(command)?;
    match command {
        Command::Up(_) | Command::Run(_) | Command::Exec(_) | Command::Proxy(_) | Command::Demo(_) => {
            cipher::choose()
        }
        _ => Ok(()),
    }
}

fn run_to_end(cli: Cli, log: Option<logging::File>) -> Code {
    ended(start_log(&cli, log).and_then(|()| cipher::choose()).and_then(|()| run(cli.command)))
}

fn ended(result: Result<(), Error>) -> Code {
    match result {
        Ok(()) => Code::Success,
        Err(error) => {
            output::error(&error);
            error.code()
        }
    }
}

/// Returns the interface that a command runs, for the log. An invalid name returns `None`: the command itself
/// reports it later.
fn interface_of(command: &Command) -> Option<String> {
    match command {
        Command::Up(args) => {
            let given = args.name.clone().map(Ok);
            given.unwrap_or_else(|| weft_config::interface_of(&args.target)).ok().map(String::from)
        }
        Command::Exec(args) => weft_config::interface_of(&args.rootless.target).ok().map(String::from),
        Command::Proxy(args) => weft_config::interface_of(&args.rootless.target).ok().map(String::from),
        Command::Run(args) => Some(args.name.clone()),
        _ => None,
    }
}

fn start_log(cli: &Cli, log: Option<logging::File>) -> Result<(), Error> {
    // These commands draw tables, which warnings about socket buffers and the like would break up.
    let level = match cli.command {
        Command::Demo(_) | Command::Top(_) | Command::Doctor(_) => "error",
        Command::Run(_) => drop_in::log_level(),
        // Standard error is that of the command.
        // A small buffer is what an ordinary user has.
        Command::Exec(_) => "warn,weft_udp=error",
        // Standard error is that of ssh(1).
        Command::Proxy(ref args) if args.stdio.is_some() => "warn,weft_udp=error",
        Command::Proxy(_) => "info,weft_udp=error",
        _ => "info",
    };
    logging::init(cli.log.as_deref(), level, cli.log_format, interface_of(&cli.command).as_deref(), log)
        .map_err(|error| Error::new(Code::Usage, error))
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Up(args) => up::run(&args),
        Command::Run(args) => drop_in::run(&args),
        Command::Exec(_) => Err(Error::new(Code::Usage, "`weft exec` is no service")),
        Command::Proxy(args) => proxy::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Service(args) => service::run(&args),
        Command::Save(args) => save::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Peer(args) => peer::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Genkey => keys::genkey(),
        Command::Genpsk => keys::genpsk(),
        Command::Pubkey => keys::pubkey(),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Speedtest(args) => speedtest::run(&args),
        Command::Doctor(args) => doctor::run(&args, cipher::choice()),
        Command::Show(args) => wg::show::run(&args),
        Command::Showconf(args) => wg::showconf::run(&args),
        Command::Set(args) => wg::set::run(&args),
        Command::Setconf(args) => wg::conf::setconf(&args),
        Command::Addconf(args) => wg::conf::addconf(&args),
        Command::Syncconf(args) => wg::conf::syncconf(&args),
        Command::Strip(args) => wg::strip::run(&args),
        Command::Completions(args) => assets::completions(&args),
        Command::Man(args) => assets::man(&args),
        Command::Demo(args) => demo::run(&args),
    }
}
