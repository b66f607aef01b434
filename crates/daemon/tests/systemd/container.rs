//! Boots the container once, waits for what its scenarios find, and ends it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use weft_lab as lab;

/// How long the container may be silent. All scenarios together take less than a minute, unless the machine
/// is busy with other things.
const PATIENCE: Duration = Duration::from_secs(240);
/// The same before the first scenario has begun.
const BOOT_PATIENCE: Duration = Duration::from_secs(90);
/// What the container needs of this machine.
const PROGRAMS: [&str; 9] =
    ["systemd-nspawn", "systemd-analyze", "unshare", "ip", "ping", "wg", "iperf3", "jq", "perl"];

/// What a scenario found: whether all was well, and what it measured.
struct Outcome {
    is_ok: bool,
    detail: String,
}

enum Run {
    /// This machine cannot run it.
    NotHere(String),
    Done {
        outcomes: HashMap<String, Outcome>,
        /// What the scenarios and the container said.
        log: String,
    },
}

static RUN: LazyLock<Run> = LazyLock::new(run);

/// Fails if the scenario did.
#[track_caller]
pub(crate) fn check(scenario: &str) {
    match &*RUN {
        Run::NotHere(reason) => lab::not_run(scenario, reason),
        Run::Done { outcomes, log } => match outcomes.get(scenario) {
            Some(Outcome { is_ok: true, detail }) => {
                if let Some(reason) = detail.strip_prefix("not run: ") {
                    lab::not_run(scenario, reason);
                }
            }
            Some(Outcome { is_ok: false, detail }) => panic!("{detail}\n{}", about(scenario, log)),
            None => panic!("the container never came to it:\n{log}"),
        },
    }
}

/// The part of the log that a scenario wrote.
fn about<'a>(scenario: &str, log: &'a str) -> &'a str {
    let begin = log.find(&format!("== {scenario}\n")).unwrap_or(0);
    let end = log[begin..].match_indices("\n== ").next().map_or(log.len(), |(end, _)| begin + end);
    &log[begin..end]
}

fn run() -> Run {
    if let Err(reason) = possible() {
        return Run::NotHere(reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/systemd");
    let console = directory.path().join("console");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "bash"])
        .arg(here.join("boot.sh"))
        .arg(directory.path())
        .arg(env!("CARGO_BIN_EXE_weft"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd"))
        .arg(&here)
        .args(crate::SCENARIOS)
        .stdin(Stdio::null())
        .stdout(File::create(&console).unwrap())
        .stderr(File::options().append(true).open(&console).unwrap());
    let mut container = Container(command.spawn().unwrap());
    let results = directory.path().join("out/results");
    let start = Instant::now();
    let (mut told, mut spoken) = (0, (start, 0));
    let log_file = directory.path().join("out/log");
    let ended = loop {
        let text = fs::read_to_string(&results).unwrap_or_default();
        let lines: Vec<&str> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
        for line in &lines[told..] {
            progress(line, start);
        }
        told = lines.len();
        if lines.last() == Some(&"end\n") {
            break true;
        }
        let is_over = container.0.try_wait().unwrap().is_some();
        let size = |file: &Path| file.metadata().map_or(0, |file| file.len());
        let said = size(&console) + size(&log_file) + size(&results);
        if said > spoken.1 {
            spoken = (Instant::now(), said);
        }
        let patience = if told == 0 { BOOT_PATIENCE } else { PATIENCE };
        if is_over || spoken.0.elapsed() > patience {
            break false;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    drop(container);
    if let Ok(group) = fs::read_to_string(directory.path().join("group")) {
        remove_groups(group.trim_end());
    }
    let read = |file: PathBuf| fs::read(file).map(|text| String::from_utf8_lossy(&text).into_owned());
    let console = read(console).unwrap_or_default();
    let log = read(log_file).unwrap_or_default();
    if !ended && told == 0 && log.is_empty() && is_forbidden(&console) {
        let last = console.lines().last().unwrap_or_default();
        return Run::NotHere(format!("a container cannot be booted here: {last}"));
    }
    let outcomes = outcomes(&fs::read_to_string(&results).unwrap_or_default());
    Run::Done { outcomes, log: if ended { log } else { format!("{log}\n{console}") } }
}

fn outcomes(text: &str) -> HashMap<String, Outcome> {
    let outcome = |line: &str| {
        let mut parts = line.splitn(3, '\t');
        let (is_ok, name) = (parts.next()? == "ok", parts.next()?.to_owned());
        Some((name, Outcome { is_ok, detail: parts.next().unwrap_or_default().to_owned() }))
    };
    text.lines().filter_map(outcome).collect()
}

/// Prints a line past the capture of the test harness.
fn progress(line: &str, start: Instant) {
    let line =
        format!("systemd {:5.1} s: {}\n", start.elapsed().as_secs_f32(), line.trim().replace('\t', "  "));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Why it cannot even be tried, if so.
fn possible() -> Result<(), String> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let has_all_users = map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !nix::unistd::geteuid().is_root() || !has_all_users {
        return Err("booting a container needs root".to_owned());
    }
    for program in PROGRAMS {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        if !found.status.success() {
            return Err(format!("{program} is not installed"));
        }
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("there is no /dev/net/tun".to_owned());
    }
    Ok(())
}

/// Whether no container can be booted on this machine, as within another container.
fn is_forbidden(console: &str) -> bool {
    ["ermission denied", "not permitted", "Read-only file system", "unknown filesystem"]
        .iter()
        .any(|text| console.contains(text))
}

/// Removes the control groups of this name: on a machine with the hierarchies of cgroups(7), version 1,
/// systemd-nspawn makes one in systemd's as well.
fn remove_groups(name: &str) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        if let (Some(place), Some("cgroup" | "cgroup2")) = (fields.next(), fields.next()) {
            remove_group(&Path::new(place).join(name));
        }
    }
}

/// Removes a control group and those in it, once the last process in them is gone.
fn remove_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    let start = Instant::now();
    while fs::remove_dir(group).is_err() && group.exists() && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// systemd-nspawn. Its end is the end of everything in it.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        // Nothing in it is worth a shutdown.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
