//! The thread of a server: it serves until its owner drops it.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// A thread that serves clients. Dropping it ends their connections and waits for the end of
/// the thread, but not for one that hangs.
#[derive(Debug)]
pub struct ServerThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Runs `serve` on a new thread with this runtime. A panic of the thread ends the process: no
    /// client is served then.
    ///
    /// # Errors
    /// The system cannot create the thread.
    pub fn start(
        name: &str,
        runtime: Runtime,
        serve: impl AsyncFnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _guard = weft_confine::EndProcessOnPanic;
            weft_confine::thread(weft_confine::Role::Service);
            // Before the connections end, `serve` drops what it accepts with: a client that sees the end of
            // its connection finds no socket.
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve() => {}
                }
            });
            // Does not wait for blocking tasks: a request may wait for the thread that drops this server.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl ServerThread {
    /// Waits until the server ends by itself, but not for one that hangs.
    pub fn finish(mut self) {
        if let Some(thread) = self.thread.take() {
            weft_confine::join(thread);
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            weft_confine::join(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_server_that_hangs_keeps_no_end_waiting() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (release, released) = mpsc::channel::<()>();
        let (ended, has_ended) = mpsc::channel();
        let serve = async move || {
            let _ = released.recv();
            ended.send(()).unwrap();
        };
        ServerThread::start("hangs", runtime, serve).unwrap().finish();
        assert!(has_ended.try_recv().is_err(), "left behind, and not waited for");
        drop(release);
        has_ended.recv().unwrap();
    }
}
