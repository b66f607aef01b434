//! A daemon that answers what the test says, and writes down what it is told.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::sandbox::SOCKETS;

pub(crate) struct FakeDaemon {
    socket: String,
    heard: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeDaemon {
    /// Listens for an interface of this name. `state` is its answer to `get=1`, without `errno`.
    pub(crate) fn start(name: &str, state: &str) -> Self {
        Self::answering(name, state, 0)
    }

    /// Answers every `set=1` with this `errno`.
    pub(crate) fn answering(name: &str, state: &str, errno: i32) -> Self {
        let socket = format!("{SOCKETS}/{name}.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (get, set) = (format!("{state}errno=0\n\n"), format!("errno={errno}\n\n"));
        let written = heard.clone();
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(request) = read_request(&mut stream.as_ref().unwrap()) else { return };
                let answer = if request.starts_with("get=1\n") { &get } else { &set };
                written.lock().unwrap().push(request);
                // A client that only checks for a listener is gone by now.
                let _ = stream.unwrap().write_all(answer.as_bytes());
            }
        });
        Self { socket, heard, thread: Some(thread) }
    }

    /// The changes it was told since it was asked last.
    pub(crate) fn sets(&self) -> Vec<String> {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        heard.into_iter().filter(|request| request.starts_with("set=1\n")).collect()
    }
}

/// A request with the empty line at its end; an empty text from a client that said nothing, and nothing to
/// end by.
fn read_request(stream: &mut &UnixStream) -> Option<String> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\n\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return Some(String::new());
        }
        if byte == *b"\0" {
            return None;
        }
        request.push(byte[0]);
    }
    Some(String::from_utf8(request).unwrap())
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        if let Ok(mut stream) = UnixStream::connect(&self.socket) {
            let _ = stream.write_all(b"\0");
        }
        let _ = self.thread.take().unwrap().join();
        let _ = std::fs::remove_file(&self.socket);
    }
}
