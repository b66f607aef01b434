//! TCP from the client to the gateway's side of the tunnel, at a pace.

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

/// What TCP sends at most, of which a part are headers.
pub(super) const MBIT_PER_SECOND: u32 = 300;
const CONNECT: Duration = Duration::from_secs(10);
const SEED: u64 = 7;

sockopt_impl!(
    /// The pace of a connection in bytes a second (SO_MAX_PACING_RATE, socket(7)).
    MaxPacingRate,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_MAX_PACING_RATE,
    u32
);

/// A connection that sends as long as it is there.
pub(super) struct PacedStream {
    receiver: TcpReceiver,
    progress: Arc<Progress>,
    _sender: JoinHandle<()>,
}

impl PacedStream {
    /// Connects, and begins to send.
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
                // What arrives is counted where it does; how it ends says nothing.
                send_stream_over(stream, Amount::Count(u64::MAX), SEED, &progress);
            })?
        };
        Ok(Self { receiver, progress, _sender: sender })
    }

    /// What arrives, from now on.
    pub(super) fn window(&self) -> Window<'_> {
        Window { stream: self, bytes: self.receiver.bytes(), since: Instant::now() }
    }
}

impl Drop for PacedStream {
    fn drop(&mut self) {
        self.progress.stop.store(true, Relaxed);
    }
}

/// A span of time in which what arrives is counted.
pub(super) struct Window<'a> {
    stream: &'a PacedStream,
    bytes: u64,
    since: Instant,
}

impl Window<'_> {
    /// Mbit/s of TCP's payload until now.
    pub(super) fn close(self) -> f64 {
        let bytes = self.stream.receiver.bytes() - self.bytes;
        bytes as f64 * 8e-6 / self.since.elapsed().as_secs_f64()
    }
}
