//! The daemon's end of the control socket: a dedicated thread, beside the packet thread and the control
//! thread.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use weft_ipc::{Place, ServerThread, Stream, serve_each};
use weft_report::control_socket::line::{Done, Incomplete, Kind, LineBuffer, MAX_REQUEST, Request, decode};
use weft_report::control_socket::{ManageError, Reload};
use zeroize::Zeroizing;

use super::lines::{Line, error_line, ok, parse};
use super::platform::{ListenError, Listener, until_one_is_gone};
use super::{Manage, capture};

/// Maximum number of concurrent clients.
const CLIENTS: usize = 8;
/// Time limit for a client to complete a request that it began, and to read its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for all clients to read what failed at the end of the interface. The thread has a bit longer
/// to end.
const OUTCOME_PATIENCE: Duration = Duration::from_secs(2);
/// How long a client may be silent between requests, unless another client needs its place. `weft top` is
/// silent for less.
const IDLE: Duration = Duration::from_secs(120);
/// Bytes per read.
const READ_BYTES: usize = 16 << 10;
/// Bytes per write.
const WRITE_BYTES: usize = 64 << 10;

/// The clients that have asked for the end of the interface, and wait for it.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Vec<Box<dyn AsyncWrite + Send + Unpin>>>>);

/// A control socket. Dropping it ends the connections and removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    outcome: oneshot::Sender<Vec<String>>,
    thread: ServerThread,
}

impl Server {
    /// Listens on `path`, in a dedicated thread.
    ///
    /// # Errors
    /// Those of [`ListenError`].
    pub fn start(path: &Path, manage: Arc<dyn Manage>) -> Result<Self, ListenError> {
        let failed = |action| move |source| ListenError::Io { action, path: path.to_owned(), source };
        let listener = Listener::open(path)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(CLIENTS)
            .build()
            .map_err(failed("start a runtime for"))?;
        let acceptor = {
            let _context = runtime.enter();
            listener.accept().map_err(failed("serve"))?
        };
        let (outcome, ended) = oneshot::channel();
        let own = path.to_owned();
        let thread = ServerThread::start("weft-control", runtime, async move || {
            let waiting = Waiting::default();
            let serve = |stream, place| serve(stream, Arc::clone(&manage), place, waiting.clone());
            let tell_of_removed = async || {
                loop {
                    until_one_is_gone(&own).await;
                    manage.tell_of_removed();
                }
            };
            let failures = tokio::select! {
                _ = serve_each("the control socket", CLIENTS, async || acceptor.next().await, serve) => return,
                () = tell_of_removed() => return,
                ended = ended => ended.unwrap_or_default(),
            };
            // A client that sees the end of its connection finds no socket.
            drop(acceptor);
            waiting.tell(failures).await;
        });
        let thread = thread.map_err(failed("start a thread for"))?;
        Ok(Self { path: path.to_owned(), outcome, thread })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the clients that have asked for the end of the interface what failed, ends the connections and
    /// removes the socket.
    pub fn end(self, failures: Vec<String>) {
        let _ended = self.outcome.send(failures);
        self.thread.finish();
    }
}

impl Waiting {
    fn add(&self, client: impl AsyncWrite + Send + Unpin + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(client));
    }

    /// Hangs up on the clients. Before that, tells them what failed, if something did.
    async fn tell(&self, failures: Vec<String>) {
        let clients = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if failures.is_empty() {
            return;
        }
        // Serialization of this type cannot fail.
        let line = ok(&Incomplete { failures }).unwrap_or_default();
        let end = Instant::now() + OUTCOME_PATIENCE;
        for mut client in clients {
            // After the end this still writes what fits at once: a slow reader keeps it from no other.
            let _gone = timeout_at(end, client.write_all(&line)).await;
        }
    }
}

/// Answers a client until it disconnects, exceeds a time limit, or sends an oversized line.
async fn serve(
    mut stream: impl Stream + 'static,
    manage: Arc<dyn Manage>,
    place: Arc<Place>,
    waiting: Waiting,
) {
    let mut buffer = LineBuffer::default();
    // Commands that come together connect before the first of them sends.
    place.expect_progress();
    while let Some(line) = read_line(&mut stream, &mut buffer, &place).await {
        place.begin_serving();
        let kind = kind_of(&line);
        if kind == Some(Kind::Capture) {
            return capture::serve(stream, line, buffer.is_empty(), manage).await;
        }
        let asked = Arc::clone(&manage);
        // Blocks on the control thread and may format 10,000 peers, so it runs off the thread that serves the
        // other clients.
        let answered = tokio::task::spawn_blocking(move || answer(&line, &*asked)).await;
        let Ok((answer, is_granted)) = answered else { return };
        let written = timeout(PATIENCE, write_answer(&mut stream, &answer, &place)).await;
        if kind == Some(Kind::Stop) && is_granted {
            // The answer is sent before the stop: the interface may be gone before anything else can be
            // written. The connection stays open until the end of the server, which tells the client that
            // everything is undone.
            waiting.add(stream);
            manage.stop();
            return;
        }
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// Reads the next line. Returns `None` if the connection is to be closed.
async fn read_line(
    stream: &mut impl Stream,
    buffer: &mut LineBuffer,
    place: &Place,
) -> Option<Zeroizing<Vec<u8>>> {
    // Also if the next line has arrived already: otherwise a client that sends requests without pause would
    // keep its place forever.
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
        let count = match timeout_at(deadline, stream.read(&mut bytes)).await {
            Ok(Ok(count @ 1..)) => count,
            _ => return None,
        };
        if std::mem::take(&mut is_idle) {
            // Once per request: the deadline is not extended by each byte.
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

async fn write_answer(stream: &mut impl Stream, answer: &[u8], place: &Place) -> io::Result<()> {
    for part in answer.chunks(WRITE_BYTES) {
        place.expect_progress();
        stream.write_all(part).await?;
    }
    Ok(())
}

fn kind_of(line: &[u8]) -> Option<Kind> {
    parse(line).ok().map(|request| request.request)
}

/// Returns the line that answers a request, and whether the request was granted.
fn answer(line: &[u8], manage: &dyn Manage) -> (Zeroizing<Vec<u8>>, bool) {
    match parse(line).and_then(|request| answer_to(&request, manage)) {
        // Serialization of these types cannot fail.
        Ok(line) => (line.unwrap_or_default(), true),
        Err(error) => (error_line(&error), false),
    }
}

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
                within_command: request.within_command,
                is_saved: request.is_saved,
            };
            Ok(ok(&manage.reload(&reload)?))
        }
        // `serve` ends the interface after the answer.
        Kind::Stop => manage.check_stop(request.within_command).map(|()| ok(&Done {})),
        // `serve` handles captures before this.
        Kind::Capture => Ok(ok(&Done {})),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use weft_ipc::Source;
    use weft_report::StatusReport;

    use super::*;

    struct Idle;

    impl Manage for Idle {
        fn status(&self) -> Result<StatusReport, ManageError> {
            Ok(StatusReport::default())
        }

        fn stop(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn commands_that_connect_before_the_first_one_sends_are_all_answered() {
        let (mut clients, mut accepted): (Vec<_>, Vec<_>) = (0..3 * CLIENTS).map(|_| duplex(1 << 16)).unzip();
        let serve = |stream, place| serve(stream, Arc::new(Idle), place, Waiting::default());
        let next = async || match accepted.pop() {
            Some(stream) => Ok((stream, Source::Unknown)),
            None => std::future::pending().await,
        };
        let ask = async {
            // All that are accepted before one has to give way.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            for client in clients.iter_mut().rev() {
                client.write_all(b"{\"version\":1,\"request\":\"status\"}\n").await.unwrap();
                assert_eq!(client.read_u8().await.unwrap(), b'{');
            }
        };
        tokio::select! {
            _ = serve_each("a socket", CLIENTS, next, serve) => {}
            () = ask => {}
        }
    }
}
