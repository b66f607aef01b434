//! A service on a bus of the test's own.

use std::sync::mpsc;
use std::thread::JoinHandle;

use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream};

/// Answers calls under a well-known name until it is dropped.
pub(crate) struct BusService {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BusService {
    /// Takes this name on the bus at this address; each call is given to `answer`, which replies.
    pub(crate) fn start(
        address: String,
        name: &'static str,
        answer: impl AsyncFn(&Connection, &Message) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let connection = zbus::connection::Builder::address(&*address).build().await.unwrap();
                let mut messages = MessageStream::from(&connection);
                connection.request_name(name).await.unwrap();
                ready.send(()).unwrap();
                let serve = async {
                    while let Some(Ok(message)) = messages.next().await {
                        if message.header().message_type() == Type::MethodCall {
                            answer(&connection, &message).await;
                        }
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for BusService {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
