//! TCP from one namespace to another, with content that is verified on arrival.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::traffic::{Amount, TcpReceiver, TcpSenders};
use super::{Namespace, until};

/// Bytes that have to arrive for [`Transfer::goes_on`] to succeed.
const SOME_MORE: u64 = 1 << 20;

/// Concurrent connections, and a receiver that checks their content. Its content differs from that of every
/// other transfer of the process.
#[derive(Debug)]
pub struct Transfer {
    receiver: TcpReceiver,
    senders: TcpSenders,
    flows: usize,
}

impl Transfer {
    /// Connects `from` to an address in `to`, and sends `amount` over each of `flows` connections.
    pub fn start(
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        flows: u32,
        amount: Amount,
    ) -> io::Result<Self> {
        static SEED: AtomicU64 = AtomicU64::new(0);
        let receiver = to.run(|| TcpReceiver::listen(SocketAddr::new(address, 0)))?;
        let seed = SEED.fetch_add(1, Relaxed);
        let senders = TcpSenders::start(from, receiver.local_addr(), flows, amount, seed)?;
        Ok(Self { receiver, senders, flows: flows as usize })
    }

    /// Starts one connection that sends until it is stopped, and waits until some data has arrived.
    ///
    /// # Panics
    ///
    /// When no data arrives within [`super::PATIENCE`].
    #[track_caller]
    pub fn endless(from: &Namespace, to: &Namespace, address: IpAddr) -> io::Result<Self> {
        let transfer = Self::start(from, to, address, 1, Amount::Count(u64::MAX))?;
        transfer.goes_on();
        Ok(transfer)
    }

    /// Waits until every connection is there: one that a flood keeps out may carry nothing until the end.
    ///
    /// # Panics
    ///
    /// When one is missing after [`super::PATIENCE`].
    #[track_caller]
    pub fn is_connected(&self) {
        until("every connection is accepted", || self.receiver.accepted() == self.flows);
    }

    /// Returns the number of bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.receiver.bytes()
    }

    /// Reports whether everything has been sent and confirmed.
    pub fn is_finished(&self) -> bool {
        self.senders.is_finished()
    }

    /// Waits until another 1 MiB has arrived.
    ///
    /// # Panics
    ///
    /// When it does not arrive within [`super::PATIENCE`], and when a flow fails.
    #[track_caller]
    pub fn goes_on(&self) {
        let wanted = self.bytes() + SOME_MORE;
        let error = &self.senders.progress().error;
        until("the transfer goes on", || self.bytes() >= wanted || error.get().is_some());
        assert_eq!(error.get(), None, "a flow failed");
    }

    /// Lets every connection end at its next chunk.
    pub fn stop(&self) {
        self.senders.stop();
    }

    /// Ends an endless transfer after more data has arrived, and checks all of it as [`Self::finish`] does.
    ///
    /// # Panics
    ///
    /// When no more data arrives before the end, and when [`Self::finish`] does.
    #[track_caller]
    pub fn end(self) {
        self.goes_on();
        self.stop();
        self.finish();
    }

    /// Waits for every connection, checks that all that was sent arrived unchanged, and returns the number of
    /// bytes.
    ///
    /// # Panics
    ///
    /// When a connection failed or carried nothing, or when not all of it arrived unchanged.
    #[track_caller]
    pub fn finish(self) -> u64 {
        let sent = self.senders.finish();
        for flow in &sent {
            let is_whole = flow.confirmed == flow.bytes && flow.bytes > 0;
            assert!(flow.error.is_none() && is_whole, "{flow:?}");
        }
        let received = self.receiver.finish();
        for flow in &received {
            assert!(flow.error.is_none() && flow.first_mismatch.is_none(), "{flow:?}");
        }
        let bytes = received.iter().map(|flow| flow.bytes).sum();
        assert_eq!((received.len(), bytes), (sent.len(), sent.iter().map(|flow| flow.bytes).sum()));
        bytes
    }
}
