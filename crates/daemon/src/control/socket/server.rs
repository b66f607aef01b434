//! The daemon's end of the control socket: a thread of its own, beside packets and control thread.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use weft_ipc::listener::{self, ListenError};
use weft_ipc::runtime_dir;
use weft_ipc::{Place, Source, serve_each};
use weft_report::control_socket::line::{
    Answer, Done, Kind, LineBuffer, MAX_REQUEST, Request, RequestVersion, WireError, decode, to_line,
};
use weft_report::control_socket::{ManageError, Reload, VERSION};
use weft_tun::thread_guard::EndProcessOnPanic;
use zeroize::Zeroizing;

use super::{Manage, capture};

/// Clients at once.
const CLIENTS: usize = 8;
/// How long a client may take for a request that it began, and for taking its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may be silent between requests, where no other one needs its place. `weft top` is silent
/// for less.
const IDLE: Duration = Duration::from_secs(120);
/// Read at once.
const READ_BYTES: usize = 16 << 10;
/// Written at once.
const WRITE_BYTES: usize = 64 << 10;
/// Room for a line, at first; a status of many peers grows.
const LINE_ROOM: usize = 4096;

/// A control socket. Dropping it ends the connections and removes the socket.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `path`, in a thread of its own.
    ///
    /// # Errors
    /// Those of [`ListenError`].
    pub fn start(path: &Path, manage: Arc<dyn Manage>) -> Result<Self, ListenError> {
        let failed = |action| move |source| ListenError::Io { action, path: path.to_owned(), source };
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        let unmade =
            |source| ListenError::Io { action: "make the directory", path: directory.clone(), source };
        runtime_dir::make(&directory).map_err(unmade)?;
        runtime_dir::adopt(&directory)?;
        let (listener, file) = listener::listen(path, 0o700)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(CLIENTS)
            .build()
            .map_err(failed("start a runtime for"))?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("weft-control".to_owned())
            .spawn(move || {
                let _guard = EndProcessOnPanic;
                runtime.block_on(async {
                    // Only a runtime without I/O refuses it.
                    let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
                    let next = async || {
                        let (stream, _) = listener.accept().await?;
                        let source = Source::from(&stream);
                        Ok((stream, source))
                    };
                    let serve = |stream, place| serve(stream, Arc::clone(&manage), place);
                    tokio::select! {
                        _ = stopped => {}
                        _ = serve_each(CLIENTS, next, serve) => {}
                    }
                });
                // Before the connections end: then nothing is left.
                drop(file);
                runtime_dir::leave(&directory);
                // A request may wait for the control thread, which waits for this thread.
                runtime.shutdown_background();
            })
            .map_err(failed("start a thread for"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The guard ends the process on a panic, so this always succeeds.
            let _ = thread.join();
        }
    }
}

/// Answers a client until it leaves, takes too long, or asks for what is no request.
async fn serve(stream: UnixStream, manage: Arc<dyn Manage>, place: Arc<Place>) {
    let mut buffer = LineBuffer::default();
    let mut stops;
    while let Some(line) = read_line(&stream, &mut buffer, &place).await {
        place.begin_serving();
        match kind_of(&line) {
            Some(Kind::Capture) => return capture::serve(&stream, line, manage).await,
            kind => stops = kind == Some(Kind::Stop),
        }
        let asked = Arc::clone(&manage);
        // Waits for the control thread, and formats what may be 10,000 peers: not on the thread of the others.
        let Ok(answer) = tokio::task::spawn_blocking(move || answer(&line, &*asked)).await else { return };
        let written = timeout(PATIENCE, write_answer(&stream, &answer, &place)).await;
        if stops {
            place.begin_serving();
            // Answered first: the interface may be gone before anything can be written.
            manage.stop();
            // The end of the connection says that everything is undone; the server's end is what ends it.
            let _ = timeout(IDLE, std::future::pending::<()>()).await;
            return;
        }
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// The next line; `None` ends the connection.
async fn read_line(
    stream: &UnixStream,
    buffer: &mut LineBuffer,
    place: &Place,
) -> Option<Zeroizing<Vec<u8>>> {
    // Also where the next line is there already: a client that never stops asking keeps no other out.
    place.expect_request();
    match buffer.next(MAX_REQUEST) {
        Ok(None) => {}
        Ok(line) => return line,
        Err(_) => return None,
    }
    let mut bytes = Zeroizing::new(vec![0; READ_BYTES]);
    let mut is_idle = buffer.is_empty();
    let mut deadline = Instant::now() + if is_idle { IDLE } else { PATIENCE };
    loop {
        let count = timeout_at(deadline, read(stream, &mut bytes)).await.ok()??;
        if std::mem::take(&mut is_idle) {
            // Once a request: bytes alone keep no place for longer.
            place.expect_progress();
            deadline = Instant::now() + PATIENCE;
        }
        match buffer.push(&bytes[..count], MAX_REQUEST) {
            Ok(None) => {}
            Ok(line) => return line,
            Err(_) => return None,
        }
    }
}

/// Reads once; `None` at the end of the connection.
async fn read(stream: &UnixStream, bytes: &mut [u8]) -> Option<usize> {
    loop {
        stream.readable().await.ok()?;
        match stream.try_read(bytes) {
            Ok(0) => return None,
            Ok(count) => return Some(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

async fn write_answer(stream: &UnixStream, answer: &[u8], place: &Place) -> io::Result<()> {
    for part in answer.chunks(WRITE_BYTES) {
        place.expect_progress();
        write_all(stream, part).await?;
    }
    Ok(())
}

pub(super) async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn kind_of(line: &[u8]) -> Option<Kind> {
    parse(line).ok().map(|request| request.request)
}

pub(super) fn parse(line: &[u8]) -> Result<Request<'_>, ManageError> {
    match serde_json::from_slice::<RequestVersion>(line) {
        Ok(RequestVersion { version: VERSION }) => {}
        Ok(RequestVersion { version }) => {
            return Err(ManageError::Failed(format!(
                "the daemon understands version {VERSION} of the control socket, not {version}: restart the \
                 interface with the weft that is installed"
            )));
        }
        Err(error) => return Err(not_a_request(&error)),
    }
    serde_json::from_slice(line).map_err(|error| not_a_request(&error))
}

/// Says what kind of error it was, and where; never what stood there, which may be a key.
fn not_a_request(error: &serde_json::Error) -> ManageError {
    ManageError::Failed(format!("not a request: {:?} error in column {}", error.classify(), error.column()))
}

/// The line that answers a line.
fn answer(line: &[u8], manage: &dyn Manage) -> Zeroizing<Vec<u8>> {
    let answer = parse(line).and_then(|request| answer_to(&request, manage));
    // Nothing of these types can fail to be formatted.
    answer.map_or_else(|error| error_line(&error), Result::unwrap_or_default)
}

/// The line that says why there is no answer.
pub(super) fn error_line(error: &ManageError) -> Zeroizing<Vec<u8>> {
    let error: Answer<Done> = Answer { version: VERSION, ok: None, error: Some(WireError::from(error)) };
    to_line(&error, LINE_ROOM).unwrap_or_default()
}

type Line = serde_json::Result<Zeroizing<Vec<u8>>>;

fn answer_to(request: &Request<'_>, manage: &dyn Manage) -> Result<Line, ManageError> {
    match request.request {
        Kind::Status => Ok(ok(&manage.status()?)),
        Kind::Reload => {
            let missing = || ManageError::Failed("a reload without config_base64".to_owned());
            let text = decode(request.config_base64.ok_or_else(missing)?);
            let reload = Reload {
                text: text.map_err(|reason| ManageError::Configuration(reason.to_owned()))?,
                file: request.file.clone().unwrap_or_default().into(),
                dry_run: request.dry_run,
            };
            Ok(ok(&manage.reload(&reload)?))
        }
        // A capture is served before this.
        Kind::Capture | Kind::Stop => Ok(ok(&Done {})),
    }
}

pub(super) fn ok(content: &impl Serialize) -> Line {
    to_line(&Answer { version: VERSION, ok: Some(content), error: None }, LINE_ROOM)
}
