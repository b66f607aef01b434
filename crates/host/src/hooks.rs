//! The commands of a configuration, in a shell.
//!
//! The shell is bash if it is installed: wg-quick(8) uses bash, and its users write commands for bash. Else
//! it is `/bin/sh`.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use weft_config::{Hook, InterfaceName, without_keys};

use super::HostError;

/// Runs a command with our environment and our standard input, output and error, and waits for its end.
pub(super) fn run(hook: &Hook, interface: &InterfaceName) -> Result<(), HostError> {
    let command = hook.command_for(interface);
    tracing::info!(hook = hook.phase.key(), command = without_keys(&command), "running a command");
    let failed =
        |outcome: String| HostError::Hook { place: hook.place(), command: without_keys(&command), outcome };
    let shell = shell();
    let status = Command::new(&shell)
        .arg("-c")
        .arg(&command)
        .status()
        .map_err(|error| failed(format!("could not be run by {}: {error}", shell.display())))?;
    if status.success() { Ok(()) } else { Err(failed(ended(status))) }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        // The exit code of a shell for a command that it cannot find.
        Some(127) => "failed with exit code 127: no such command; check its name and PATH".to_owned(),
        Some(code) => format!("failed with exit code {code}; try it by hand"),
        None => format!("was ended ({status}); try it by hand"),
    }
}

fn shell() -> PathBuf {
    let bash = std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .map(|directory| directory.join("bash"))
        .find(|file| file.is_absolute() && file.is_file());
    bash.unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::path::Path;

    use weft_config::HookPhase;

    use super::*;

    fn hook(command: &str) -> Hook {
        let file = Path::new("/etc/wireguard/wg0.conf").to_owned();
        Hook { phase: HookPhase::PostUp, command: command.to_owned(), file, line: 7 }
    }

    fn run_it(command: &str) -> Result<(), String> {
        run(&hook(command), &"wg0".parse().unwrap()).map_err(|error| error.to_string())
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
}
