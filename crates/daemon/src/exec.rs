//! `weft exec`: runs a command whose only network is a tunnel, without root, or one that gets proxies into
//! it.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use weft_commands::output;
use weft_config::exit::{Code, Error};
use weft_confine::EndProcessOnPanic;
use weft_proxy::{Options, Users};
use weft_rootless::{ENTRY_FAILED, Names, News, TunnelState};

use crate::cli::ExecArgs;
use crate::proxy;
use crate::up::detached::End;
use crate::up::rootless::{self, NameServers};

mod ports;
mod signals;

use ports::Resolver;
use signals::{Blocked, Target};

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
    if args.with_proxy {
        return run_with_proxy(args);
    }
    // Until there is a command, a signal ends this process, and with it its membership.
    let (mut member, inside) = rootless::join(&args.rootless)?;
    if let Some(name) = &args.rootless.congestion {
        inside.set_congestion(name, member.has_started_it())?;
    }
    let (names, resolvers) = name_servers(args, member.state())?;
    let entrance = inside.entrance(&names)?;
    let target = Blocked::new()?.forward(signals::end_at_once)?;
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
    let mut command = command(args)?;
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

/// Runs the command in the network of this process, with variables that name proxies into the tunnel.
fn run_with_proxy(args: &ExecArgs) -> Result<Ended, Error> {
    let proxies = args.proxies();
    let (users, login) = Users::random();
    let (socks5, http) = (proxies.socks5.clone(), proxies.http.clone());
    let options = Options { socks5, http, users: Some(users), ..Options::default() };
    let mut command = command(args)?;
    let (target, mut running) = (OnceCell::<Target>::new(), None);
    let hear = |end: End| {
        let forwarded = Blocked::new()?.forward(move |_| end(None))?;
        target.get_or_init(|| forwarded);
        Ok(())
    };
    let start = |reach, host: &_, _, end: End| {
        let (thread, addresses) = proxy::serve(options, args.memory_limit, reach, host)?;
        command.envs(variables(&addresses, &login));
        running = target.get().map(|target| run_beside(target.clone(), &mut command, &end));
        Ok(thread)
    };
    let result = proxy::use_tunnel(&proxies, hear, start);
    if let Some(signal) = target.get().and_then(Target::cancelled_by) {
        return Ok(Ended::Status(ExitStatus::from_raw(signal as i32)));
    }
    // Else the tunnel was taken down, or failed.
    target.get().inspect(|target| target.hang_up());
    let running = running.unwrap_or_else(|| Err(io::Error::from_raw_os_error(ENTRY_FAILED)));
    let ended = running.and_then(|thread| thread.join().map_err(|_| io::ErrorKind::Other)?);
    result.map(|()| ended.map_or_else(Ended::NotStarted, Ended::Status))
}

/// Spawns the command, and calls `end` from another thread when it has ended. That thread gives its status.
fn run_beside(
    target: Target,
    command: &mut Command,
    end: &End,
) -> io::Result<JoinHandle<io::Result<ExitStatus>>> {
    let ended = Arc::clone(end);
    let running = target.spawn(command).and_then(|mut child| {
        let wait = move || {
            let _guard = EndProcessOnPanic;
            let status = target.wait(&mut child);
            ended(None);
            status
        };
        std::thread::Builder::new().name("weft-command".to_owned()).spawn(wait)
    });
    running.inspect_err(|_| end(None))
}

/// Returns the variables for a command that name what is served at these addresses.
fn variables(served: &[(&str, String)], login: &str) -> Vec<(&'static str, String)> {
    const ALL: [&str; 2] = ["ALL_PROXY", "all_proxy"];
    const HTTP: [&str; 4] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];
    /// What is reached directly, unless the user says it: this machine.
    const NONE: [&str; 2] = ["NO_PROXY", "no_proxy"];
    let mut variables = Vec::new();
    for (service, address) in served {
        let (names, scheme) = if *service == "HTTP" { (&HTTP[..], "http") } else { (&ALL[..], "socks5h") };
        variables.extend(names.iter().map(|name| (*name, format!("{scheme}://{login}@{address}"))));
    }
    if NONE.iter().all(|name| std::env::var_os(name).is_none()) {
        variables.extend(NONE.map(|name| (name, "localhost,127.0.0.1,::1".to_owned())));
    }
    variables
}

/// Returns the command, as it is in the arguments.
fn command(args: &ExecArgs) -> io::Result<Command> {
    let (program, arguments) = args.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
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
