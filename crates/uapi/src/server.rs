//! Serves the UAPI on a Unix socket or a named pipe of Windows, on a dedicated thread.
//!
//! Calls of [`Control`] block until the control thread answers, so other threads make them. Slow clients do
//! not delay other clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use weft_ipc::{ServerThread, serve_each};

use crate::Control;

mod calls;
mod client;
#[cfg_attr(unix, path = "server/socket.rs")]
#[cfg_attr(windows, path = "server/pipe.rs")]
mod platform;

use calls::Reads;
use client::Client;
use platform::Acceptor;
pub use platform::{Descriptor, Listener, SocketError, path_of, remove_dead};

/// The number of threads for calls of [`Control`]: a long change does not delay requests that read the state.
const CALLS: usize = 2;

/// Limits on clients.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The maximum number of clients at a time.
    clients: usize,
    /// The maximum time until the next piece of a request that has begun.
    read: Duration,
    /// The maximum time from the first line of a request to its last.
    request: Duration,
    /// The maximum time until the client has read a piece of an answer.
    write: Duration,
    /// A request of more bytes is large. Only one large request is read at a time.
    large: usize,
}

impl Default for Limits {
    /// wg(8) writes a request and reads the answer in milliseconds.
    fn default() -> Self {
        Self {
            clients: 32,
            read: Duration::from_secs(10),
            request: Duration::from_secs(60),
            write: Duration::from_secs(10),
            large: 1 << 20,
        }
    }
}

/// A socket that is served. Dropping it stops it, as [`Self::stop`].
#[derive(Debug)]
pub struct Server {
    thread: ServerThread,
}

impl Server {
    /// Serves `listener` on a new thread, which calls `on_gone` when the socket's file was removed or
    /// replaced: no client can find the interface any more, and wireguard-go exits in this case. Connected
    /// clients are still served.
    ///
    /// # Errors
    /// When the system cannot create the thread or the runtime.
    pub fn start(
        listener: Listener,
        control: Arc<dyn Control>,
        on_gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(listener, control, on_gone, Limits::default())
    }

    fn start_with(
        listener: Listener,
        control: Arc<dyn Control>,
        on_gone: impl FnOnce() + Send + 'static,
        limits: Limits,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(CALLS)
            .thread_name("weft-uapi-call")
            .build()?;
        let acceptor = {
            let _context = runtime.enter();
            listener.accept()?
        };
        let thread = ServerThread::start("weft-uapi", runtime, async move || {
            tokio::select! {
                () = serve(&acceptor, &control, limits) => {}
                () = tell_when_gone(&acceptor, on_gone) => {}
            }
        })?;
        Ok(Self { thread })
    }

    /// Stops the server: closes connections, and removes the socket's file unless it was replaced. A change
    /// that has begun continues to its end.
    pub fn stop(self) {
        drop(self.thread);
    }
}

/// Calls `on_gone` when the socket's file is gone. Never returns.
async fn tell_when_gone(acceptor: &Acceptor, on_gone: impl FnOnce()) {
    acceptor.gone().await;
    on_gone();
    std::future::pending::<()>().await;
}

/// Serves clients. Never returns.
async fn serve(acceptor: &Acceptor, control: &Arc<dyn Control>, limits: Limits) {
    let (large, reads) = (Arc::new(Semaphore::new(1)), Arc::<Reads>::default());
    let client = |place| Client {
        control: Arc::clone(control),
        place,
        large: Arc::clone(&large),
        reads: Arc::clone(&reads),
        limits,
    };
    let next = async || acceptor.next().await;
    serve_each("the UAPI socket", limits.clients, next, |stream, place| client(place).serve(stream)).await;
}

#[cfg(test)]
#[cfg(windows)]
mod pipe_tests;
#[cfg(test)]
#[cfg(unix)]
mod tests;
