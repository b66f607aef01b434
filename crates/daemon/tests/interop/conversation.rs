//! Content-checked TCP in both directions at once.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use weft_lab::Namespace;
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};

use crate::waiting::until;

pub(crate) const MIB: u64 = 1 << 20;
/// Ends a conversation that nobody ends.
const LONGEST: Duration = Duration::from_secs(180);

/// Where one side of a conversation is.
pub(crate) type Place<'a> = (&'a Namespace, IpAddr);

/// A flow from each of two places to the other, as fast as they go. It stops when it is dropped.
pub(crate) struct Conversation {
    receivers: Vec<TcpReceiver>,
    senders: Vec<TcpSenders>,
}

impl Conversation {
    /// The first place begins; the second one falls in once something has arrived there.
    pub(crate) fn start(first: Place<'_>, second: Place<'_>) -> Self {
        let listen = |(namespace, address): Place<'_>| {
            namespace.run(|| TcpReceiver::listen(SocketAddr::new(address, 0))).unwrap()
        };
        let mut this = Self { receivers: vec![listen(second), listen(first)], senders: Vec::new() };
        for (number, (namespace, _)) in [first, second].into_iter().enumerate() {
            let receiver = &this.receivers[number];
            let amount = Amount::Until(Instant::now() + LONGEST);
            let senders =
                TcpSenders::start(namespace, receiver.local_addr(), 1, amount, number as u64).unwrap();
            this.senders.push(senders);
            let (receiver, senders) = (&this.receivers[number], &this.senders[number]);
            until("the first bytes arrive", || {
                assert!(!senders.is_finished(), "the sender gave up");
                receiver.bytes() > 0
            });
        }
        this
    }

    /// Waits until so many bytes more have arrived on both sides.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, bytes: u64) {
        let before: Vec<_> = self.receivers.iter().map(TcpReceiver::bytes).collect();
        until("traffic goes on in both directions", || {
            self.receivers.iter().zip(&before).all(|(receiver, before)| receiver.bytes() >= before + bytes)
        });
    }

    /// Ends both flows and checks that every byte that was sent has arrived as it was sent.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        self.senders.iter().for_each(TcpSenders::stop);
        for senders in self.senders.drain(..) {
            for flow in senders.finish() {
                assert!(flow.error.is_none() && flow.confirmed == flow.bytes && flow.bytes > 0, "{flow:?}");
            }
        }
        for receiver in self.receivers.drain(..) {
            let flows = receiver.finish();
            assert_eq!(flows.len(), 1);
            assert!(flows[0].error.is_none() && flows[0].first_mismatch.is_none(), "{flows:?}");
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.senders.iter().for_each(TcpSenders::stop);
    }
}
