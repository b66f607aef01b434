//! HTTP requests to the server of metrics, over its socket.
//!
//! Whatever a client sends, the server answers in whole answers of known kinds, closes the connection when
//! the client has closed its side, and goes on serving.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weft::metrics::{Listener, Server};
use weft_config::metrics::Address;
use weft_report::{PeerReport, StatusReport};

/// Longer requests do not fit the buffer of a socket beside their answers.
const MOST: usize = 8 << 10;
const STATUS: [&str; 9] = ["200", "400", "404", "405", "414", "421", "431", "503", "505"];

fn report() -> StatusReport {
    let peer = |number: usize| PeerReport {
        public_key: format!("key{number}"),
        endpoint: (number == 1).then(|| "192.0.2.1:51820".to_owned()),
        ..PeerReport::default()
    };
    StatusReport { peers: (0..3).map(peer).collect(), ..StatusReport::default() }
}

/// The server of all inputs, and its socket.
fn server() -> &'static PathBuf {
    static SERVER: OnceLock<(PathBuf, Server)> = OnceLock::new();
    let (path, _) = SERVER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("weft-fuzz-{}.sock", std::process::id()));
        let listener = Listener::open(&Address::Unix(path.clone())).unwrap();
        let server = Server::start(listener, &[], Arc::new(|| Ok(report()))).unwrap();
        (path, server)
    });
    path
}

pub(crate) fn check(bytes: &[u8]) {
    let mut client = UnixStream::connect(server()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The server may close while the client still sends.
    let _ = client.write_all(&bytes[..bytes.len().min(MOST)]);
    let _ = client.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match client.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server hangs"),
    }
    if answer.is_empty() {
        return;
    }
    let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    assert!(status.is_some_and(|status| STATUS.contains(&status)), "{head:?}");
}
