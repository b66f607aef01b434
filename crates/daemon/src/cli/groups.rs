//! `weft --help`: the commands in groups, with those of every day first.

use std::fmt::Write as _;

use clap::Subcommand as _;
use clap::builder::Styles;

use super::Command;

/// All commands but hidden ones, in the order of [`Command`].
const GROUPS: &[(&str, &[&str])] = &[
    ("Every day", &["up", "down", "status", "peer", "reload", "check"]),
    ("Run an interface", &["run", "demo"]),
    ("Look", &["top", "show", "doctor", "capture", "speedtest"]),
    ("Change", &["save", "set", "setconf", "addconf", "syncconf"]),
    ("Without root", &["exec", "proxy"]),
    ("Keys and files", &["genkey", "genpsk", "pubkey", "showconf", "strip", "completions"]),
    ("As a service", &["service"]),
];

/// Returns the template of the help: clap itself knows one group of commands alone.
pub(super) fn help_template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("weft"));
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        let _ = write!(text, "\n{header}{title}:{header:#}\n");
        for name in *names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:<11}{literal:#}  {about}");
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_in_one_group_and_takes_one_line() {
        let mut cli = Cli::command();
        let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
        let shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(shown, grouped);
        for help in [cli.render_help(), cli.render_long_help()].map(|help| help.to_string()) {
            let lines: Vec<&str> = help.lines().collect();
            let first = lines.iter().position(|line| *line == "Every day:").unwrap();
            assert!(lines[first + 1].starts_with("  up           Bring an interface up"), "{help}");
            let last = lines.iter().position(|line| *line == "Options:").unwrap();
            assert!(lines[first..last].iter().all(|line| line.len() <= 80), "{help}");
            assert!(help.contains("--version") && help.contains("Exit codes:"), "{help}");
        }
    }
}
