//! `weft NAME` in place of `wireguard-go NAME`, and `weft run NAME`, which is the same by its full name.

use std::ffi::{OsStr, OsString};

use clap::{Args, CommandFactory as _};

use super::{Cli, EXIT_CODES, MetricsArgs, TunArgs};

/// The arguments of `weft run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
`weft NAME` is the same, as long as NAME is not the name of a command.

Environment:
  WG_PROCESS_FOREGROUND=1        stay in the foreground, like -f
  WG_TUN_FD=N                    take over the TUN device behind descriptor N
  WG_UAPI_FD=N                   take over the listening Unix socket behind descriptor N
  WG_TUN_NAME_FILE=FILE          write the interface's name to FILE
  LOG_LEVEL=verbose|error|silent what to log, unless --log or RUST_LOG says so; it keeps the terminal for it

Examples:
  sudo weft wg0 && sudo wg setconf wg0 wg0.conf
  sudo weft down wg0
  sudo weft run -f wg0 --tun-threads 2
  sudo WG_QUICK_USERSPACE_IMPLEMENTATION=weft wg-quick up wg0

{EXIT_CODES}"))]
pub struct RunArgs {
    /// The name of the interface.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Stay in the foreground; without it the command returns once wg(8) can configure the interface.
    #[arg(short, long)]
    pub foreground: bool,
    /// Let packets go before every ordinary program on a core, as with `weft up`.
    #[arg(long)]
    pub realtime: bool,
    /// Logs and metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// How the device is driven.
    #[command(flatten)]
    pub tun: TunArgs,
}

/// Returns the command line with `run` inserted where wireguard-go's has no subcommand: `weft NAME …` and
/// `weft -f NAME`.
///
/// A word that looks like a misspelled command is left for clap to reject: otherwise the typo would create an
/// interface.
pub fn command_line(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_foreground = |word: &OsString| word == "-f" || word == "--foreground";
    let is_interface = match arguments.get(1) {
        Some(first) if is_foreground(first) => true,
        Some(first) => names_an_interface(first),
        None => false,
    };
    if is_interface {
        arguments.insert(1, "run".into());
    }
    arguments
}

fn names_an_interface(word: &OsStr) -> bool {
    let Some(word) = word.to_str() else { return true };
    let cli = Cli::command();
    let mut commands = cli.get_subcommands().flat_map(clap::Command::get_name_and_visible_aliases);
    !word.starts_with('-') && word != "help" && !commands.any(|command| is_or_was_meant(word, command))
}

/// Reports whether `word` is the command, or the command with one letter too many or too few, or with two
/// adjacent letters swapped. Commands of fewer than four letters match exactly: too many interface names
/// differ from them by one letter.
fn is_or_was_meant(word: &str, command: &str) -> bool {
    const SHORT: usize = 4;
    if word == command {
        return true;
    }
    if command.len() < SHORT {
        return false;
    }
    let (shorter, longer) = if word.len() < command.len() { (word, command) } else { (command, word) };
    let common = shorter.bytes().zip(longer.bytes()).take_while(|(a, b)| a == b).count();
    let (shorter, longer) = (&shorter.as_bytes()[common..], &longer.as_bytes()[common..]);
    match (shorter, longer) {
        ([a, b, rest @ ..], [c, d, other @ ..]) if shorter.len() == longer.len() => {
            a == d && b == c && rest == other
        }
        (shorter, [_, rest @ ..]) => shorter == rest && rest.len() < longer.len() && !ends_in_digit(word),
        _ => false,
    }
}

/// Exempts names such as `show1`, which is an interface and not a misspelled `show`.
fn ends_in_digit(word: &str) -> bool {
    word.ends_with(|last: char| last.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Command;

    fn parse(words: &[&str]) -> Result<Command, clap::Error> {
        let words = std::iter::once("weft").chain(words.iter().copied()).map(OsString::from);
        Cli::try_parse_from(command_line(words)).map(|cli| cli.command)
    }

    fn run(words: &[&str]) -> RunArgs {
        match parse(words) {
            Ok(Command::Run(args)) => args,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn a_name_alone_is_an_interface_as_with_wireguard_go() {
        for name in ["wg0", "office", "u", "tun", "check0", "show1", "genkey.1"] {
            assert_eq!((run(&[name]).name.as_str(), run(&[name]).foreground), (name, false));
            assert!(run(&["-f", name]).foreground);
            assert!(run(&["--foreground", name]).foreground);
            assert!(run(&[name, "-f"]).foreground);
            assert_eq!(run(&["run", name]).name, name);
        }
        assert_eq!(run(&["wg0", "--tun-threads", "2"]).tun.tun_threads, weft_config::TunThreads::Fixed(2));
    }

    #[test]
    fn the_names_of_commands_need_run_or_its_option() {
        assert!(matches!(parse(&["genkey"]), Ok(Command::Genkey)));
        for name in ["genkey", "up", "run", "help", "check"] {
            assert_eq!(run(&["run", name]).name, name);
            assert_eq!(run(&["-f", name]).name, name);
        }
    }

    #[test]
    fn a_slip_of_the_pen_makes_no_interface() {
        for word in ["chekc", "chck", "checkk", "genkye", "pubky", "deom"] {
            let error = parse(&[word]).unwrap_err().to_string();
            assert!(error.contains("unrecognized subcommand"), "{word}: {error}");
        }
    }

    #[test]
    fn wrong_command_lines_are_errors_of_use() {
        for words in [&["-f"][..], &["wg0", "wg1"], &["-x", "wg0"], &["--foreground", "wg0", "--nonsense"]] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }
}
