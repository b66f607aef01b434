//! `weft capture`: writes packets of a running interface to a file that Wireshark and tshark can open.
//!
//! The daemon sends blocks of the file over its control socket. The client writes complete blocks only, so
//! that the file is valid wherever it ends.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_ipc::OutputFile;
use weft_report::control_socket::{CaptureRequest, Client, PacketStream, Received, Stopper};

use crate::args::CaptureArgs;
use crate::signals::Signal;
use crate::{output, running, signals};

pub mod pcapng;

/// The maximum time of one read or write, after which signals and deadlines are checked.
const TURN: Duration = Duration::from_millis(500);
/// How long the daemon may take to send the remaining packets after it was asked to end the capture.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the capture waits for a reader of the output that reads nothing, once it has to end.
const UNREAD: Duration = Duration::from_secs(3);

/// Why the capture failed.
#[derive(Debug, thiserror::Error)]
enum CaptureError {
    #[error(
        "standard output is a terminal: pipe it into tshark or wireshark, or write to a file with -w FILE"
    )]
    Terminal,
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
/// When nothing can be captured or written. The file is valid up to that point.
pub fn run(args: &CaptureArgs) -> Result<(), Error> {
    let is_stdout = args.write.as_os_str() == "-";
    if is_stdout && io::stdout().is_terminal() {
        return Err(CaptureError::Terminal.into());
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => the_one_that_runs()?,
    };
    let request = CaptureRequest {
        peer: args.peer.clone(),
        layer: args.stage.map(Into::into),
        snap_bytes: Some(args.snaplen),
    };
    let packets = Client::connect(&name)?.capture(&request)?;
    // The file is created only after the daemon has agreed.
    let out = if is_stdout { Output::stdout() } else { create(&args.write).and_then(Output::of) };
    let out = out.map_err(|source| CaptureError::Write { path: args.write.clone(), source })?;
    let signals = Arc::new(AtomicU32::new(0));
    let (on_signal, stopper) = (Arc::clone(&signals), packets.stopper().map_err(CaptureError::Signals)?);
    let watched = signals::watch(move |signal| {
        count(&on_signal, signal);
        stopper.stop();
    });
    watched.map_err(CaptureError::Signals)?;
    let mut writer = Writer { out, path: &args.write, count: args.count, written: 0, dropped: 0 };
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let end = copy(packets, &mut writer, &EndCondition { until, signals: &signals });
    let Counts { written, dropped } = writer.end(end.is_ok())?;
    let end = end?;
    let why = match end {
        End::Asked => "",
        End::Daemon => "; the interface went down",
        End::Silent => "; the daemon does not answer any more",
        End::Cut => "; the last ones were not waited for",
        End::Unread => "; the reader stopped, and did not receive all of them",
    };
    let slow = if dropped > 0 { " (they were read too slowly)" } else { "" };
    // On standard error, because standard output may be the capture.
    output::progress(&format!(
        "{name}: {written} packets captured, {dropped} dropped by the capture{slow}{why}\n"
    ));
    Ok(())
}

/// A capture into a file while something else goes on.
pub struct Background {
    thread: JoinHandle<Result<Counts, Error>>,
    stopper: Stopper,
    end: Arc<AtomicU32>,
}

/// The packets of a capture.
pub struct Counts {
    pub written: u64,
    pub dropped: u64,
}

impl Background {
    /// Begins to capture. The file is created only after the daemon has agreed.
    ///
    /// # Errors
    /// The daemon refuses, or the file cannot be created.
    pub fn start(name: &InterfaceName, request: &CaptureRequest, path: &Path) -> Result<Self, Error> {
        let packets = Client::connect(name)?.capture(request)?;
        let path = path.to_owned();
        let out = create(&path).and_then(Output::of);
        let out = out.map_err(|source| CaptureError::Write { path: path.clone(), source })?;
        let stopper = packets.stopper().map_err(CaptureError::Signals)?;
        let end = Arc::new(AtomicU32::new(0));
        let signals = Arc::clone(&end);
        let capture = move || {
            let mut writer = Writer { out, path: &path, count: None, written: 0, dropped: 0 };
            let end = copy(packets, &mut writer, &EndCondition { until: None, signals: &signals });
            let counts = writer.end(end.is_ok())?;
            end.map(|_| counts)
        };
        let thread = std::thread::Builder::new().name("weft-capture".to_owned()).spawn(capture)?;
        Ok(Self { thread, stopper, end })
    }

    /// Ends the capture, and waits for the packets that the daemon still has.
    ///
    /// # Errors
    /// The file could not be written. It is valid up to that point.
    pub fn end(self) -> Result<Counts, Error> {
        self.end.fetch_add(1, Ordering::Relaxed);
        self.stopper.stop();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn the_one_that_runs() -> Result<InterfaceName, Error> {
    let names = running::ask_all(|client| Ok(client.name().clone()))?.all()?;
    match &names[..] {
        [name] => Ok(name.clone()),
        names => {
            let names: Vec<_> = names.iter().map(InterfaceName::as_str).collect();
            Err(CaptureError::Several(names.join(", ")).into())
        }
    }
}

/// Opens the file. On Unix a new file is accessible to its owner only: captured packets are private.
fn create(path: &Path) -> io::Result<OutputFile> {
    OutputFile::create(path, 0o600)
}

#[cfg_attr(unix, path = "capture/unix.rs")]
#[cfg_attr(not(unix), path = "capture/windows.rs")]
mod platform;

use platform::Output;

/// Why the capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A signal or a limit, or the reader of the output is gone.
    Asked,
    /// The daemon ended the capture.
    Daemon,
    /// The daemon was asked to end the capture and did not in time.
    Silent,
    /// A second signal ended the wait for the daemon.
    Cut,
    /// The reader of the output did not read all of it.
    Unread,
}

/// Counts a signal. Only a second Ctrl-C ends the wait for the last packets: timeout(1) sends its signal to
/// the command, and then to its group.
fn count(signals: &AtomicU32, signal: Signal) {
    match signal {
        Signal::Interrupt => signals.fetch_add(1, Ordering::Relaxed),
        Signal::Terminate | Signal::HangUp => signals.fetch_max(1, Ordering::Relaxed),
    };
}

/// The conditions that end the capture.
struct EndCondition<'a> {
    until: Option<Instant>,
    /// The number of signals received. The signal handler has asked the daemon to end the capture.
    signals: &'a AtomicU32,
}

impl EndCondition<'_> {
    fn signals(&self) -> u32 {
        self.signals.load(Ordering::Relaxed)
    }

    fn is_met(&self, now: Instant) -> bool {
        self.signals() > 0 || self.until.is_some_and(|until| until <= now)
    }
}

/// The result of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// The number of bytes that were complete blocks; all of them were processed.
    All(usize),
    /// The reader of the output is gone.
    Abandoned,
    /// The reader of the output has stopped reading, and the capture has to end.
    Stuck,
}

/// The output, and the counters of what was written to it.
struct Writer<'a> {
    out: Output,
    path: &'a Path,
    count: Option<u64>,
    written: u64,
    dropped: u64,
}

impl Writer<'_> {
    /// Writes the complete blocks in `bytes`, without packets beyond the limit.
    fn write_blocks(&mut self, bytes: &[u8], end: &EndCondition<'_>) -> Result<Written, CaptureError> {
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
        match self.write_all(&chosen, end) {
            Ok(true) => Ok(Written::All(done)),
            Ok(false) => Ok(Written::Stuck),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::Abandoned),
            Err(source) => Err(CaptureError::Write { path: self.path.to_owned(), source }),
        }
    }

    /// Writes `bytes`, and reports whether all of them were written. Waits for a slow reader until the
    /// capture has to end, then at most [`UNREAD`], and not at all after a second signal.
    fn write_all(&mut self, mut bytes: &[u8], end: &EndCondition<'_>) -> io::Result<bool> {
        let mut stuck_since = None;
        while !bytes.is_empty() {
            let count = self.out.write(bytes, TURN)?;
            bytes = &bytes[count..];
            let now = Instant::now();
            if count > 0 || !(self.is_full() || end.is_met(now)) {
                stuck_since = None;
            } else if now - *stuck_since.get_or_insert(now) >= UNREAD {
                return Ok(false);
            }
            if end.signals() > 1 {
                return Ok(bytes.is_empty());
            }
        }
        Ok(true)
    }

    /// Puts the file in place. One that is not whole replaces no earlier one.
    fn end(self, is_whole: bool) -> Result<Counts, CaptureError> {
        let file = self.out.into_file();
        let kept = if is_whole {
            file.keep()
        } else {
            file.keep_if_new();
            Ok(())
        };
        kept.map_err(|source| CaptureError::Write { path: self.path.to_owned(), source })?;
        Ok(Counts { written: self.written, dropped: self.dropped })
    }

    fn is_full(&self) -> bool {
        self.count.is_some_and(|count| self.written >= count)
    }
}

/// Copies until the daemon ends the capture. Asks the daemon to end it at a limit; the signal handler does so
/// for a signal.
fn copy(mut packets: PacketStream, writer: &mut Writer<'_>, end: &EndCondition<'_>) -> Result<End, Error> {
    let mut given_up_at = None;
    let mut pending = packets.take_rest();
    let mut has_ended = false;
    loop {
        match writer.write_blocks(&pending, end)? {
            Written::All(done) => drop(pending.drain(..done)),
            Written::Abandoned => return Ok(End::Asked),
            Written::Stuck => return Ok(End::Unread),
        }
        if has_ended {
            let was_asked = given_up_at.is_some() || end.signals() > 0;
            return Ok(if was_asked { End::Asked } else { End::Daemon });
        }
        let now = Instant::now();
        if given_up_at.is_none() && (writer.is_full() || end.is_met(now)) {
            packets.stop();
            given_up_at = Some(now + PATIENCE);
        }
        if end.signals() > 1 {
            return Ok(End::Cut);
        }
        if given_up_at.is_some_and(|at| at <= now) {
            return Ok(End::Silent);
        }
        let wait = end.until.filter(|_| given_up_at.is_none()).map_or(TURN, |until| TURN.min(until - now));
        match packets.read(&mut pending, wait)? {
            Received::Bytes => {}
            // A write would fail, but there is nothing to write.
            Received::Nothing if writer.out.is_abandoned() => return Ok(End::Asked),
            Received::Nothing => {}
            Received::End => has_ended = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ctrl_c_hurries() {
        let after = |signals: &[Signal]| {
            let number = AtomicU32::new(0);
            signals.iter().for_each(|signal| count(&number, *signal));
            number.into_inner()
        };
        assert_eq!(after(&[Signal::Terminate, Signal::Terminate, Signal::HangUp]), 1);
        assert_eq!(after(&[Signal::Interrupt]), 1);
        assert!(after(&[Signal::Interrupt, Signal::Interrupt]) > 1);
        assert!(after(&[Signal::Terminate, Signal::Interrupt]) > 1);
    }
}
