//! Paced TCP from one side of the tunnel to the other.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};
use weft_lab::Namespace;
use weft_lab::traffic::{Amount, Progress, SentFlow, TcpReceiver, send_stream_over};

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

/// A connection that sends until this is dropped or finished.
pub(crate) struct PacedStream {
    receiver: TcpReceiver,
    sender: JoinHandle<SentFlow>,
    stop: StopOnDrop,
}

struct StopOnDrop(Arc<Progress>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

impl PacedStream {
    /// Connects to an address of `to`, and starts sending at this rate, headers included.
    pub(crate) fn start(from: &Namespace, to: &Namespace, address: Ipv4Addr, mbit: u32) -> Result<Self> {
        let receiver = to.run(|| TcpReceiver::listen(SocketAddr::from((address, 0))))?;
        let address = receiver.local_addr();
        let connect = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, CONNECT)?;
            setsockopt(&stream, MaxPacingRate, &mbit.saturating_mul(1_000_000 / 8))?;
            Ok(stream)
        };
        let stream = from.run(connect).context("no connection through the tunnel")?;
        let progress = Arc::<Progress>::default();
        let stop = StopOnDrop(Arc::clone(&progress));
        let send = move || send_stream_over(stream, Amount::Count(u64::MAX), SEED, &progress);
        let sender = std::thread::Builder::new().name("tcp-paced".to_owned()).spawn(send)?;
        Ok(Self { receiver, sender, stop })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.receiver.bytes()
    }

    /// Ends the stream and returns its bytes.
    ///
    /// # Errors
    /// When it failed, or not all of it arrived unchanged.
    pub(crate) fn finish(self) -> Result<u64> {
        let Self { receiver, sender, stop } = self;
        drop(stop);
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        let received = receiver.finish();
        let is_whole = sent.error.is_none() && sent.confirmed == sent.bytes;
        ensure!(is_whole, "a stream did not arrive whole: {sent:?}, {received:?}");
        Ok(sent.bytes)
    }
}
