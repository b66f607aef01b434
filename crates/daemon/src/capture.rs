//! `weft capture`: packets of a running interface, into a file that Wireshark and tshark open.
//!
//! The daemon sends blocks of the file over its control socket; this end writes whole blocks only, so that the file is
//! good whenever it ends.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::cli::CaptureArgs;
use crate::config::InterfaceName;
use crate::control::socket::{self, CaptureRequest, Client, ClientError, PacketStream, Received};
use crate::exit::{Code, Error};
use crate::signals;
use crate::status::cannot_look;

mod outer;
mod pcapng;
mod recording;

pub use recording::Recording;

/// How long a signal may wait to be looked at, and the daemon's silence at the end.
const TURN: Duration = Duration::from_millis(500);
/// How long the daemon may take to send what was seen before the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
enum CaptureError {
    #[error(
        "standard output is a terminal: pipe it into tshark or wireshark, or write to a file with -w FILE"
    )]
    Terminal,
    #[error("no interface is running under weft")]
    NothingRuns,
    #[error("several interfaces are running: say which ({0})")]
    Several(String),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    NotABlock(#[from] pcapng::NotABlock),
}

impl From<CaptureError> for Error {
    fn from(error: CaptureError) -> Self {
        let code = match &error {
            CaptureError::Terminal | CaptureError::Several(_) => Code::Usage,
            CaptureError::Write { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Code::Permission
            }
            _ => Code::Failure,
        };
        Self::new(code, error)
    }
}

/// Captures until a signal, a limit or the end of the interface.
///
/// # Errors
/// When nothing can be captured or written; the file is good up to there.
pub fn run(args: &CaptureArgs) -> Result<(), Error> {
    let is_stdout = args.write.as_os_str() == "-";
    if is_stdout && io::stdout().is_terminal() {
        return Err(CaptureError::Terminal.into());
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => the_one_that_runs()?,
    };
    let request =
        CaptureRequest { peer: args.peer.clone(), stage: args.stage, snap_bytes: Some(args.snaplen) };
    let packets = Client::connect(&name)?.capture(&request)?;
    // Not before the daemon agreed: a file that is there may be wanted.
    let out: Box<dyn Write> =
        if is_stdout { Box::new(io::stdout().lock()) } else { Box::new(create(&args.write)?) };
    let signals = Arc::new(AtomicU32::new(0));
    let (on_signal, stopper) = (Arc::clone(&signals), packets.stopper().map_err(CaptureError::Signals)?);
    let watched = signals::watch(move |_| {
        on_signal.fetch_add(1, Ordering::Relaxed);
        stopper.stop();
    });
    watched.map_err(CaptureError::Signals)?;
    let mut writer = Writer { out, path: &args.write, count: args.count, written: 0, dropped: 0 };
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let end = copy(packets, &mut writer, until, &signals)?;
    let Writer { written, dropped, .. } = writer;
    let why = match end {
        End::Asked => "",
        End::Daemon => "; the interface went down",
        End::Silent => "; the daemon does not answer any more",
    };
    let slow = if dropped > 0 { " (they were read too slowly)" } else { "" };
    // Where the output is, a line of ours must not be; there is nowhere left to tell it if this fails.
    let _ = writeln!(
        io::stderr(),
        "{name}: {written} packets captured, {dropped} dropped by the capture{slow}{why}"
    );
    Ok(())
}

fn the_one_that_runs() -> Result<InterfaceName, Error> {
    let answers = |name: &InterfaceName| match Client::connect(name) {
        Ok(_) => Ok(true),
        Err(ClientError::NotRunning { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    let mut running = Vec::new();
    for name in socket::running().map_err(|error| cannot_look(&error))? {
        if answers(&name)? {
            running.push(name);
        }
    }
    match running.pop() {
        None => Err(CaptureError::NothingRuns.into()),
        Some(one) if running.is_empty() => Ok(one),
        Some(last) => {
            running.push(last);
            let names: Vec<String> = running.iter().map(ToString::to_string).collect();
            Err(CaptureError::Several(names.join(", ")).into())
        }
    }
}

/// What passes through a tunnel is nobody else's business.
fn create(path: &Path) -> Result<File, CaptureError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    platform::for_the_owner(&mut options);
    options.open(path).map_err(|source| CaptureError::Write { path: path.to_owned(), source })
}

#[cfg_attr(unix, path = "capture/unix.rs")]
#[cfg_attr(not(unix), path = "capture/other.rs")]
mod platform;

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A signal or a limit, or nobody reads what is written.
    Asked,
    /// The daemon ended it.
    Daemon,
    /// The daemon did not answer to the wish to end.
    Silent,
}

/// The file, and what went into it.
struct Writer<'a> {
    out: Box<dyn Write>,
    path: &'a Path,
    count: Option<u64>,
    written: u64,
    dropped: u64,
}

impl Writer<'_> {
    /// Writes the whole blocks in `bytes`, and gives how many bytes they were; `None`: nobody reads on.
    fn write_blocks(&mut self, bytes: &[u8]) -> Result<Option<usize>, CaptureError> {
        let mut done = 0;
        let mut chosen = Vec::with_capacity(bytes.len());
        while let Some(block) = pcapng::first_block(&bytes[done..])? {
            done += block.bytes.len();
            match block.kind() {
                pcapng::PACKET if self.is_full() => continue,
                pcapng::PACKET => self.written += 1,
                pcapng::STATISTICS => self.dropped += block.dropped(),
                _ => {}
            }
            chosen.extend_from_slice(block.bytes);
        }
        match self.out.write_all(&chosen).and_then(|()| self.out.flush()) {
            Ok(()) => Ok(Some(done)),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
            Err(source) => Err(CaptureError::Write { path: self.path.to_owned(), source }),
        }
    }

    fn is_full(&self) -> bool {
        self.count.is_some_and(|count| self.written >= count)
    }
}

/// Copies until the daemon sends no more, which it is asked for at a limit; a signal has asked already.
fn copy(
    mut packets: PacketStream,
    writer: &mut Writer<'_>,
    until: Option<Instant>,
    signals: &AtomicU32,
) -> Result<End, Error> {
    let mut given_up_at = None;
    let mut pending = packets.take_rest();
    loop {
        match writer.write_blocks(&pending)? {
            Some(done) => drop(pending.drain(..done)),
            None => return Ok(End::Asked),
        }
        let now = Instant::now();
        let asked = signals.load(Ordering::Relaxed);
        if given_up_at.is_none() && (asked > 0 || writer.is_full() || until.is_some_and(|until| until <= now))
        {
            packets.stop();
            given_up_at = Some(now + PATIENCE);
        }
        if asked > 1 || given_up_at.is_some_and(|at| at <= now) {
            return Ok(End::Silent);
        }
        let wait = until.filter(|_| given_up_at.is_none()).map_or(TURN, |until| TURN.min(until - now));
        match packets.read(&mut pending, wait)? {
            Received::Bytes | Received::Nothing => {}
            Received::End if given_up_at.is_some() || signals.load(Ordering::Relaxed) > 0 => {
                writer.write_blocks(&pending)?;
                return Ok(End::Asked);
            }
            Received::End => {
                writer.write_blocks(&pending)?;
                return Ok(End::Daemon);
            }
        }
    }
}
