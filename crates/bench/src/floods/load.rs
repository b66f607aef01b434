//! Paced TCP from the client to the gateway's side of the tunnel.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};
use weft_lab::Namespace;
use weft_lab::traffic::{Amount, Progress, TcpReceiver, send_stream_over};

use crate::peers::roster::GATEWAY;

/// The pacing rate of TCP, headers included.
pub(super) const MBIT_PER_SECOND: u32 = 300;
const CONNECT: Duration = Duration::from_secs(10);
const SEED: u64 = 7;

sockopt_impl!(
    /// The pacing rate of a connection in bytes a second (SO_MAX_PACING_RATE, socket(7)).
    MaxPacingRate,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_MAX_PACING_RATE,
    u32
);

/// A connection that sends until this is dropped.
pub(super) struct PacedStream {
    receiver: TcpReceiver,
    progress: Arc<Progress>,
    _sender: JoinHandle<()>,
}

impl PacedStream {
    /// Connects, and starts sending.
    pub(super) fn start(client: &Namespace, gateway: &Namespace) -> Result<Self> {
        let receiver = gateway.run(|| TcpReceiver::listen(SocketAddr::from((GATEWAY, 0))))?;
        let address = receiver.local_addr();
        let connect = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, CONNECT)?;
            setsockopt(&stream, MaxPacingRate, &(MBIT_PER_SECOND * 1_000_000 / 8))?;
            Ok(stream)
        };
        let stream = client.run(connect).context("no connection through the tunnel")?;
        let progress = Arc::<Progress>::default();
        let sender = {
            let progress = Arc::clone(&progress);
            std::thread::Builder::new().name("tcp-paced".to_owned()).spawn(move || {
                // The receiver counts the bytes; the sender's result is not needed.
                send_stream_over(stream, Amount::Count(u64::MAX), SEED, &progress);
            })?
        };
        Ok(Self { receiver, progress, _sender: sender })
    }

    /// Starts counting the bytes that arrive.
    pub(super) fn window(&self) -> Window<'_> {
        Window { stream: self, bytes: self.receiver.bytes(), since: Instant::now() }
    }
}

impl Drop for PacedStream {
    fn drop(&mut self) {
        self.progress.stop.store(true, Relaxed);
    }
}

/// A span of time in which received bytes are counted.
pub(super) struct Window<'a> {
    stream: &'a PacedStream,
    bytes: u64,
    since: Instant,
}

impl Window<'_> {
    /// Returns the Mbit/s of TCP payload received since the window was opened.
    pub(super) fn close(self) -> f64 {
        let bytes = self.stream.receiver.bytes() - self.bytes;
        bytes as f64 * 8e-6 / self.since.elapsed().as_secs_f64()
    }
}
