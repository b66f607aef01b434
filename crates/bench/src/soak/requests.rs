//! Requests: short connections, one after the other, each of which is checked and answered.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use weft_lab::Namespace;
use weft_lab::pace::Pace;
use weft_lab::traffic::{Amount, Progress, TcpReceiver, send_stream};

use crate::site::GATEWAY;
use crate::worker::Worker;

const PER_SECOND: u32 = 20;
const BYTES: u64 = 32 * 1024;

/// What the requests of an interval took.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Milliseconds from the connect to the confirmation of the last byte.
    pub(super) millis: Vec<f64>,
    pub(super) failures: Vec<String>,
}

/// Running requests. They end when this is dropped.
pub(super) struct Requests {
    answers: Arc<Mutex<Answers>>,
    _client: Worker<()>,
    _server: TcpReceiver,
}

impl Requests {
    /// Starts a server at the gateway, and its client.
    pub(super) fn start(client: &Namespace, gateway: &Namespace) -> Result<Self> {
        let server = gateway.run(|| TcpReceiver::listen((GATEWAY, 0).into()))?;
        let address = server.local_addr();
        let answers = Arc::<Mutex<Answers>>::default();
        let (told, client) = (Arc::clone(&answers), client.clone());
        let ask = move |stop: &AtomicBool| {
            let lock = || told.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = client.enter() {
                return lock().failures.push(format!("no requests: {error}"));
            }
            let mut pace = Pace::new(PER_SECOND, Instant::now());
            for number in 0.. {
                if stop.load(Relaxed) {
                    return;
                }
                let start = Instant::now();
                let sent = send_stream(address, Amount::Count(BYTES), number, &Progress::default());
                match sent.error {
                    None if sent.confirmed == BYTES => {
                        lock().millis.push(start.elapsed().as_secs_f64() * 1e3);
                    }
                    error => {
                        lock()
                            .failures
                            .push(format!("request {number}, {} bytes: {error:?}", sent.confirmed));
                    }
                }
                pace.spent(1);
                pace.wait();
            }
        };
        Ok(Self { answers, _client: Worker::start("requests", ask)?, _server: server })
    }

    /// Returns the answers since the last call.
    pub(super) fn take(&self) -> Answers {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
