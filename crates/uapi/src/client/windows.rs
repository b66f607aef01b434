//! The named pipe of an interface, below a prefix where only administrators can create pipes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::{append, is_whole};

/// The prefix of the pipes of every UAPI implementation.
pub(super) const DIRECTORY: &str = r"\\.\pipe\ProtectedPrefix\Administrators\WireGuard";

/// ERROR_PIPE_BUSY: every instance of the pipe has a client.
const PIPE_BUSY: i32 = 231;

/// Returns the pipe on which an interface's daemon listens.
pub(crate) fn place(interface: &str) -> String {
    format!(r"{DIRECTORY}\{interface}")
}

/// Always false: devices without a daemon cannot be detected here.
pub(super) fn has_device(_: &str) -> bool {
    false
}

/// Returns the names that have a pipe. The system lists all pipes with their prefixes.
pub(super) fn names() -> io::Result<Vec<String>> {
    let prefix = DIRECTORY.trim_start_matches(r"\\.\pipe\").to_owned() + r"\";
    let mut names = Vec::new();
    for entry in fs::read_dir(r"\\.\pipe\")? {
        let name = entry?.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Always true: a pipe disappears with its daemon.
pub(super) fn is_alive(_: &str) -> bool {
    true
}

/// Only administrators can listen below the prefix, unless another program has the pipe already.
const STRANGER: &str = "neither SYSTEM nor the administrators own this pipe: nothing was sent; see which process has it, \
                        and end it";

/// A connection, and the deadline of the exchange.
pub(super) struct Connection {
    pipe: File,
    deadline: Instant,
}

/// Connects to the daemon of an interface.
pub(super) fn connect(interface: &str, deadline: Instant) -> io::Result<Connection> {
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        match OpenOptions::new().read(true).write(true).open(place(interface)) {
            Ok(pipe) if weft_ipc::pipe::is_trusted(&pipe)? => return Ok(Connection { pipe, deadline }),
            Ok(_) => return Err(io::Error::other(STRANGER)),
            Err(error) if error.raw_os_error() == Some(PIPE_BUSY) && Instant::now() + PAUSE < deadline => {
                thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

impl Connection {
    /// Returns no user: the owner was checked already.
    #[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
    pub(super) fn server(&self) -> io::Result<Option<u32>> {
        Ok(None)
    }

    /// Sends the request, and returns the complete answer. A pipe opened this way has no timeouts, so another
    /// thread does the I/O. That thread is abandoned at the deadline.
    pub(super) fn exchange(self, request: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        let (sender, answer) = mpsc::channel();
        let request = Zeroizing::new(request.to_vec());
        let left = self.deadline.saturating_duration_since(Instant::now());
        thread::Builder::new().name("weft-uapi".to_owned()).spawn(move || {
            let _ = sender.send(talk(self.pipe, &request));
        })?;
        answer.recv_timeout(left).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

fn talk(mut pipe: File, request: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
    match pipe.write_all(request) {
        // A daemon that refuses a line answers and closes without reading the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    let mut answer = Zeroizing::new(Vec::new());
    let mut chunk = Zeroizing::new([0; 16 << 10]);
    while !is_whole(&answer) {
        match pipe.read(&mut chunk[..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => append(&mut answer, &chunk[..received])?,
        }
    }
    Ok(answer)
}
