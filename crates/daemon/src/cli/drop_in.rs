//! `weft NAME` in place of `wireguard-go NAME`, and `weft run NAME`, which is the same by its full name.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _};
use weft_config::{InterfaceName, path_of};

use super::{Cli, EXIT_CODES, MetricsArgs, PERFORMANCE, TunArgs};
use crate::foreign;

/// The arguments of `weft run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = format!("\
`weft NAME` is the same if NAME is no command and can only mean an interface: it
ends in a digit, has a file /etc/wireguard/NAME.conf, is what wg-quick(8) brings
up, or one of the variables WG_… below is set. `weft -f NAME` is the same for
every NAME, as is a link to weft with the name wireguard-go or boringtun-cli.

Environment:
  WG_PROCESS_FOREGROUND=1   stay in the foreground, like -f
  WG_TUN_FD=N               take over the TUN device behind descriptor N
  WG_UAPI_FD=N              take over the listening socket behind descriptor N
  WG_TUN_NAME_FILE=FILE     write the interface's name to FILE
  LOG_LEVEL=LEVEL           verbose, error or silent: what to log, unless --log
                            or RUST_LOG says so; it keeps the terminal for it

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
    /// Logs and metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Let packets go before every ordinary program on a core, as with `weft up`.
    #[arg(long, help_heading = PERFORMANCE)]
    pub realtime: bool,
    /// How the device is driven.
    #[command(flatten)]
    pub tun: TunArgs,
}

/// How this process was called, apart from its arguments.
#[derive(Debug, Default)]
pub struct Caller {
    /// The interface for which wg-quick has started this process.
    wg_quick: Option<String>,
    /// Whether a variable of wireguard-go is set.
    has_variable: bool,
}

impl Caller {
    /// Looks at the parent process and at the environment.
    pub fn of_this_process() -> Self {
        // LOG_LEVEL is set for other programs as well. On Linux the parent process tells of wg-quick, and not
        // the variable, which a profile may set for all commands.
        let variables = ["WG_TUN_FD", "WG_UAPI_FD", "WG_TUN_NAME_FILE", "WG_PROCESS_FOREGROUND"];
        let of_wg_quick =
            Some("WG_QUICK_USERSPACE_IMPLEMENTATION").filter(|_| cfg!(not(target_os = "linux")));
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        Self {
            wg_quick: foreign::interface_of_wg_quick(),
            has_variable: variables.into_iter().chain(of_wg_quick).any(is_set),
        }
    }
}

/// Returns the command line with `run` inserted where wireguard-go's has no subcommand: `weft NAME …` and
/// `weft -f NAME`.
pub fn command_line(arguments: impl IntoIterator<Item = OsString>, caller: &Caller) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    if let [_, help, option] = &arguments[..]
        && help == "help"
        && (option == "-h" || option == "--help")
    {
        arguments.pop();
    }
    let is_foreground = |word: &OsString| word == "-f" || word == "--foreground";
    let is_interface = match &arguments[..] {
        [_, first, ..] if is_foreground(first) => true,
        [program, first, rest @ ..] => {
            let word = first.to_str().unwrap_or_default();
            let is_alone = rest.is_empty() && caller.wg_quick.as_deref() == Some(word);
            let is_word = !word.is_empty() && !word.starts_with('-');
            is_word && (is_alone || is_another_program(program) || can_only_be_an_interface(word, caller))
        }
        _ => false,
    };
    if is_interface {
        arguments.insert(1, "run".into());
    }
    arguments
}

/// Reports whether the program is called through a link with the name of one that has no subcommands.
fn is_another_program(program: &OsStr) -> bool {
    let name = Path::new(program).file_stem().unwrap_or_default();
    name == "wireguard-go" || name == "boringtun-cli"
}

/// A word that is no command makes an interface if it ends in a digit, if it has a file, or if the caller
/// speaks to wireguard-go. Any other word is a mistake: `weft list` must not leave an interface behind.
fn can_only_be_an_interface(word: &str, caller: &Caller) -> bool {
    let cli = Cli::command();
    let mut commands = cli.get_subcommands().flat_map(clap::Command::get_name_and_visible_aliases);
    let is_name = word != "help" && word.parse::<InterfaceName>().is_ok() && path_of(word) != Path::new(word);
    let ends_in_digit = word.ends_with(|last: char| last.is_ascii_digit());
    is_name
        && !commands.any(|command| command == word)
        && (ends_in_digit || caller.has_variable || path_of(word).exists())
}

/// Words of other programs, and what does the same here.
const KNOWN_ELSEWHERE: &[(&[&str], &str)] = &[
    (&["list", "ls", "ps", "info", "interfaces"], "`weft status` shows what runs"),
    (
        &["restart"],
        "`weft reload NAME` applies a changed file; `weft down NAME` and `weft up NAME` start it again",
    ),
    (&["connect", "start", "enable", "open", "quick"], "`weft up NAME` brings an interface up"),
    (
        &["disconnect", "stop", "disable", "close", "kill", "delete"],
        "`weft down NAME` takes an interface down",
    ),
    (
        &["add", "remove", "peers", "client", "add-peer", "add-client", "new-peer"],
        "`weft peer add|list|remove` edits the peers of an interface",
    ),
    (&["qr", "qrcode"], "`weft peer add NAME --qr` adds a peer and prints its file as a QR code"),
    (
        &["init", "new", "create", "setup"],
        "write /etc/wireguard/NAME.conf (README.md has an example, `weft genkey` makes a key), then `weft up NAME`",
    ),
    (
        &["import"],
        "weft reads a file as it is: `weft check FILE` says what it means, `weft up FILE` brings it up",
    ),
    (
        &["keygen", "gen-key", "keypair", "key"],
        "`weft genkey` prints a private key, `weft pubkey` its public key",
    ),
    (
        &["edit", "vi", "nano"],
        "change /etc/wireguard/NAME.conf with an editor, then `weft reload NAME`; `weft peer` edits its peers",
    ),
    (&["config", "dump", "export"], "`weft showconf NAME` prints the configuration of an interface"),
    (&["test", "ping", "bench"], "`weft speedtest PEER` measures a tunnel"),
    (&["log", "logs", "journal"], "`journalctl -u weft@NAME` shows the log of a service"),
    (&["install"], "`weft service install NAME` makes an interface a service"),
    (&["uninstall"], "`weft service remove NAME` ends the service of an interface"),
    (&["version"], "`weft --version` prints the version"),
];

/// The same behind `weft peer`.
const PEER_ELSEWHERE: &[(&[&str], &str)] = &[
    (&["delete", "del", "rm", "revoke"], "`weft peer remove PEER` takes a peer out of the file"),
    (
        &["new", "create", "export", "qr", "qrcode", "genconf"],
        "`weft peer add NAME --qr` adds a peer and prints its file once; it is stored nowhere, and for a lost one add \
         the peer again",
    ),
    (&["ls", "status"], "`weft peer list` lists the peers of the file, `weft status` shows them at work"),
    (&["block", "suspend"], "`weft peer disable PEER` turns a peer away until `weft peer enable PEER`"),
];

/// Adds what may be meant to the error about a word that is no command, or stands where none is expected.
pub fn with_suggestion(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let is_at = |kind, place: usize| {
        let word = words.get(place).map(|word| ContextValue::String((*word).to_owned()));
        word.is_some() && error.get(kind) == word.as_ref()
    };
    let is_one_too_many = matches!(
        error.get(ContextKind::InvalidArg),
        Some(ContextValue::String(word)) if !word.starts_with('-')
    );
    let known = |table: &[(&[&str], &str)], word: &str| {
        table.iter().find(|(words, _)| words.contains(&word)).map(|(_, tip)| (*tip).to_owned())
    };
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "",
    };
    let like_an_option = words.iter().find(|word| word.starts_with('-') && Path::new(word).is_file());
    let tip = match (error.kind(), &words[..]) {
        (ErrorKind::UnknownArgument, _) if let Some(file) = like_an_option => {
            Some(format!("`./{file}` is the file of this name"))
        }
        (ErrorKind::UnknownArgument, ["status" | "show", ..]) if ["--watch", "-w"].contains(&unknown) => {
            Some("`weft top` is the same, live".to_owned())
        }
        (ErrorKind::UnknownArgument, ["peer", "show" | "list", ..]) if unknown == "--qr" => {
            known(PEER_ELSEWHERE, "qr")
        }
        (ErrorKind::UnknownArgument, ["peer", "add", ..])
            if ["--address", "--ip", "--allowed-ips"].contains(&unknown) =>
        {
            Some("a peer gets the next free address; AllowedIPs in the file gives it another one".to_owned())
        }
        (ErrorKind::UnknownArgument, ["exec", file, rest @ ..])
            if is_one_too_many && !file.starts_with('-') =>
        {
            Some(format!("the command stands behind `--`: `weft exec {file} -- {}`", rest.join(" ")))
        }
        (ErrorKind::InvalidSubcommand, ["help", words @ ..]) => of_help(words),
        (ErrorKind::InvalidSubcommand, [word, ..]) if is_at(ContextKind::InvalidSubcommand, 0) => {
            known(KNOWN_ELSEWHERE, word)
                .or_else(|| known(KNOWN_ELSEWHERE, mistyped(word)?))
                .or_else(|| of_unknown(word, &error))
        }
        (ErrorKind::InvalidSubcommand, ["peer", word, ..]) if is_at(ContextKind::InvalidSubcommand, 1) => {
            known(PEER_ELSEWHERE, word)
        }
        (ErrorKind::UnknownArgument, ["peer", command, interface, rest @ ..])
            if is_one_too_many && !interface.starts_with('-') =>
        {
            let rest = rest.iter().take_while(|word| !word.starts_with('-'));
            let mut given: Vec<&str> = std::iter::once(interface).chain(rest).copied().collect();
            // The interface stands first, unless the last word is one.
            let is_last = !is_interface(interface) && given.last().is_some_and(|word| is_interface(word));
            let interface = given.remove(if is_last { given.len() - 1 } else { 0 });
            let rest = given.join(" ");
            let gap = if rest.is_empty() { "" } else { " " };
            Some(format!("--to says which interface: `weft peer {command} {rest}{gap}--to {interface}`"))
        }
        _ => None,
    };
    if let Some(tip) = tip {
        // clap's own suggestion is by letters alone, such as `strip` for `start`.
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    } else if unknown.starts_with('-') && words.first() != Some(&"exec") {
        // That it could be a value, behind `--`: no command but this one takes such.
        error.remove(ContextKind::Suggested);
    }
    error
}

/// Reports whether a word names an interface that has a file or runs.
fn is_interface(word: &str) -> bool {
    weft_config::path_of(word).exists() || cfg!(target_os = "linux") && weft_host::has_device(word)
}

/// Returns the command that is meant by the words behind `weft help`.
fn of_help(words: &[&str]) -> Option<String> {
    let mut command = &Cli::command();
    let mut known = "weft help".to_owned();
    for word in words {
        let Some(next) = command.find_subcommand(word) else {
            let names = command.get_subcommands().map(clap::Command::get_name);
            return weft_config::closest(word, names)
                .map(|near| format!("a similar subcommand exists: `{known} {near}`"));
        };
        known = format!("{known} {word}");
        command = next;
    }
    None
}

/// Returns the word of another program that is meant, if it comes nearer than all commands. A typing mistake
/// is seldom at either end.
fn mistyped(word: &str) -> Option<&'static str> {
    let cli = Cli::command();
    let commands: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
    let ends = |word: &str| (word.bytes().next(), word.bytes().last());
    let words = KNOWN_ELSEWHERE.iter().flat_map(|(words, _)| words.iter().copied());
    let near = weft_config::closest(word, words.filter(|other| ends(other) == ends(word)))?;
    let nearest = weft_config::closest(word, commands.iter().copied().chain([near]));
    let is_begun = commands.iter().any(|command| command.starts_with(word));
    (nearest == Some(near) && !is_begun).then_some(near)
}

/// Returns what a word may mean that no other program has as a command.
fn of_unknown(word: &str, error: &clap::Error) -> Option<String> {
    if path_of(word).is_file() {
        return Some(format!("`weft up {word}` brings up the interface of this file"));
    }
    let is_hidden = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    if word.ends_with(".conf") && path_of(word).symlink_metadata().is_err_and(is_hidden) {
        return Some(format!(
            "this user cannot see {word}; as root, `weft up {word}` brings up its interface"
        ));
    }
    if word.ends_with(".conf") {
        return Some(format!("there is no file {word}; `weft up NAME` reads /etc/wireguard/NAME.conf"));
    }
    // A plain word is a command of another program.
    let is_plain = word.chars().all(|c| c.is_ascii_alphabetic());
    let is_suggested = error.get(ContextKind::SuggestedSubcommand).is_some();
    let is_name = !is_plain && !is_suggested && word.parse::<InterfaceName>().is_ok();
    is_name.then(|| format!("`weft run {word}` makes an interface of this name, for wg(8) to configure"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Command;

    fn parse_by(caller: &Caller, program: &str, words: &[&str]) -> Result<Command, clap::Error> {
        let words = std::iter::once(program).chain(words.iter().copied()).map(OsString::from);
        let words = command_line(words, caller);
        Cli::try_parse_from(&words).map(|cli| cli.command).map_err(|error| with_suggestion(error, &words))
    }

    fn parse(words: &[&str]) -> Result<Command, clap::Error> {
        parse_by(&Caller::default(), "weft", words)
    }

    fn ran(parsed: Result<Command, clap::Error>) -> RunArgs {
        match parsed {
            Ok(Command::Run(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn run(words: &[&str]) -> RunArgs {
        ran(parse(words))
    }

    #[test]
    fn a_word_that_ends_in_a_digit_is_an_interface_as_with_wireguard_go() {
        for name in ["wg0", "check0", "show1", "genkey.1"] {
            assert_eq!((run(&[name]).name.as_str(), run(&[name]).foreground), (name, false));
            assert!(run(&[name, "-f"]).foreground);
        }
        assert_eq!(run(&["wg0", "--tun-threads", "2"]).tun.tun_threads, weft_config::TunThreads::Fixed(2));
    }

    #[test]
    fn every_name_is_an_interface_where_wireguard_go_is_meant() {
        assert!(matches!(parse(&["genkey"]), Ok(Command::Genkey)));
        for name in ["wg0", "office", "list", "genkey", "up", "run", "help", "check"] {
            assert_eq!(run(&["run", name]).name, name);
            assert!(run(&["-f", name]).foreground);
            assert_eq!(run(&["--foreground", name]).name, name);
            for program in ["wireguard-go", "/usr/local/bin/wireguard-go", "boringtun-cli"] {
                assert_eq!(ran(parse_by(&Caller::default(), program, &[name])).name, name);
            }
            let wg_quick = Caller { wg_quick: Some(name.to_owned()), ..Caller::default() };
            assert_eq!(ran(parse_by(&wg_quick, "weft", &[name])).name, name);
        }
        let set = Caller { has_variable: true, ..Caller::default() };
        assert_eq!(ran(parse_by(&set, "weft", &["office"])).name, "office");
        assert!(matches!(parse_by(&set, "weft", &["genkey"]), Ok(Command::Genkey)));
        // A command in a file of wg-quick.
        let hook = Caller { wg_quick: Some("office".to_owned()), ..Caller::default() };
        assert!(parse_by(&hook, "weft", &["list"]).is_err());
        let version = parse_by(&Caller::default(), "wireguard-go", &["--version"]).unwrap_err();
        assert_eq!(version.kind(), ErrorKind::DisplayVersion);
    }

    #[test]
    fn help_takes_the_options_for_help() {
        for option in ["-h", "--help"] {
            assert_eq!(parse(&["help", option]).unwrap_err().kind(), ErrorKind::DisplayHelp);
        }
    }

    #[test]
    fn help_on_an_unknown_command_suggests_the_one_that_is_meant() {
        for (words, tip) in [
            (&["help", "statuss"][..], "tip: a similar subcommand exists: `weft help status`"),
            (&["help", "peer", "ad"], "`weft help peer add`"),
            (&["help", "nonsense"], "unrecognized subcommand 'nonsense'"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.to_string().contains(tip), "{words:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn an_unknown_word_is_an_error_with_a_suggestion() {
        for (word, tip) in [
            ("chekc", "a similar subcommand exists: 'check'"),
            ("genkye", "'genkey'"),
            ("list", "tip: `weft status`"),
            ("restart", "tip: `weft reload NAME`"),
            ("connect", "tip: `weft up NAME`"),
            ("start", "tip: `weft up NAME`"),
            ("stop", "tip: `weft down NAME`"),
            ("uninstall", "tip: `weft service remove NAME`"),
            ("init", "then `weft up NAME`"),
            ("new", "then `weft up NAME`"),
            ("keygen", "tip: `weft genkey`"),
            ("import", "tip: weft reads a file as it is"),
            ("qrcode", "tip: `weft peer add NAME --qr`"),
            ("add-peer", "tip: `weft peer add|"),
            ("my-office", "tip: `weft run my-office`"),
            ("login", "unrecognized subcommand"),
            ("lst", "tip: `weft status`"),
            ("conect", "tip: `weft up NAME`"),
            ("stat", "'status'"),
            ("edit", "then `weft reload NAME`"),
            ("no-such.conf", "tip: there is no file no-such.conf; `weft up NAME`"),
            ("./no-such.conf", "tip: there is no file ./no-such.conf"),
            ("quick", "tip: `weft up NAME`"),
            ("Cargo.toml", "tip: `weft run Cargo.toml`"),
            ("./Cargo.toml", "tip: `weft up ./Cargo.toml`"),
            ("./wg0", "unrecognized subcommand"),
            ("sixteen-letters0", "unrecognized subcommand"),
            ("", "unrecognized subcommand"),
        ] {
            let error = parse(&[word]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("unrecognized subcommand") && text.contains(tip), "{word}: {text}");
            assert_eq!(error.exit_code(), 2);
            assert!(text.matches("tip: ").count() <= 1, "{word}: {text}");
            assert!(word != "login" || !text.contains("tip: "), "{text}");
        }
    }

    #[test]
    fn a_wrong_word_behind_peer_gets_a_suggestion_too() {
        for (words, tip) in [
            (&["rm", "phone"][..], "tip: `weft peer remove PEER`"),
            (&["delete"], "tip: `weft peer remove PEER`"),
            (&["export", "phone"], "tip: `weft peer add NAME --qr`"),
            (&["new"], "tip: `weft peer add NAME --qr`"),
            (&["qr"], "tip: `weft peer add NAME --qr`"),
            (&["lst"], "'list'"),
            (&["list", "wg0"], "`weft peer list --to wg0`"),
            (&["add", "wg0", "phone", "--qr"], "`weft peer add phone --to wg0`"),
            (&["rename", "wg0", "phone", "tablet"], "`weft peer rename phone tablet --to wg0`"),
            #[cfg(target_os = "linux")]
            (&["add", "phone", "lo", "--qr"], "`weft peer add phone --to lo`"),
            #[cfg(target_os = "linux")]
            (&["rename", "phone", "tablet", "lo"], "`weft peer rename phone tablet --to lo`"),
            (&["add", "phone", "--nonsense"], "unexpected argument '--nonsense'"),
        ] {
            let error = parse(&[&["peer"], words].concat()).unwrap_err();
            assert!(error.to_string().contains(tip), "{words:?}: {error}");
            let is_about_interface = ["wg0", "lo"].iter().any(|name| words.contains(name));
            assert_eq!(error.to_string().contains("--to says"), is_about_interface, "{words:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn an_option_that_there_is_not_gets_the_way_that_there_is() {
        for (words, tip) in [
            (&["status", "wg0", "--watch"][..], "tip: `weft top`"),
            (&["peer", "show", "phone", "--qr"], "tip: `weft peer add NAME --qr`"),
            (&["exec", "f.conf", "id", "root"], "`weft exec f.conf -- id root`"),
            (&["exec", "f.conf", "--nonsense"], "use '-- --nonsense'"),
            (&["peer", "add", "phone", "--address", "10.9.0.7"], "tip: a peer gets the next free address"),
            (&["status", "--jsno"], "'--json'"),
            (&["up", "wg0", "--nonsense"], ""),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.to_string().contains(tip), "{words:?}: {error}");
            assert_eq!(error.to_string().contains("tip: "), !tip.is_empty(), "{words:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn wrong_command_lines_are_errors_of_use() {
        for words in [&["-f"][..], &["wg0", "wg1"], &["-x", "wg0"], &["--foreground", "wg0", "--nonsense"]] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }
}
