//! Serves the UAPI on a Unix socket, on one thread of its own.
//!
//! Calls of [`Control`] wait for the control thread, so they are made on another thread, and clients that read or
//! write slowly hold up nobody.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};
use weft_ipc::listener::SocketFile;
use weft_ipc::{Source, serve_each};
use weft_tun::thread_guard::EndProcessOnPanic;

use crate::Control;

mod client;
mod socket;
mod watch;

use client::Client;
pub use socket::{Listener, SocketError, remove_dead};

/// A descriptor that can be handed in.
pub type Descriptor = OwnedFd;

/// Threads that calls of [`Control`] wait on: a long change does not hold up the reading.
const CALLS: usize = 2;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Clients at a time.
    clients: usize,
    /// How long the next piece of a request that has begun may take.
    read: Duration,
    /// How long a request may take from its first line to its last.
    request: Duration,
    /// How long a piece of an answer may take to be read.
    write: Duration,
    /// Bytes of a request from which on only one client at a time has its request read.
    large: usize,
}

impl Default for Limits {
    /// wg(8) writes and reads in milliseconds.
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

/// A socket that is served. Dropping it is [`Self::stop`].
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `listener` on a new thread. `on_gone` is called there once the socket's file was removed or replaced:
    /// nobody finds the interface any more, and wireguard-go ends then. Clients that are connected are still served.
    ///
    /// # Errors
    /// When the system refuses the thread or a runtime.
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
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(CALLS)
            .thread_name("weft-uapi-call")
            .build()?;
        let Listener { socket, file } = listener;
        let socket = {
            let _context = runtime.enter();
            UnixListener::from_std(socket)?
        };
        let thread = std::thread::Builder::new().name("weft-uapi".into()).spawn(move || {
            let _guard = EndProcessOnPanic;
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve(&socket, &control, limits) => {}
                    () = tell_when_gone(file.as_ref(), on_gone) => {}
                }
            });
            drop((socket, file));
            // Not waited for: a call may be waiting for the very thread that stops this server.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the server: connections are closed, the socket's file is removed if it is still its own. A change that
    /// has begun goes on to its end.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The guard ends the process on a panic, so this cannot fail.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Never ends.
async fn tell_when_gone(file: Option<&SocketFile>, on_gone: impl FnOnce()) {
    if let Some(file) = file {
        watch::until_gone(file).await;
        tracing::info!(path = %file.path().display(), "the UAPI socket's file was removed");
        on_gone();
    }
    std::future::pending::<()>().await;
}

/// Never ends.
async fn serve(socket: &UnixListener, control: &Arc<dyn Control>, limits: Limits) {
    let large = Arc::new(Semaphore::new(1));
    let next = async || {
        let (stream, _) = socket.accept().await?;
        let source = Source::from(&stream);
        Ok((stream, source))
    };
    serve_each(limits.clients, next, |stream, place| {
        Client::new(Arc::clone(control), place, Arc::clone(&large), limits).serve(stream)
    })
    .await;
}

#[cfg(test)]
mod tests;
