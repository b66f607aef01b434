//! A service on a private bus.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream};

/// Answers calls under a well-known name until it is dropped.
#[derive(Debug)]
pub struct Service {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Takes this name on the bus at this address; each call is passed to `answer`, which replies.
    ///
    /// # Errors
    /// The bus does not answer, or does not give the name.
    pub fn start(
        address: String,
        name: &'static str,
        answer: impl AsyncFn(&Connection, &Message) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = async move || {
            let connection = match connect(&address, name).await {
                Ok(connection) => connection,
                Err(error) => return ready.send(Err(io::Error::other(error))).unwrap_or_default(),
            };
            let mut messages = MessageStream::from(&connection);
            let _ = ready.send(Ok(()));
            let answers = async {
                while let Some(Ok(message)) = messages.next().await {
                    if message.header().message_type() == Type::MethodCall {
                        answer(&connection, &message).await;
                    }
                }
            };
            tokio::select! {
                () = answers => {}
                _ = stopped => {}
            }
            // The bus learns of the end of a connection later.
            let _ = connection.release_name(name).await;
        };
        let thread = std::thread::Builder::new()
            .name("bus-service".to_owned())
            .spawn(move || runtime.block_on(serve()))?;
        is_ready.recv().map_err(|_| io::Error::other("the thread of a bus service ended"))??;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

async fn connect(address: &str, name: &'static str) -> zbus::Result<Connection> {
    let connection = zbus::connection::Builder::address(address).build().await?;
    connection.request_name(name).await?;
    Ok(connection)
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
