//! The commands of a configuration, in a shell.
//!
//! Users write commands for wg-quick(8), which runs them in bash, so the shell has the options, the variables
//! and the search path that it has there. Without bash it is `/bin/sh`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use weft_config::{Hook, HookPhase, InterfaceName, shell_word, without_keys};

use super::HostError;
use under_way::Ended;

#[cfg_attr(unix, path = "hooks/unix.rs")]
#[cfg_attr(not(unix), path = "hooks/not_unix.rs")]
mod process;
mod under_way;
#[cfg(target_os = "linux")]
mod unit;

pub use under_way::{CommandUnderWay, command_under_way, interrupt_commands, limit_commands_of_the_end};

/// The environment variable by which a process knows that a command of these interfaces has started it. There
/// are several where a command brings up another interface.
const COMMAND_OF: &str = "WEFT_COMMAND_OF";

/// The search path where there is none: bash has one too then.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where bash is if it is not in the search path. wg-quick names it by its path.
const USUAL_BASH: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];
/// What a service manager tells its service: a program that a command starts is not the service.
const OF_THE_SERVICE: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Reports whether a command of the interface's configuration has started this process, or one of its
/// parents.
pub fn is_within_command(interface: &InterfaceName) -> bool {
    outer_commands().split(' ').any(|name| name == interface.as_str())
}

/// Reports whether a command of any interface's configuration has started this process, or one of its
/// parents.
pub fn is_within_any_command() -> bool {
    !outer_commands().is_empty()
}

/// Returns the interfaces with a command that has started this process.
fn outer_commands() -> String {
    std::env::var(COMMAND_OF).unwrap_or_default()
}

/// Runs a command with our standard input, output and error, and waits for its end.
pub(super) fn run(hook: &Hook, interface: &InterfaceName) -> Result<(), HostError> {
    let path = search_path();
    run_by(&Shell::find(&path), &path, hook, interface)
}

fn run_by(shell: &Shell, path: &OsStr, hook: &Hook, interface: &InterfaceName) -> Result<(), HostError> {
    let command = hook.command_for(interface);
    tracing::info!(hook = hook.phase.key(), command = without_keys(&command), "running a command");
    let failed =
        |outcome: String| HostError::Hook { place: hook.place(), command: without_keys(&command), outcome };
    if under_way::is_refused(hook.phase) {
        return Err(failed("does not run: the start was interrupted".to_owned()));
    }
    let commands = match is_within_command(interface) {
        true => outer_commands(),
        false => format!("{} {interface}", outer_commands()),
    };
    let mut process = Command::new(shell.program());
    process::set_up(&mut process);
    process.args(shell.options()).arg(shell.script(&command, interface, &hook.file));
    process.env("PATH", path).env("LC_ALL", "C").env(COMMAND_OF, commands.trim_start());
    for variable in OF_THE_SERVICE {
        process.env_remove(variable);
    }
    let waited = process.spawn().and_then(|mut child| under_way::wait(&mut child, hook, interface));
    match waited {
        Ok(Ended::ByItself(status)) if status.success() => Ok(()),
        Ok(ended) => Err(failed(told(&ended, hook.phase))),
        Err(error) => Err(failed(format!("could not be run by {}: {error}", shell.program().display()))),
    }
}

/// Returns the search path of commands: first the directory of this program, as wg-quick has its directory
/// there.
fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    let program = std::env::current_exe().ok();
    let own = program.as_deref().and_then(Path::parent).map(Path::to_owned);
    std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).unwrap_or(path)
}

enum Shell {
    Bash(PathBuf),
    Plain,
}

impl Shell {
    fn find(path: &OsStr) -> Self {
        let in_path = std::env::split_paths(path).map(|directory| directory.join("bash"));
        let mut places = in_path.chain(USUAL_BASH.map(PathBuf::from));
        places.find(|file| file.is_absolute() && file.is_file()).map_or(Self::Plain, Self::Bash)
    }

    fn program(&self) -> &Path {
        match self {
            Self::Bash(program) => program,
            Self::Plain => Path::new("/bin/sh"),
        }
    }

    /// The options of wg-quick's bash: a command ends where something in it fails, and a pipe fails with each
    /// of its parts.
    fn options(&self) -> &'static [&'static str] {
        match self {
            Self::Bash(_) => &["-e", "-o", "pipefail", "-O", "extglob", "-c"],
            Self::Plain => &["-e", "-c"],
        }
    }

    /// Returns the command in a function, for `return` and `local`, and behind the variables that it has in
    /// wg-quick, which does not export them.
    fn script(&self, command: &str, interface: &InterfaceName, file: &Path) -> OsString {
        let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        let mut script = OsString::from(match self {
            Self::Bash(_) => "",
            // Not every shell has the option, and one that has not would end.
            Self::Plain => "(set -o pipefail) 2>/dev/null && set -o pipefail; ",
        });
        script.push(format!("INTERFACE={interface} CONFIG_FILE="));
        script.push(shell_word(file.as_os_str()));
        // A command may end in a comment, or be nothing else.
        script.push("; execute_hooks() { :\n");
        script.push(command);
        script.push("\n}; execute_hooks");
        script
    }
}

/// Runs the commands of a phase of the way down: all of them, also after one that failed. Returns the
/// failures; they are logged too.
pub(super) fn run_all(hooks: &[Hook], phase: HookPhase, interface: &InterfaceName) -> Vec<HostError> {
    let failures = run_each(hooks, phase, interface);
    failures.into_iter().inspect(|error| tracing::warn!("{error}")).collect()
}

/// The same, and logs no failure.
pub(super) fn run_each(hooks: &[Hook], phase: HookPhase, interface: &InterfaceName) -> Vec<HostError> {
    let hooks = hooks.iter().filter(|hook| hook.phase == phase);
    hooks.filter_map(|hook| run(hook, interface).err()).collect()
}

fn told(ended: &Ended, phase: HookPhase) -> String {
    let how = match ended {
        Ended::ByItself(status) => exited(*status),
        Ended::Interrupted => "was ended, because weft was told to end".to_owned(),
        Ended::TooLate => "was ended, because a service has no more time to stop; make it faster".to_owned(),
    };
    match phase {
        HookPhase::PreUp | HookPhase::PostUp => how,
        HookPhase::PreDown | HookPhase::PostDown => format!("{how}; what it undoes may be left"),
    }
}

fn exited(status: ExitStatus) -> String {
    match status.code() {
        // The exit code of a shell for a command that it cannot find.
        Some(127) => "failed with exit code 127: no such command; check its name and PATH".to_owned(),
        Some(code) => format!("failed with exit code {code}; {}", by_hand()),
        None => format!("was ended ({status}); {}", by_hand()),
    }
}

/// By hand a command may do what the unit of a service forbids.
fn by_hand() -> String {
    #[cfg(target_os = "linux")]
    if let Some(forbidden) = unit::forbidden() {
        return forbidden;
    }
    "try it by hand".to_owned()
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::path::Path;

    use super::*;

    fn hook(command: &str) -> Hook {
        let file = Path::new("/etc/wireguard/wg0.conf").to_owned();
        Hook { phase: HookPhase::PostUp, command: command.to_owned(), file, line: 7 }
    }

    fn run_it(command: &str) -> Result<(), String> {
        run(&hook(command), &"wg0".parse().unwrap()).map_err(|error| error.to_string())
    }

    fn run_by_sh(command: &str) -> Result<(), String> {
        let path = search_path();
        run_by(&Shell::Plain, &path, &hook(command), &"wg0".parse().unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_gets_the_interface_and_a_comment_is_the_shells() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("out");
        let path = file.display();
        assert_eq!(run_it(&format!("echo a#%i > {path} # %i")), Ok(()));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a#wg0\n");
    }

    #[test]
    fn a_failure_names_file_line_key_and_command() {
        let error = run_it("exit 3").unwrap_err();
        assert!(
            error.starts_with("/etc/wireguard/wg0.conf:7: PostUp: the command `exit 3` failed"),
            "{error}"
        );
        assert!(error.contains("exit code 3"), "{error}");
        assert!(run_it("no-such-command-at-all").unwrap_err().contains("check its name"));
        assert!(run_it("kill -9 $$").unwrap_err().contains("was ended"));
    }

    #[test]
    fn a_command_ends_where_something_in_it_fails() {
        for run in [run_it, run_by_sh] {
            for command in ["false; true", "no-such-command -I OUTPUT; true", "(exit 3); echo ok"] {
                assert!(run(command).is_err(), "{command}");
            }
            for command in ["if false; then :; fi", "false || true", "! true || :"] {
                assert_eq!(run(command), Ok(()), "{command}");
            }
        }
        assert!(run_it("cat /nonexistent 2>&- | cat").is_err());
        // Not every shell can tell that a part of a pipe has failed.
        let can_tell = Command::new("/bin/sh").args(["-c", "set -o pipefail"]).output().unwrap().status;
        assert_eq!(run_by_sh("cat /nonexistent 2>&- | cat").is_err(), can_tell.success());
    }

    #[test]
    fn a_command_is_in_a_function() {
        for run in [run_it, run_by_sh] {
            for command in
                ["return 0; false", "local a=1; [ $a = 1 ]", "local it=\"it's\"; exit 0 # }", "# %i", ""]
            {
                assert_eq!(run(command), Ok(()), "{command}");
            }
            for (command, code) in [("return 3; true", 3), ("local a=1; false; true", 1), ("exit 5", 5)] {
                let error = run(command).unwrap_err();
                assert!(error.contains(&format!("exit code {code}")), "{command}: {error}");
            }
        }
    }

    #[test]
    fn a_command_of_the_end_is_ended_when_the_time_of_the_service_is_over() {
        limit_commands_of_the_end(std::time::Duration::ZERO);
        let mut hook = hook("trap '' TERM; sleep 1000; sleep 1000");
        hook.phase = HookPhase::PreDown;
        let error = run(&hook, &"wg0".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("no more time to stop"), "{error}");
    }

    #[test]
    fn a_path_with_quotes_is_one_word() {
        assert_eq!(shell_word(OsStr::new("it's $HOME")), r"'it'\''s $HOME'");
    }
}
