//! The script, run by sh(1) with a program in the place of weft and a file in the place of rc.subr.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use super::*;

/// Runs a command as rc.subr does: only a known one, and only if the variable says YES or the command has
/// `one` before it.
const RC_SUBR: &str = r#"
load_rc_config() { weft_program=/bin/false; }
warn() { echo "WARNING: $*" >&2; }
run_rc_command() {
    command=${1#one}
    eval "enabled=\$$rcvar"
    [ "$enabled" = YES ] || [ "$command" != "$1" ] || exit 60
    case " start stop $extra_commands " in *" $command "*) ;; *) exit 61 ;; esac
    eval "\$${command}_cmd"
    exit
}
"#;

struct Script {
    directory: tempfile::TempDir,
    name: String,
}

/// A script with a weft that writes its arguments down and ends with this status.
fn script(interface: &str, folder: &str, status: u8) -> Script {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join(folder);
    fs::create_dir(&base).unwrap();
    let program = "#!/bin/sh\nprintf '<%s>' \"$@\" >\"${0%/*}/told\"\necho \"a line of the log\" >&2\n";
    fs::write(base.join("source"), format!("{program}exit {status}\n")).unwrap();
    // Another process writes the program: no child of this one holds it open when it is run.
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(base.join("source")).arg(base.join("weft"));
    assert!(install.status().unwrap().success());
    fs::write(directory.path().join("rc.subr"), RC_SUBR).unwrap();
    let service =
        RcD::new(Path::new("/bin"), directory.path(), &base.join("log"), &interface.parse().unwrap());
    let [weft, file] = ["weft", &format!("{interface}.conf")].map(|name| base.join(name));
    let text = service.text(weft.to_str().unwrap(), file.to_str().unwrap());
    let text = text.replace("/etc/rc.subr", &quoted(directory.path().join("rc.subr").to_str().unwrap()));
    fs::write(directory.path().join("script"), text).unwrap();
    Script { name: service.name, directory }
}

impl Script {
    fn run(&self, command: &str, enabled: &str) -> Output {
        let mut sh = Command::new("sh");
        sh.arg(self.directory.path().join("script")).arg(command);
        sh.env(format!("{}_enable", self.name), enabled).output().unwrap()
    }
}

/// Names with each kind of character.
const NAMES: [&str; 6] = ["wg0", "wg-home", "wg_home", "a.conf", "_=+.-", "-x"];

#[test]
fn the_script_says_what_rc_has_to_run() {
    let [scripts, logs] = ["/usr/local/etc/rc.d", "/var/log/weft"].map(Path::new);
    let service = RcD::new(Path::new("/usr/sbin"), scripts, logs, &"wg-home".parse().unwrap());
    assert_eq!(service.file(), Path::new("/usr/local/etc/rc.d/weft_wg_2dhome"));
    let text = service.text("/usr/local/bin/weft", "/home/o'neill/wg-home.conf");
    let expected = r#"#!/bin/sh
#
# PROVIDE: weft_wg_2dhome
# REQUIRE: NETWORKING
# KEYWORD: shutdown
#
# Made by `weft service install`. `weft service remove` removes it.

. /etc/rc.subr

name="weft_wg_2dhome"
desc="WireGuard interface wg-home"
rcvar="weft_wg_2dhome_enable"
extra_commands="reload status"
start_cmd="weft_start"
stop_cmd="weft_stop"
reload_cmd="weft_reload"
status_cmd="weft_status"

load_rc_config "$name"
: "${weft_wg_2dhome_enable:=NO}"

weft_program='/usr/local/bin/weft'
weft_configuration='/home/o'\''neill/wg-home.conf'
weft_log='/var/log/weft/wg-home.log'
"#;
    assert_eq!(text.split("\nweft_start()").next().unwrap(), expected);
}

#[test]
fn each_command_runs_weft_whatever_the_path() {
    use clap::Parser as _;
    for interface in NAMES {
        for folder in ["plain", "it's a \"<$HOME>\" & `true` \\ *"] {
            for (command, arguments) in [
                ("start", "up --daemon"),
                ("stop", "down"),
                ("reload", "reload"),
                ("status", "service status"),
            ] {
                let script = script(interface, folder, 0);
                let output = script.run(command, "YES");
                assert!(
                    output.status.success() && output.stderr.is_empty() | (command != "start"),
                    "{output:?}"
                );
                let base = script.directory.path().join(folder);
                let told = fs::read_to_string(base.join("told")).unwrap();
                let file = base.join(format!("{interface}.conf"));
                let words: Vec<&str> = arguments.split(' ').chain([file.to_str().unwrap()]).collect();
                let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
                assert_eq!(told, expected);
                crate::cli::Cli::try_parse_from(["weft"].iter().chain(&words)).unwrap();
                assert_eq!(weft_config::name_of(&file).unwrap().as_str(), interface);
            }
        }
    }
}

#[test]
fn a_start_that_fails_says_so_with_the_status_and_the_log() {
    let script = script("wg0", "a b", 78);
    let output = script.run("start", "YES");
    assert_eq!(output.status.code(), Some(78));
    let log = script.directory.path().join("a b/log/wg0.log");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("did not come up") && said.contains(log.to_str().unwrap()), "{said}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "a line of the log\n");
    // The next start keeps the log, and only its owner reads it.
    script.run("start", "YES");
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 2);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&log).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_service_that_is_not_enabled_is_not_started() {
    let script = script("wg-home", "a", 0);
    for (command, enabled, status) in [("start", "NO", 60), ("start", "", 60), ("onestop", "NO", 0)] {
        assert_eq!(script.run(command, enabled).status.code(), Some(status), "{command} {enabled}");
    }
}

#[test]
fn the_shell_takes_every_name_as_its_own_variable() {
    let mut seen = BTreeSet::new();
    for name in
        NAMES.into_iter().chain(["wg_2dhome", "wg__home", "WG0", "wg.0", "wg+0", "_", "__", "-", "2d"])
    {
        let identifier = identifier(&name.parse().unwrap());
        assert!(identifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{identifier}");
        assert_eq!(original(&identifier), name);
        assert!(seen.insert(identifier));
    }
}

/// The way back.
fn original(identifier: &str) -> String {
    let mut text = String::new();
    let mut rest = identifier.chars();
    while let Some(letter) = rest.next() {
        match (letter, rest.as_str()) {
            ('_', after) if after.starts_with('_') => text.push(rest.next().unwrap()),
            ('_', after) => {
                text.push(char::from(u8::from_str_radix(&after[..2], 16).unwrap()));
                rest.nth(1);
            }
            _ => text.push(letter),
        }
    }
    text
}
