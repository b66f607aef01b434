//! A TCP connection that goes on for as long as a test wants, and has to arrive whole.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::traffic::{Amount, TcpReceiver, TcpSenders};
use super::{Namespace, wait_until};

/// What has to arrive for a stream to go on.
const SOME_MORE: u64 = 1 << 20;
const SEED: u64 = 7;

/// A connection with a sender that does not end, whose content is checked.
#[derive(Debug)]
pub struct Stream {
    receiver: TcpReceiver,
    senders: TcpSenders,
}

impl Stream {
    /// Connects one namespace to an address of another one, and waits until a part has arrived.
    ///
    /// # Panics
    ///
    /// When nothing arrives.
    #[track_caller]
    pub fn start(from: &Namespace, to: &Namespace, address: IpAddr) -> io::Result<Self> {
        let receiver = to.run(|| TcpReceiver::listen(SocketAddr::new(address, 0)))?;
        let senders = TcpSenders::start(from, receiver.local_addr(), 1, Amount::Count(u64::MAX), SEED)?;
        let stream = Self { receiver, senders };
        stream.goes_on();
        Ok(stream)
    }

    /// How many bytes have arrived.
    pub fn bytes(&self) -> u64 {
        self.receiver.bytes()
    }

    /// Waits until some more of it has arrived.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[track_caller]
    pub fn goes_on(&self) {
        let wanted = self.bytes() + SOME_MORE;
        wait_until("the stream goes on", || (self.bytes() >= wanted).then_some(()));
    }

    /// Ends it.
    ///
    /// # Panics
    ///
    /// When it does not go on before, or not all of it has arrived unharmed over one connection.
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
