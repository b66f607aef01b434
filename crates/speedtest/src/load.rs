//! The bytes of a test: one task a connection, which sends or receives as fast as TCP lets it, or one task
//! for datagrams.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};

use crate::datagrams::{self, Counts};
use crate::protocol::{Refusal, UdpRequest};
use crate::sample::{Datagrams, Sent, Tcp};
use crate::tcp_info;

/// Bytes of one read or write.
const BLOCK: usize = 128 << 10;

/// What carries the bytes of a test at one end.
pub(crate) enum Lanes {
    Tcp(Vec<TcpStream>),
    /// With the request where this end sends.
    Udp(UdpSocket, UdpRequest),
}

/// The connections of a test at one end. Dropping it resets them: what waits in the send buffers is not sent.
pub(crate) struct Load {
    streams: Vec<Arc<TcpStream>>,
    /// With the size of a datagram.
    datagrams: Option<(Arc<Counts>, u16)>,
    sends: bool,
    /// Bytes of the connections that were sent or received.
    bytes: Arc<AtomicU64>,
    tasks: JoinSet<io::Result<()>>,
}

impl Load {
    /// Sends until this time, or receives until the end of each connection.
    pub(crate) fn start(lanes: Lanes, sends: bool, until: Instant) -> Self {
        let bytes = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        let streams = match lanes {
            Lanes::Tcp(streams) => streams,
            Lanes::Udp(socket, UdpRequest { bits_per_second, bytes: size, .. }) => {
                let (socket, counts) = (Arc::new(socket), Arc::<Counts>::default());
                if sends {
                    tasks.spawn(datagrams::send(socket, bits_per_second, size, until, Arc::clone(&counts)));
                } else {
                    tasks.spawn(datagrams::receive(socket, Arc::clone(&counts)));
                }
                return Self { streams: Vec::new(), datagrams: Some((counts, size)), sends, bytes, tasks };
            }
        };
        let streams: Vec<_> = streams.into_iter().map(Arc::new).collect();
        for stream in &streams {
            let stream = Arc::clone(stream);
            if sends {
                tasks.spawn(send(stream, until, Arc::clone(&bytes)));
            } else {
                tasks.spawn(receive(stream, Arc::clone(&bytes)));
            }
        }
        Self { streams, datagrams: None, sends, bytes, tasks }
    }

    /// Returns the bytes received so far, what the kernel says of the connections of a sender, and the
    /// datagrams.
    pub(crate) fn observe(&self) -> (u64, Option<Tcp>, Option<Datagrams>) {
        if let Some((counts, _)) = &self.datagrams {
            let (received, datagrams) = counts.observe();
            return (received, None, Some(datagrams));
        }
        let tcp = self.sends.then(|| tcp_info::of(self.streams.iter().map(AsRef::as_ref)));
        let received = if self.sends { 0 } else { self.bytes.load(Ordering::Relaxed) };
        (received, tcp, None)
    }

    /// Returns what a sender has sent so far.
    pub(crate) fn sent(&self) -> Sent {
        match &self.datagrams {
            Some((counts, size)) => counts.sent(*size),
            None => Sent { bytes: self.bytes.load(Ordering::Relaxed), datagrams: 0 },
        }
    }

    /// Waits until a connection of the sender breaks. The receiver does not know a break from the end.
    pub(crate) async fn broken(&mut self) -> io::Error {
        while let Some(ended) = self.tasks.join_next().await {
            if let Ok(Err(error)) = ended {
                return error;
            }
        }
        pending().await
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for stream in &self.streams {
            // A failure only leaves the rest of the buffers to the kernel.
            let _ = SockRef::from(stream.as_ref()).set_linger(Some(Duration::ZERO));
        }
    }
}

/// Prepares a connection of a test, at either end.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A peer that is gone is noticed while nothing is sent.
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Sets the congestion control of a connection.
pub(crate) fn set_congestion(stream: &TcpStream, name: &str) -> Result<(), Refusal> {
    let set = SockRef::from(stream).set_tcp_congestion(name.as_bytes());
    set.map_err(|error| Refusal::Congestion { name: name.to_owned(), reason: error.to_string() })
}

async fn send(stream: Arc<TcpStream>, until: Instant, sent: Arc<AtomicU64>) -> io::Result<()> {
    let block = vec![0; BLOCK];
    let mut end = pin!(sleep_until(until));
    while Instant::now() < until {
        // A connection that always has room never waits, and leaves a turn to the other tasks all the same.
        consume_budget().await;
        tokio::select! {
            biased;
            () = &mut end => return Ok(()),
            ready = stream.writable() => ready?,
        }
        match stream.try_write(&block) {
            Ok(count) => drop(sent.fetch_add(count as u64, Ordering::Relaxed)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn receive(stream: Arc<TcpStream>, received: Arc<AtomicU64>) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        consume_budget().await;
        stream.readable().await?;
        match stream.try_read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => drop(received.fetch_add(count as u64, Ordering::Relaxed)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The sender resets its connections at the end.
            Err(_) => return Ok(()),
        }
    }
}
