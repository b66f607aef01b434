//! A long-running TCP connection whose content is verified on arrival.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::traffic::{Amount, TcpReceiver, TcpSenders};
use super::{Namespace, wait_until};

/// Bytes that have to arrive for [`Stream::goes_on`] to succeed.
const SOME_MORE: u64 = 1 << 20;
const SEED: u64 = 7;

/// A connection with an endless sender and a receiver that checks the content.
#[derive(Debug)]
pub struct Stream {
    receiver: TcpReceiver,
    senders: TcpSenders,
}

impl Stream {
    /// Connects `from` to an address in `to`, and waits until some data has arrived.
    ///
    /// # Panics
    ///
    /// When no data arrives within [`super::PATIENCE`].
    #[track_caller]
    pub fn start(from: &Namespace, to: &Namespace, address: IpAddr) -> io::Result<Self> {
        let receiver = to.run(|| TcpReceiver::listen(SocketAddr::new(address, 0)))?;
        let senders = TcpSenders::start(from, receiver.local_addr(), 1, Amount::Count(u64::MAX), SEED)?;
        let stream = Self { receiver, senders };
        stream.goes_on();
        Ok(stream)
    }

    /// Returns the number of bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.receiver.bytes()
    }

    /// Waits until another 1 MiB has arrived.
    ///
    /// # Panics
    ///
    /// When it does not arrive within [`super::PATIENCE`].
    #[track_caller]
    pub fn goes_on(&self) {
        let wanted = self.bytes() + SOME_MORE;
        wait_until("the stream goes on", || (self.bytes() >= wanted).then_some(()));
    }

    /// Ends the stream after more data has arrived, and checks the whole transfer.
    ///
    /// # Panics
    ///
    /// When no more data arrives before the end, when the connection failed, or when not all of it arrived
    /// unchanged.
    #[track_caller]
    pub fn end(self) {
        self.goes_on();
        self.senders.stop();
        for sent in self.senders.finish() {
            assert_eq!(sent.error, None);
            assert_eq!(sent.confirmed, sent.bytes);
        }
        for received in self.receiver.finish() {
            assert_eq!((received.first_mismatch, received.error), (None, None));
        }
    }
}
