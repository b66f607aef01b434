//! `weft exec`: runs a command whose only network is a tunnel, without root.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use weft_commands::output;
use weft_config::exit::{Code, Error};
use weft_rootless::{ENTRY_FAILED, Names, News, TunnelState};

use crate::cli::ExecArgs;
use crate::up::rootless::{self, NameServers};

mod ports;
mod signals;

use ports::Resolver;
use signals::Blocked;

/// The exit code for a failure of weft, where other codes are those of the command (env(1)).
const FAILURE: u8 = 125;
/// The exit codes for a command that cannot be executed, and for one that is not found (env(1)).
const NOT_EXECUTED: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs `weft exec`: the exit code is that of the command, 128 and the number of the signal that ended it, or
/// one of weft. Call it before the first thread is started.
pub fn run(args: &ExecArgs) -> ExitCode {
    match run_command(args) {
        Ok(Ended::Status(status)) => code_of(status),
        Ok(Ended::NotStarted(error)) => {
            let name = args.command.first().map(OsString::as_os_str).unwrap_or_default();
            output::error(&format!("cannot run {}: {error}", name.display()));
            ExitCode::from(match error.raw_os_error() {
                Some(ENTRY_FAILED) => FAILURE,
                Some(libc::ENOENT) => NOT_FOUND,
                _ => NOT_EXECUTED,
            })
        }
        Err(error) => failed(&error),
    }
}

fn run_command(args: &ExecArgs) -> Result<Ended, Error> {
    // The command is to run in it, and no tunnel comes up in vain.
    std::env::current_dir().map_err(|error| {
        let message = format!(
            "the working directory cannot be entered again ({error}): was it deleted? change to another one (`cd /`)"
        );
        Error::new(Code::Failure, message)
    })?;
    // Until there is a command, a signal ends this process, and with it its membership.
    let (mut member, inside) = rootless::join(&args.rootless)?;
    if let Some(name) = &args.rootless.congestion {
        inside.set_congestion(name, member.has_started_it())?;
    }
    let (names, resolvers) = name_servers(args, member.state())?;
    let entrance = inside.entrance(&names)?;
    let target = Blocked::new()?.forward()?;
    let failure = Arc::<Mutex<Option<Error>>>::default();
    let (hung_up, of_tunnel) = (target.clone(), Arc::clone(&failure));
    member.hear(move |news| match news {
        News::Changed(_) => {}
        News::Down => hung_up.hang_up(),
        News::Failed(error) => {
            *of_tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
            hung_up.hang_up();
        }
    })?;
    let ports = ports::serve(args, &resolvers, &inside.sockets())?;
    let (program, arguments) =
        args.command.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut command = Command::new(program);
    command.args(arguments);
    entrance.apply(&mut command)?;
    let ended = match target.spawn(&mut command).and_then(|mut child| target.wait(&mut child)) {
        Ok(status) => Ended::Status(status),
        Err(error) => Ended::NotStarted(error),
    };
    drop(ports);
    // Its child made the sockets of the ports, and followed changes of the host's files.
    drop(inside);
    drop(member);
    match failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(error),
        None => Ok(ended),
    }
}

/// Returns the name servers of the command, and those of the host that some of them stand for.
fn name_servers(args: &ExecArgs, state: &TunnelState) -> Result<(Names, Vec<Resolver>), Error> {
    match rootless::name_servers(&args.rootless, &state.dns)? {
        NameServers::Tunnel(names) => {
            if names.servers.is_empty() {
                output::warning(&format!(
                    "{}: there is no DNS in the file, so no name is found in the tunnel: add `DNS = ADDRESS` to \
                     [Interface], or give --dns ADDRESS",
                    args.rootless.target
                ));
            }
            Ok((names, Vec::new()))
        }
        NameServers::Host(names) => {
            let resolvers = Resolver::of_host(&names.servers);
            let servers = resolvers.iter().map(|resolver| resolver.inside).collect();
            Ok((Names { servers, ..names }, resolvers))
        }
    }
}

fn failed(error: &Error) -> ExitCode {
    output::error(error);
    match error.code() {
        Code::Success | Code::Failure => ExitCode::from(FAILURE),
        code => code.into(),
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let number = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(FAILURE.into());
    ExitCode::from(u8::try_from(number).unwrap_or(FAILURE))
}

/// How the command ended.
enum Ended {
    Status(ExitStatus),
    NotStarted(io::Error),
}
