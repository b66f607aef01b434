//! What a shell completes: the interfaces, peers and files of this machine.
//!
//! A person waits for it: what cannot be known at once, or not by this user, is left out.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _};
use weft_config::{self as config, InterfaceName, path_of, peers};
use weft_report::control_socket::{self as socket, Client};

use crate::own_file::interface_of;

/// How long all interfaces together may take to tell their peers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Completes NAME or FILE of an interface that runs.
pub fn running() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        with_files(candidates(running_names(), current), current, |text| text.contains('/'))
    })
}

/// Completes NAME or FILE of an interface that may be started.
pub fn configured() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let names = running_names().into_iter().chain(configured_names()).collect();
        with_files(candidates(names, current), current, |text| !text.is_empty())
    })
}

/// Completes what `weft show` is about.
pub(crate) fn subject() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut names = running_names();
        names.extend(["all", "interfaces"].map(str::to_owned));
        candidates(names, current)
    })
}

/// Completes a peer.
pub fn peer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates(peer_names(), current))
}

/// Completes an interface or a peer.
pub(crate) fn running_or_peer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(running_names().into_iter().chain(peer_names()).collect(), current)
    })
}

/// Completes one of these words, or a peer.
pub(crate) fn words_or_peer(words: fn() -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        candidates(words().into_iter().chain(peer_names()).collect(), current)
    })
}

fn with_files(
    mut found: Vec<CompletionCandidate>,
    current: &OsStr,
    are_wanted: fn(&str) -> bool,
) -> Vec<CompletionCandidate> {
    if are_wanted(&current.to_string_lossy()) {
        found.extend(PathCompleter::file().complete(current));
    }
    found
}

fn candidates(mut values: Vec<String>, current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    values.sort();
    values.dedup();
    // bash alone inserts a candidate as it is, and hands over what it has inserted.
    let is_bash = std::env::var_os("_CLAP_COMPLETE_COMP_TYPE").is_some();
    let words = values.into_iter().map(|value| if is_bash { quoted(&value) } else { value });
    words.filter(|word| word.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

fn quoted(value: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_.,:/=+@%".contains(letter);
    value.chars().flat_map(|letter| (!is_plain(letter)).then_some('\\').into_iter().chain([letter])).collect()
}

fn running_names() -> Vec<String> {
    socket::running().unwrap_or_default().into_iter().map(String::from).collect()
}

fn configured_names() -> Vec<String> {
    let usual = path_of("wg0");
    let entries = usual.parent().and_then(|directory| fs::read_dir(directory).ok()).into_iter().flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|end| end == "conf"));
    files.filter_map(|path| config::name_of(&path).ok()).map(String::from).collect()
}

/// Returns the peers of the interfaces on the command line, else of all: those of the file, disabled ones
/// too, and those that the daemon has. One without a name is called by its key.
fn peer_names() -> Vec<String> {
    let line: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(2).collect();
    let mut known = running_names();
    known.extend(configured_names());
    let is_file = |word: &String| word.contains('/') && Path::new(word).is_file();
    let named: Vec<String> = line.into_iter().filter(|word| known.contains(word) || is_file(word)).collect();
    let (report, reports) = mpsc::channel();
    for target in if named.is_empty() { known } else { named } {
        let report = report.clone();
        // A thread that does not start, or a daemon that hangs, costs the names.
        let ask = move || drop(report.send(peers_of(&target)));
        let _ = std::thread::Builder::new().name("weft-complete".to_owned()).spawn(ask);
    }
    drop(report);
    let end = Instant::now() + PATIENCE;
    let answers =
        std::iter::from_fn(|| reports.recv_timeout(end.saturating_duration_since(Instant::now())).ok());
    answers.flatten().collect()
}

fn peers_of(target: &str) -> Vec<String> {
    let in_file = config::Source::read(target).map(|source| peers::peers(&source.text)).unwrap_or_default();
    let in_file = in_file.into_iter().filter_map(|peer| Some((peer.public_key?.to_string(), peer.name)));
    let status = |name: InterfaceName| Client::connect(&name).and_then(|mut client| client.status()).ok();
    let running = interface_of(target).ok().and_then(status).map(|report| report.peers).unwrap_or_default();
    let running = running.into_iter().map(|peer| (peer.public_key, peer.settings.friendly_name));
    let mut peers: Vec<(String, Option<String>)> = running.collect();
    for (key, name) in in_file {
        if peers.iter().all(|(other, _)| *other != key) {
            peers.push((key, name));
        }
    }
    peers.into_iter().map(|(key, name)| name.unwrap_or(key)).collect()
}
