//! The client of the control socket. Its calls block; it starts no thread.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use weft_config::{self as config, InterfaceName};
use weft_ipc::Connection;
use weft_ipc::holder::with_state;
use weft_ipc::runtime_dir::{self, Users, control_socket, runtime_dir, user_dir};
use zeroize::Zeroizing;

use super::line::{
    self, Answer, Done, Incomplete, Kind, LineBuffer, MAX_ANSWER, Request, encode, room_around, to_line,
};
use super::{CaptureRequest, ClientError, Received, Reload, ReloadReport, VERSION};
use crate::StatusReport;

/// How long the client waits for a whole answer that takes work: a reload resolves names and configures the
/// kernel.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits for other whole answers, however many parts they come in.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
/// The time between two looks at an end that is waited for.
const INTERVAL: Duration = Duration::from_secs(4);
/// How long the daemon may take to accept the byte that ends a capture.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How long the socket of a daemon that has hung up at its end may still be there, and the pause between
/// looks.
const GONE_PATIENCE: Duration = Duration::from_secs(3);
const GONE_PAUSE: Duration = Duration::from_millis(20);
/// The maximum bytes of the line that says what failed at an end.
const MAX_OUTCOME: usize = 1 << 20;
/// How often a request is sent again to a daemon that hangs up.
const TRIES: usize = 4;
/// The size of a read buffer, in bytes.
const READ_BYTES: usize = 64 << 10;

/// Returns the interfaces that have a socket in the runtime directory, or in that of this user, sorted by
/// name. A daemon may not answer.
pub fn running() -> io::Result<Vec<InterfaceName>> {
    let mut names = running_in(&runtime_dir())?;
    if let Some(own) = own_directory() {
        names.extend(running_in(&own)?);
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        names.dedup();
    }
    Ok(names)
}

/// Returns the directory of interfaces that this user runs without root, if it is another one.
fn own_directory() -> Option<PathBuf> {
    // One that is not the user's alone has none.
    user_dir().ok().filter(|own| *own != runtime_dir())
}

/// Returns the interfaces that have a socket in this runtime directory, sorted by name. A daemon may not
/// answer.
pub fn running_in(directory: &Path) -> io::Result<Vec<InterfaceName>> {
    runtime_dir::interfaces(directory)
}

/// Returns where the sockets are: the runtime directory, or on Windows the prefix of the pipes.
pub fn place() -> PathBuf {
    runtime_dir::place_of_sockets(&runtime_dir())
}

/// A connection to a running interface.
#[derive(Debug)]
pub struct Client {
    name: InterfaceName,
    path: PathBuf,
    connection: Connection,
}

impl Client {
    /// Returns the path of an interface's socket in the runtime directory.
    pub fn path_of(name: &InterfaceName) -> PathBuf {
        control_socket(&runtime_dir(), name)
    }

    /// Connects to the socket of an interface: one that this user runs without root, else in the runtime
    /// directory.
    ///
    /// # Errors
    /// Those of [`ClientError`]: [`ClientError::NotRunning`] if no process listens, [`ClientError::Stranger`]
    /// if the process that listens belongs to a user that may not run the interface.
    pub fn connect(name: &InterfaceName) -> Result<Self, ClientError> {
        if let Some(own) = own_directory() {
            match Self::connect_in(&own, name) {
                Err(ClientError::NotRunning { .. }) => {}
                connected => return connected,
            }
        }
        Self::connect_to(name, Self::path_of(name))
    }

    /// Connects to the socket of an interface in another runtime directory, such as that of a daemon in
    /// another namespace.
    ///
    /// # Errors
    /// Those of [`Self::connect`].
    pub fn connect_in(directory: &Path, name: &InterfaceName) -> Result<Self, ClientError> {
        Self::connect_to(name, control_socket(directory, name))
    }

    /// Connects to this socket.
    ///
    /// # Errors
    /// Those of [`Self::connect`].
    pub fn connect_to(name: &InterfaceName, path: PathBuf) -> Result<Self, ClientError> {
        match Connection::connect(&path, Instant::now() + SHORT_PATIENCE) {
            Ok(connection) => {
                check_server(name, &path, &connection)?;
                Ok(Self { name: name.clone(), path, connection })
            }
            Err(source) => Err(match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::NotRunning { name: name.to_string(), path }
                }
                io::ErrorKind::PermissionDenied => ClientError::Forbidden { name: name.to_string(), path },
                io::ErrorKind::TimedOut => timed_out(name, SHORT_PATIENCE, None),
                _ => ClientError::Io { name: name.to_string(), path, source },
            }),
        }
    }

    /// Connects again: an answer that was not received may still come over the old connection.
    ///
    /// # Errors
    /// Those of [`Self::connect`].
    pub fn reconnect(&mut self) -> Result<(), ClientError> {
        *self = Self::connect_to(&self.name, self.path.clone())?;
        Ok(())
    }

    /// Reports whether the interface is one of the runtime directory: not one that this user runs without
    /// root.
    pub fn is_of_runtime_directory(&self) -> bool {
        self.path == Self::path_of(&self.name)
    }

    /// Returns the process that runs the interface, if the system tells.
    pub fn server_process(&self) -> Option<u32> {
        self.connection.server_process()
    }

    /// Returns the user that runs the daemon, unless that is root or this user.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn other_user(&self) -> Result<Option<u32>, ClientError> {
        let user = self.connection.server().map_err(|error| self.failed(error, PATIENCE))?;
        Ok(user.filter(|user| !Users::of_process().trusts(*user)))
    }

    pub fn name(&self) -> &InterfaceName {
        &self.name
    }

    /// Requests the file that the interface was brought up from, if it has one.
    ///
    /// # Errors
    /// Those of [`Self::status`], and [`ClientError::OthersFile`] if the daemon runs as another user, which
    /// does not decide what this process reads.
    pub fn own_file(&mut self) -> Result<Option<PathBuf>, ClientError> {
        let Some(file) = self.status()?.file.map(PathBuf::from) else { return Ok(None) };
        match self.other_user()? {
            Some(user) if file != config::path_of(self.name.as_str()) => {
                Err(ClientError::OthersFile { name: self.name.to_string(), user, file })
            }
            _ => Ok(Some(file)),
        }
    }

    /// Requests the state of the interface.
    pub fn status(&mut self) -> Result<StatusReport, ClientError> {
        let line = self.ask(&Request::of(Kind::Status), 0, SHORT_PATIENCE)?;
        self.understand(&line)
    }

    /// Applies a configuration file to the interface, or for a dry run reports the changes only.
    pub fn reload(&mut self, reload: &Reload) -> Result<ReloadReport, ClientError> {
        let base64 = encode(&reload.text);
        let request = Request {
            file: Some(reload.file.to_string_lossy().into_owned()),
            config_base64: Some(&base64),
            dry_run: reload.dry_run,
            within_command: reload.within_command,
            is_saved: reload.is_saved,
            ..Request::of(Kind::Reload)
        };
        let line = self.ask(&request, room_around(&base64), PATIENCE)?;
        self.understand(&line)
    }

    /// Takes the interface down, and waits until the daemon has undone everything and closes the connection.
    /// `within_command`: a command of the interface's configuration wants this. `goes_on` is called every few
    /// seconds with the time that has passed, and says whether to wait further. Returns what failed; the
    /// interface is down nevertheless.
    ///
    /// # Errors
    /// Those of [`ClientError`]: [`ClientError::Refused`] if the end would wait for the command that wants
    /// it, [`ClientError::StillServed`] if the daemon only says that the interface is gone.
    pub fn stop(
        mut self,
        within_command: bool,
        mut goes_on: impl FnMut(Duration) -> bool,
    ) -> Result<Vec<String>, ClientError> {
        let begin = Instant::now();
        let request = Request { within_command, ..Request::of(Kind::Stop) };
        let (line, mut rest) = self.ask_for_more(&request, 0, SHORT_PATIENCE)?;
        let Done {} = self.understand(&line)?;
        let mut outcome = rest.next(MAX_OUTCOME).map_err(|_| self.garbled("the line does not end"))?;
        let mut bytes = [0; 4096];
        let mut look = begin + INTERVAL;
        loop {
            // Also looks between the parts of a line that does not end.
            let count = match self.connection.read(&mut bytes, look) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                Err(error) if error.kind() == io::ErrorKind::TimedOut && goes_on(begin.elapsed()) => {
                    look = Instant::now() + INTERVAL;
                    continue;
                }
                other => other.map_err(|error| self.failed(error, begin.elapsed()))?,
            };
            if count == 0 {
                self.check_gone()?;
                let outcome = outcome.map(|line| self.understand::<Incomplete>(&line)).transpose()?;
                return Ok(outcome.map_or_else(Vec::new, |incomplete| incomplete.failures));
            }
            if outcome.is_none() {
                let line = rest.push(&bytes[..count], MAX_OUTCOME);
                outcome = line.map_err(|_| self.garbled("the line does not end"))?;
            }
        }
    }

    /// Checks that the process that was to end the interface serves it no more. It may hang up a moment
    /// before its socket is gone.
    fn check_gone(&self) -> Result<(), ClientError> {
        let until = Instant::now() + GONE_PATIENCE;
        let Some(process) = self.server_process().filter(|_| cfg!(unix)) else { return Ok(()) };
        let serves = || {
            let again = Self::connect_to(&self.name, self.path.clone()).ok();
            again.and_then(|again| again.server_process()) == Some(process)
        };
        while serves() {
            if Instant::now() >= until {
                return Err(ClientError::StillServed { name: self.name.to_string(), process });
            }
            std::thread::sleep(GONE_PAUSE);
        }
        Ok(())
    }

    /// Starts a capture.
    pub fn capture(mut self, request: &CaptureRequest) -> Result<PacketStream, ClientError> {
        let request = Request {
            peer: request.peer.clone(),
            stage: request.layer,
            snap_bytes: request.snap_bytes,
            ..Request::of(Kind::Capture)
        };
        let (line, rest) = self.ask_for_more(&request, 0, SHORT_PATIENCE)?;
        let Done {} = self.understand(&line)?;
        Ok(PacketStream { rest: rest.into_rest().to_vec(), client: self })
    }

    /// Sends a request and returns the line that answers it.
    fn ask(
        &mut self,
        request: &Request<'_>,
        room: usize,
        patience: Duration,
    ) -> Result<Zeroizing<Vec<u8>>, ClientError> {
        Ok(self.ask_for_more(request, room, patience)?.0)
    }

    /// Sends a request and returns the line that answers it, and a buffer with the bytes that came after that
    /// line. Connects again where the daemon has hung up on a request that it has not read: it gives the
    /// place of a client to another one, but not while it serves a request.
    fn ask_for_more(
        &mut self,
        request: &Request<'_>,
        room: usize,
        patience: Duration,
    ) -> Result<(Zeroizing<Vec<u8>>, LineBuffer), ClientError> {
        let end = Instant::now() + patience;
        let line = to_line(request, room).map_err(|error| self.garbled(error))?;
        let mut tries = 0..TRIES;
        loop {
            let mut buffer = LineBuffer::default();
            let failed = match self.ask_once(&line, &mut buffer, end) {
                Ok(answer) => return Ok((answer, buffer)),
                Err(Unanswered::Endless) => return Err(self.garbled("the line does not end")),
                Err(Unanswered::Io(error)) => error,
            };
            // Where it has read the whole request, the connection ends without an error. That matters for a
            // request that changes something.
            let is_unread = match failed.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    cfg!(unix) || request.request == Kind::Status
                }
                io::ErrorKind::UnexpectedEof => request.request == Kind::Status,
                _ => false,
            };
            if !is_unread || !buffer.is_empty() || tries.next().is_none() {
                return Err(self.failed(failed, patience));
            }
            self.reconnect()?;
        }
    }

    fn ask_once(
        &self,
        line: &[u8],
        buffer: &mut LineBuffer,
        end: Instant,
    ) -> Result<Zeroizing<Vec<u8>>, Unanswered> {
        self.connection.write_all(line, end)?;
        let mut bytes = Zeroizing::new(vec![0; READ_BYTES]);
        loop {
            let count = self.connection.read(&mut bytes, end)?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon has hung up").into());
            }
            if let Some(line) = buffer.push(&bytes[..count], MAX_ANSWER).map_err(|_| Unanswered::Endless)? {
                return Ok(line);
            }
        }
    }

    fn understand<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, ClientError> {
        let answer: Answer<T> = line::parse(line).map_err(|error| {
            // The text of the error is left out: it may quote a part of the line.
            self.garbled(format_args!("{:?} error in column {}", error.classify(), error.column()))
        })?;
        match answer {
            Answer { error: Some(error), .. } => Err(ClientError::Refused(error.into())),
            Answer { version: VERSION, ok: Some(content), .. } => Ok(content),
            Answer { version, .. } => Err(self.garbled(format_args!("version {version} without content"))),
        }
    }

    fn garbled(&self, reason: impl std::fmt::Display) -> ClientError {
        ClientError::Garbled { name: self.name.to_string(), reason: reason.to_string() }
    }

    fn failed(&self, source: io::Error, patience: Duration) -> ClientError {
        match source.kind() {
            io::ErrorKind::TimedOut => timed_out(&self.name, patience, self.server_process()),
            _ => ClientError::Io { name: self.name.to_string(), path: self.path.clone(), source },
        }
    }
}

/// Why there is no answer.
enum Unanswered {
    Io(io::Error),
    /// Its line does not end.
    Endless,
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Verifies that the user that listens may run the interface. Otherwise nothing is sent: a configuration
/// contains the private key.
fn check_server(name: &InterfaceName, path: &Path, connection: &Connection) -> Result<(), ClientError> {
    let failed = |source| ClientError::Io { name: name.to_string(), path: path.to_owned(), source };
    let Some(user) = connection.server().map_err(failed)? else { return Ok(()) };
    let expected = runtime_dir::users(path.parent().unwrap_or(Path::new(".")))?;
    if expected.trusts(user) {
        return Ok(());
    }
    Err(ClientError::Stranger { name: name.to_string(), path: path.to_owned(), user, expected })
}

/// The packets of a capture, as blocks of a pcapng file. Dropping it ends the capture.
#[derive(Debug)]
pub struct PacketStream {
    client: Client,
    rest: Vec<u8>,
}

/// Ends a capture from another thread.
#[derive(Debug)]
pub struct Stopper {
    connection: Connection,
}

impl PacketStream {
    /// Returns the bytes that came with the answer to the request.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest)
    }

    /// Appends the bytes that arrive within `patience` to `bytes`.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn read(&mut self, bytes: &mut Vec<u8>, patience: Duration) -> Result<Received, ClientError> {
        let mut chunk = [0; READ_BYTES];
        // A call after its deadline would not read the bytes that have arrived.
        let deadline = Instant::now() + patience.max(Duration::from_millis(1));
        match self.client.connection.read(&mut chunk, deadline) {
            Ok(0) => Ok(Received::End),
            Ok(count) => {
                bytes.extend_from_slice(&chunk[..count]);
                Ok(Received::Bytes)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::TimedOut => Ok(Received::Nothing),
                io::ErrorKind::ConnectionReset => Ok(Received::End),
                _ => Err(self.client.failed(error, PATIENCE)),
            },
        }
    }

    /// Asks the daemon to end the capture. Packets captured before still arrive.
    pub fn stop(&self) {
        end(&self.client.connection);
    }

    /// Returns a handle that ends the capture from another thread.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper { connection: self.client.connection.try_clone()? })
    }
}

impl Stopper {
    /// Ends the capture, as [`PacketStream::stop`].
    pub fn stop(&self) {
        end(&self.connection);
    }
}

/// Ends a capture: any byte does.
fn end(connection: &Connection) {
    // Fails if the daemon has closed the connection already.
    let _ = connection.write_all(b"\n", Instant::now() + END_PATIENCE);
}

fn timed_out(name: &InterfaceName, patience: Duration, process: Option<u32>) -> ClientError {
    ClientError::Timeout { name: name.to_string(), seconds: patience.as_secs(), process: with_state(process) }
}
