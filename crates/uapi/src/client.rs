//! A client of the cross-platform UAPI: reads and changes the state of an interface that weft, wireguard-go
//! or boringtun runs.
//!
//! An exchange is one request and one answer over a new connection, bounded in time and size. A daemon that
//! is stopped is not waited for as long as one that applies a large change.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use weft_config::InterfaceName;
use weft_config::device::{DeviceChange, DeviceState};
use weft_config::exit::{Code, Error};
use weft_ipc::Connection;
use weft_ipc::holder::with_state;
use weft_ipc::runtime_dir::{self, Users};
use weft_tunnel::PublicKey;
use zeroize::Zeroizing;

use crate::errno::error_of;

pub mod answer;
pub mod request;
#[cfg(test)]
mod tests;
#[cfg_attr(unix, path = "client/unix.rs")]
#[cfg_attr(windows, path = "client/windows.rs")]
mod transport;

pub use answer::AnswerProblem;
#[cfg(windows)]
pub(crate) use transport::place as pipe_of;

/// The time limit of an exchange.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a daemon may take to begin its answer: to a short request, and for each KiB of a longer one. A
/// daemon on a small machine needs several seconds for ten thousand new peers, which are about 2 MiB.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
const KIB_PATIENCE: Duration = Duration::from_millis(25);
/// The maximum bytes of an answer: a hundred thousand peers with some allowed-ips each.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The state of an interface, as its daemon reports it.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The interface and its peers.
    pub state: DeviceState,
    /// The public key of the interface, also if the daemon does not report the private key, as with
    /// boringtun.
    pub public_key: Option<PublicKey>,
}

/// Why an exchange with a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum UapiError {
    #[error("cannot list the interfaces in {place}: {error}{}", permission_hint(error))]
    List { place: String, error: io::Error },
    #[error(
        "{interface}: no daemon answers at {place}; is the interface up? `weft show interfaces` lists those that are"
    )]
    NotRunning { interface: InterfaceName, place: String },
    #[error(
        "{interface}: the interface is there, but no daemon answers for it at {place}; if it is the kernel's own \
         WireGuard, use wg(8)"
    )]
    NotOurs { interface: InterfaceName, place: String },
    #[error("{interface}: cannot reach its daemon at {place}: {error}{}", permission_hint(error))]
    Connect { interface: InterfaceName, place: String, error: io::Error },
    #[error(
        "{interface}: user {user} listens at {place}, and not {expected}: nothing was sent; see which process it is \
         (`ss -xlp`), end it, and remove the socket"
    )]
    Stranger { interface: InterfaceName, place: String, user: u32, expected: Users },
    #[error(
        "{interface} does not answer within {seconds} s: its daemon{process} hangs, or the machine is overloaded"
    )]
    Timeout { interface: InterfaceName, seconds: u64, process: String },
    #[error("{interface}: the connection to its daemon broke: {error}; look at its log")]
    Broken { interface: InterfaceName, error: io::Error },
    #[error("{interface}: its daemon refused: {error}{}; its log may say more", meaning(error))]
    Refused { interface: InterfaceName, error: io::Error },
    #[error("{interface}: its daemon's answer cannot be understood: {problem}")]
    Answer { interface: InterfaceName, problem: AnswerProblem },
}

fn permission_hint(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied { "; run weft as root" } else { "" }
}

/// Returns the usual cause of an error of `set`.
fn meaning(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another program has that UDP port; choose another one)",
        io::ErrorKind::InvalidInput => " (it takes one of the values for invalid)",
        _ => "",
    }
}

impl UapiError {
    /// Returns the exit code of a command that fails with this error.
    pub fn exit_code(&self) -> Code {
        match self {
            Self::List { error, .. } | Self::Connect { error, .. } | Self::Refused { error, .. }
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                Code::Permission
            }
            Self::Stranger { .. } => Code::Permission,
            _ => Code::Failure,
        }
    }

    fn during_exchange(
        interface: &InterfaceName,
        error: io::Error,
        limits: &Limits,
        process: Option<u32>,
    ) -> Self {
        let interface = interface.clone();
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let seconds = limits.begin.elapsed().as_secs();
                Self::Timeout { interface, seconds, process: with_state(process) }
            }
            _ => Self::Broken { interface, error },
        }
    }

    fn on_connecting(interface: &InterfaceName, error: io::Error) -> Self {
        let (interface, place) = (interface.clone(), transport::place(interface.as_str()));
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                if transport::has_device(interface.as_str()) {
                    Self::NotOurs { interface, place }
                } else {
                    Self::NotRunning { interface, place }
                }
            }
            io::ErrorKind::TimedOut => {
                Self::Timeout { interface, seconds: SHORT_PATIENCE.as_secs(), process: String::new() }
            }
            _ => Self::Connect { interface, place, error },
        }
    }
}

impl From<UapiError> for Error {
    fn from(error: UapiError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

/// Returns the interfaces that have a daemon, sorted by name. A socket that a dead daemon left behind is
/// skipped; a socket that this user may not open counts.
pub fn interfaces() -> Result<Vec<InterfaceName>, UapiError> {
    let names = transport::names()
        .map_err(|error| UapiError::List { place: transport::DIRECTORY.to_owned(), error })?;
    let mut found: Vec<InterfaceName> = names.iter().filter_map(|name| name.parse().ok()).collect();
    found.retain(|name| transport::is_alive(name.as_str()));
    found.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    found.dedup();
    Ok(found)
}

/// Reads the state of an interface.
pub fn get(interface: &InterfaceName) -> Result<Reported, UapiError> {
    let answer = exchange(interface, b"get=1\n\n")?;
    let parsed = answer::parse_get(&answer);
    let reported = parsed
        .map_err(|problem| UapiError::Answer { interface: interface.clone(), problem })?
        .map_err(|errno| refused(interface, errno))?;
    Ok(reported)
}

/// Applies a change to an interface.
pub fn set(interface: &InterfaceName, change: &DeviceChange) -> Result<(), UapiError> {
    let answer = exchange(interface, &request::set(change))?;
    let errno = answer::parse_set(&answer);
    match errno.map_err(|problem| UapiError::Answer { interface: interface.clone(), problem })? {
        0 => Ok(()),
        errno => Err(refused(interface, errno)),
    }
}

fn refused(interface: &InterfaceName, errno: i32) -> UapiError {
    UapiError::Refused { interface: interface.clone(), error: error_of(errno) }
}

fn exchange(interface: &InterfaceName, request: &[u8]) -> Result<Zeroizing<Vec<u8>>, UapiError> {
    let place = transport::place(interface.as_str());
    let connection = Connection::connect(Path::new(&place), Instant::now() + SHORT_PATIENCE)
        .map_err(|error| UapiError::on_connecting(interface, error))?;
    check_server(interface, &connection)?;
    let limits = Limits::of(request);
    converse(&connection, request, &limits)
        .map_err(|error| UapiError::during_exchange(interface, error, &limits, connection.server_process()))
}

/// The time limits of an exchange.
struct Limits {
    begin: Instant,
    /// Until the first byte of the answer.
    first: Duration,
    /// Until its end.
    whole: Duration,
}

impl Limits {
    fn of(request: &[u8]) -> Self {
        let kib = u32::try_from(request.len() >> 10).unwrap_or(u32::MAX);
        let first = SHORT_PATIENCE.saturating_add(KIB_PATIENCE.saturating_mul(kib)).min(PATIENCE);
        Self { begin: Instant::now(), first, whole: PATIENCE }
    }
}

/// Sends the request, and returns the complete answer.
fn converse(connection: &Connection, request: &[u8], limits: &Limits) -> io::Result<Zeroizing<Vec<u8>>> {
    let first = limits.begin + limits.first;
    match connection.write_all(request, first) {
        // A daemon that refuses a line answers and closes without reading the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    let mut answer = Zeroizing::new(Vec::new());
    let mut chunk = Zeroizing::new([0; 16 << 10]);
    while !is_whole(&answer) {
        let deadline = if answer.is_empty() { first } else { limits.begin + limits.whole };
        match connection.read(&mut chunk[..], deadline)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => append(&mut answer, &chunk[..received])?,
        }
    }
    Ok(answer)
}

/// Verifies that the user that listens may run the interface. Otherwise no keys are sent, and no answer is
/// trusted. The user of the services can create sockets in the socket directory; it may run an interface if
/// it owns the directory of that interface in [`runtime_dir`].
fn check_server(interface: &InterfaceName, connection: &Connection) -> Result<(), UapiError> {
    let (interface, place) = (interface.clone(), transport::place(interface.as_str()));
    let user = match connection.server() {
        Ok(Some(user)) => user,
        Ok(None) => return Ok(()),
        Err(error) => return Err(UapiError::Connect { interface, place, error }),
    };
    let instance = runtime_dir::instance(&runtime_dir::runtime_dir(), &interface);
    // A runtime directory that other users may change does not count.
    let expected = runtime_dir::users(&instance).unwrap_or_else(|_| Users::of_process());
    if expected.trusts(user) { Ok(()) } else { Err(UapiError::Stranger { interface, place, user, expected }) }
}

/// Reports whether `answer` is complete: it ends with an empty line.
fn is_whole(answer: &[u8]) -> bool {
    answer.ends_with(b"\n\n")
}

/// Appends to a buffer that may hold keys. When the buffer grows, no copy is left behind.
fn append(buffer: &mut Zeroizing<Vec<u8>>, bytes: &[u8]) -> io::Result<()> {
    let needed = buffer.len() + bytes.len();
    if needed > MAX_ANSWER_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of more than 64 MiB"));
    }
    if needed > buffer.capacity() {
        let mut larger = Zeroizing::new(Vec::with_capacity(needed.max(2 * buffer.capacity())));
        larger.extend_from_slice(buffer);
        *buffer = larger;
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}
