//! The log in the journal, with fields.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::stat::fstat;
use weft_lab::{PATIENCE, mounts, wait_until};

/// The socket of the journal's native protocol.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Runs `work` on a thread with a private, empty `/run`; reports where that is not permitted.
fn with_own_run(work: impl FnOnce() + Send) {
    mounts::run_separate(|| mounts::empty("/run"), work);
}

/// The fields of an entry in journald's native protocol: `NAME=value` lines, or a name, a length and a value.
fn fields(mut bytes: &[u8]) -> HashMap<String, Vec<String>> {
    let mut fields: HashMap<String, Vec<String>> = HashMap::new();
    while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (name, value);
        if let Some(equals) = line.iter().position(|&byte| byte == b'=') {
            (name, value) = (text(&line[..equals]), text(&line[equals + 1..]));
            bytes = rest;
        } else {
            let length = usize::try_from(u64::from_le_bytes(rest[..8].try_into().unwrap())).unwrap();
            (name, value) = (text(line), text(&rest[8..8 + length]));
            bytes = &rest[8 + length + 1..];
        }
        let values = fields.entry(name).or_default();
        // The journal keeps equal ones once.
        if !values.contains(&value) {
            values.push(value);
        }
    }
    fields
}

/// `weft up` of a file that is not there; standard error is a stream that JOURNAL_STREAM names, or does not.
fn weft(is_named: bool, arguments: &[&str]) -> String {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stat = fstat(&theirs).unwrap();
    let number = if is_named { stat.st_ino } else { stat.st_ino + 1 };
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(arguments)
        .env_remove("RUST_LOG")
        .env("JOURNAL_STREAM", format!("{}:{number}", stat.st_dev))
        .env("WEFT_RUNTIME_DIR", "/run/weft")
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    wait_until("it ends", || child.try_wait().unwrap());
    let mut text = String::new();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Read::read_to_string(&mut &ours, &mut text).unwrap();
    text
}

#[test]
fn what_is_logged_into_the_journal_has_fields() {
    with_own_run(|| {
        std::fs::create_dir_all(Path::new(SOCKET).parent().unwrap()).unwrap();
        let journal = UnixDatagram::bind(SOCKET).unwrap();
        journal.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let entries = || {
            let mut entries = Vec::new();
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length) = journal.recv(&mut bytes) {
                entries.extend(Some(fields(&bytes[..length])).filter(|fields| !fields.is_empty()));
            }
            entries
        };
        // A configuration with something to warn of: host bits.
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("office.conf");
        let key = weft_tunnel::PrivateKey::generate().unwrap();
        let peer = weft_tunnel::PrivateKey::generate().unwrap().public_key();
        let text = format!(
            "[Interface]\nPrivateKey = {}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.1.2.3/8\n",
            *key.to_base64()
        );
        std::fs::write(&file, text).unwrap();
        let up = ["up", file.to_str().unwrap(), "--dry-run"];

        let stderr = weft(true, &up);
        let logged = entries();
        let warning = logged.iter().find(|entry| entry["MESSAGE"][0].contains("host bits")).unwrap();
        assert_eq!(warning["INTERFACE"], ["office"]);
        assert_eq!((&warning["PRIORITY"][0][..], &warning["SYSLOG_IDENTIFIER"][0][..]), ("4", "weft"));
        assert!(!stderr.contains("host bits"), "told twice: {stderr}");
        assert!(!format!("{logged:?}").contains(&*key.to_base64()));

        // Somewhere else it is the text that it always was, and JSON where that was asked for.
        let stderr = weft(false, &up);
        assert!(stderr.contains("host bits"), "{stderr}");
        let json = weft(true, &[&up[..], &["--log-format", "json"]].concat());
        assert!(json.contains("\"message\":") && json.contains("host bits"), "{json}");
        assert_eq!(entries().len(), 0);
    });
    // Without a listener it is text again.
    with_own_run(|| {
        let stderr = weft(true, &["up", "/nowhere/office.conf", "--log", "debug"]);
        assert!(stderr.contains("/nowhere/office.conf"), "{stderr}");
    });
}
