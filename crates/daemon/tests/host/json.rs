//! What commands print with `--json` is what docs/JSON.md says.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::support::{End, NAME, Network, peer};

const PAGE: &str = include_str!("../../../../docs/JSON.md");

/// Adds the paths of all fields: `peers.endpoint` for those of a list, too.
fn add(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                add(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add(value, path, found)),
        _ => {}
    }
}

/// Returns the fields that the page has for a command, and whether each may be left out.
fn documented(command: &str) -> Vec<(String, bool)> {
    let section =
        PAGE.split("\n## ").find(|section| section.starts_with(&format!("weft {command} --json\n")));
    let cells = section.unwrap().lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    // The first field of a row has its whole path, the others are beside it.
    let fields = cells.flat_map(|(cell, _)| {
        let parent = cell.split('`').next().and_then(|first| Some(first.rsplit_once('.')?.0));
        cell.split("`, `").enumerate().map(move |(at, path)| match parent {
            Some(parent) if at > 0 => format!("{parent}.{path}"),
            _ => path.to_owned(),
        })
    });
    let fields = fields.map(|path| (path.replace("[]", ""), path.ends_with('?')));
    fields.map(|(path, is_optional)| (format!(".{}", path.trim_matches(['?', '.'])), is_optional)).collect()
}

#[test]
fn an_interface_with_an_answer_that_is_none_is_an_error_behind_the_others() {
    let Some(network) = Network::new() else { return };
    let _daemon = network.up(&network.file("weft0.conf", &End::new(1).interface("")));
    let path = weft_ipc::runtime_dir::control_socket(&network.records(), &"mute0".parse().unwrap());
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let is_over = AtomicBool::new(false);
    let answer = || {
        for stream in listener.incoming().take_while(|_| !is_over.load(Ordering::Relaxed)) {
            let stream = stream.unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            // A client that only looks whether there is a daemon is gone by now.
            let _ = (&stream).write_all(b"?\n");
        }
    };
    let ended = std::thread::scope(|scope| {
        scope.spawn(answer);
        let ended = network.run(&["status", "--sample", "0"]);
        is_over.store(true, Ordering::Relaxed);
        drop(UnixStream::connect(&path).unwrap());
        ended
    });
    assert!(ended.code == Some(1) && ended.stdout.starts_with("weft0  up "), "{ended:?}");
    assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains("mute0"), "{ended:?}");
}

#[test]
fn the_output_has_the_fields_of_the_page() {
    let Some(network) = Network::new() else { return };
    let [own, laptop, guest] = [1, 2, 3].map(End::new);
    let settings = "ListenPort = 51820\nPostUp = true\n# weft: PeerDNS = 10.77.0.1";
    let text = own.interface(settings)
        + &peer(
            laptop.public(),
            "# friendly_name = laptop\nAllowedIPs = 10.77.0.2/32\n# weft: RateToPeer = 1Mbit",
        )
        + &peer(guest.public(), "AllowedIPs = 10.77.0.3/32\n# weft: Expires = 2999-01-01");
    let file = network.file("weft0.conf", &text);
    let _daemon = network.up(&file);
    for (command, target) in [
        ("status", NAME),
        ("show", NAME),
        ("check", file.to_str().unwrap()),
        ("doctor", file.to_str().unwrap()),
    ] {
        let printed = network.run(&[command, target, "--json"]);
        let value: Value = serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"));
        let mut found = BTreeSet::new();
        add(&value, "", &mut found);
        let page = documented(command);
        for path in &found {
            assert!(page.iter().any(|(known, _)| known == path), "{command}: {path} is not in docs/JSON.md");
        }
        for (path, is_optional) in &page {
            let parent = format!("{}.", path.rsplit_once('.').unwrap().0);
            let is_there = found.iter().any(|other| other.starts_with(&parent));
            assert!(*is_optional || !is_there || found.contains(path), "{command}: there is no {path}");
        }
        let first = if value.is_array() { &value[0] } else { &value };
        assert_eq!(first["version"], 1, "{command}");
    }
}
