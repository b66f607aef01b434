//! The packages as they come and go: installed, upgraded, removed and purged by dpkg, and by rpm, on a copy
//! in memory of the system of this machine. They hold the program of the tests; what else is in them is what
//! `scripts/package` puts there. And the image for containers.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use weft_lab as lab;

mod image;

/// What the scenarios need of this machine.
const PROGRAMS: [&str; 7] =
    ["dpkg", "dpkg-shlibdeps", "jq", "strip", "systemd-sysusers", "unshare", "chroot"];
/// Seconds, more than anything here needs on a busy machine.
const PATIENCE: &str = "600";

enum Run {
    /// This machine cannot run it.
    NotHere(String),
    /// Each scenario with how it went, and what was said.
    Done { results: Vec<(String, String)>, log: String },
}

static RUN: LazyLock<Run> = LazyLock::new(run);

/// Fails if the scenario did.
#[track_caller]
fn check(run: &Run, scenario: &str) {
    match run {
        Run::NotHere(reason) => lab::not_run(scenario, reason),
        Run::Done { results, log } => {
            let result = results.iter().find(|(_, name)| name == scenario);
            let how = result.map_or("never run", |(how, _)| how.as_str());
            match how.strip_prefix("not run: ") {
                Some(reason) => lab::not_run(scenario, reason),
                None => assert_eq!(how, "ok", "{scenario}:\n{log}"),
            }
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Where programs are looked for: also where `scripts/test` puts its own.
fn path() -> String {
    let tools = root().join("target/tools/bin");
    format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default())
}

fn is_there(program: &str) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", &format!("command -v {program}")]).env("PATH", path()).stdout(Stdio::null());
    look.status().unwrap().success()
}

/// Why there can be no .rpm, if so.
fn rpm_possible() -> Result<(), String> {
    if !is_there("cargo-generate-rpm") {
        return Err(
            "cargo-generate-rpm is not installed (cargo install cargo-generate-rpm --locked)".to_owned()
        );
    }
    if !is_there("rpm") {
        return Err("rpm is not installed".to_owned());
    }
    Ok(())
}

/// Reports whether this is root of the machine itself.
fn is_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let has_all_users = map.split_whitespace().eq(["0", "0", "4294967295"]);
    nix::unistd::geteuid().is_root() && has_all_users
}

/// Why it cannot even be tried, if so.
fn possible() -> Result<(), String> {
    if !is_root() {
        return Err("installing a package, if only on a copy of the system, needs root".to_owned());
    }
    if !is_there("cargo-deb") {
        return Err("cargo-deb is not installed (cargo install cargo-deb --locked)".to_owned());
    }
    match PROGRAMS.into_iter().find(|program| !is_there(program)) {
        Some(program) => Err(format!("{program} is not installed")),
        None => Ok(()),
    }
}

/// Builds the packages in this revision, signed with the key if there is one, and puts them there.
fn package(revision: &str, kinds: &[&str], key: Option<&Path>, directory: &Path) {
    let output = Command::new("timeout")
        .arg(PATIENCE)
        .arg(root().join("scripts/package"))
        .args(["--program", env!("CARGO_BIN_EXE_weft"), "--revision", revision])
        .args(kinds)
        .env("PATH", path())
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .env("WEFT_MAINTAINER", "Test & Co <test@localhost>")
        .envs(key.map(|key| ("WEFT_SIGNING_KEY", key)))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "scripts/package: {}", String::from_utf8_lossy(&output.stderr));
    for made in fs::read_dir(root().join("target/package/out")).unwrap() {
        let made = made.unwrap();
        fs::copy(made.path(), directory.join(made.file_name())).unwrap();
    }
}

fn run() -> Run {
    if let Err(reason) = possible() {
        return Run::NotHere(reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let kinds: &[&str] = if rpm_possible().is_ok() { &["deb", "rpm"] } else { &["deb"] };
    let packages = directory.path().join("packages");
    fs::create_dir(&packages).unwrap();
    let key = is_there("minisign").then(|| directory.path().join("key"));
    if let Some(key) = &key {
        let mut generate = Command::new("minisign");
        generate
            .args(["-G", "-W", "-p"])
            .arg(packages.join("key.pub"))
            .arg("-s")
            .arg(key)
            .stdout(Stdio::null());
        assert!(generate.status().unwrap().success());
    }
    for revision in ["1", "2"] {
        package(revision, kinds, key.as_deref(), &packages);
    }
    scenarios_of("root.sh", directory.path(), &[])
}

/// Runs a script in mount and network namespaces that end with it. It has the directory for what it makes,
/// and writes the results there.
fn scenarios_of(script: &str, directory: &Path, arguments: &[&str]) -> Run {
    let output = Command::new("timeout")
        .args([PATIENCE, "unshare", "--mount", "--propagation", "private", "--net", "bash"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packaging").join(script))
        .arg(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut log = String::from_utf8_lossy(&output.stdout).into_owned();
    log.push_str(&String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        return Run::NotHere(log.lines().last().unwrap_or_default().to_owned());
    }
    let results = fs::read_to_string(directory.join("results")).unwrap_or_default();
    let result = |line: &str| line.split_once('\t').map(|(how, name)| (how.to_owned(), name.to_owned()));
    Run::Done { results: results.lines().filter_map(result).collect(), log }
}

macro_rules! scenarios {
    ($($possible:ident: $($name:ident)*;)*) => { $($(
        #[test]
        fn $name() {
            match $possible() {
                Err(reason) => lab::not_run(stringify!($name), &reason),
                Ok(()) => check(&RUN, stringify!($name)),
            }
        }
    )*)* };
}

scenarios! {
    possible:
    what_was_made_is_signed
    an_installation_brings_everything_and_starts_nothing
    an_upgrade_keeps_what_the_operator_wrote
    a_removal_leaves_configurations_alone
    a_purge_leaves_keys_and_nothing_else
    a_removal_leaves_what_an_interface_that_runs_needs
    nothing_is_left_of_the_deb
    every_command_of_the_gateway_guide_works
    the_readme_takes_a_gateway_to_a_phone
    an_upgrade_restarts_what_runs_and_a_removal_stops_it;

    rpm_possible:
    the_rpm_has_what_the_deb_has
    an_rpm_brings_everything_and_starts_nothing
    an_rpm_upgrade_keeps_what_the_operator_wrote
    an_rpm_erasure_leaves_keys_and_what_was_edited
    an_rpm_erasure_leaves_what_an_interface_that_runs_needs
    an_rpm_erasure_leaves_directories_of_other_packages
    nothing_is_left_of_the_rpm
    an_rpm_upgrade_restarts_what_runs_and_an_erasure_stops_it;
}
