//! What the event loops of one interface hand each other: datagrams for a peer of another packet thread, and
//! the addresses of peers.
//!
//! Few datagrams come this way: initiations, which all arrive at the first packet thread, what the kernel
//! joined to a message for another one, and those for a peer that just moved to another one. If the kernel
//! cannot choose a socket for each message, most of them do.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use weft_tunnel::{DropReason, PublicKey, RecvMeta, Tunnel};

/// Messages that wait for a packet thread, all senders together. What does not fit is dropped and counted.
const HANDSHAKES: usize = 512;
const DATA: usize = 4096;

/// A datagram, and where it came from.
#[derive(Debug)]
pub(super) struct HandedOver {
    pub(super) meta: RecvMeta,
    pub(super) bytes: Box<[u8]>,
}

impl HandedOver {
    /// Copies one datagram.
    pub(super) fn new(meta: &RecvMeta, datagram: &[u8]) -> Self {
        let meta = RecvMeta { len: datagram.len(), stride: datagram.len().max(1), ..*meta };
        Self { meta, bytes: datagram.into() }
    }
}

/// A message to another event loop.
#[derive(Debug)]
pub(super) enum Message {
    /// A handshake message or a cookie reply.
    Handshake(HandedOver),
    /// A peer is at this address. The first packet thread, which admits initiations, knows it from then on.
    Endpoint { peer: PublicKey, endpoint: SocketAddr },
}

#[derive(Clone, Debug)]
struct Outbox {
    messages: mpsc::Sender<Message>,
    data: mpsc::Sender<HandedOver>,
}

/// The connections of an event loop to the others of its interface.
#[derive(Debug)]
pub struct Siblings {
    outboxes: Vec<Outbox>,
    messages: mpsc::Receiver<Message>,
    data: mpsc::Receiver<HandedOver>,
}

impl Siblings {
    /// Returns the connections of `count` event loops, in order.
    pub fn of(count: usize) -> Vec<Self> {
        let inbox = |_| (mpsc::channel(HANDSHAKES), mpsc::channel(DATA));
        let inboxes: Vec<_> = (0..count).map(inbox).collect();
        let outboxes: Vec<_> = inboxes
            .iter()
            .map(|((messages, _), (data, _))| Outbox { messages: messages.clone(), data: data.clone() })
            .collect();
        let siblings = |((_, messages), (_, data))| Self { outboxes: outboxes.clone(), messages, data };
        inboxes.into_iter().map(siblings).collect()
    }

    /// Hands a datagram to the packet thread `shard`.
    ///
    /// # Errors
    /// Too many datagrams wait there; this one has to be dropped for that reason.
    pub(super) fn hand_over(&self, shard: u16, meta: &RecvMeta, datagram: &[u8]) -> Result<(), DropReason> {
        let outbox = self.outboxes.get(usize::from(shard)).ok_or(DropReason::UnknownReceiverIndex)?;
        let handed_over = HandedOver::new(meta, datagram);
        if Tunnel::is_data(datagram) {
            outbox.data.try_send(handed_over).map_err(|_| DropReason::Overload)
        } else {
            let message = Message::Handshake(handed_over);
            outbox.messages.try_send(message).map_err(|_| DropReason::HandshakeRateLimited)
        }
    }

    /// Tells the first packet thread where a peer is. It may miss that while it is flooded; it then asks the
    /// peer to prove its address.
    pub(super) fn tell_endpoint(&self, peer: PublicKey, endpoint: SocketAddr) {
        if let Some(first) = self.outboxes.first() {
            let _ = first.messages.try_send(Message::Endpoint { peer, endpoint });
        }
    }

    /// Returns the next message.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        self.messages.poll_recv(cx)
    }

    /// Returns the next data message.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<HandedOver>> {
        self.data.poll_recv(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn meta() -> RecvMeta {
        let source = "192.0.2.1:1".parse().unwrap();
        RecvMeta { source, local: None, ecn: weft_tunnel::Ecn::NotEct, len: 999, stride: 100 }
    }

    #[test]
    fn data_and_handshakes_come_apart_and_in_order() {
        let mut siblings = Siblings::of(3);
        let data = |number| [&[4, 0, 0, 0][..], &[number; 40]].concat();
        for number in 0..3 {
            siblings[0].hand_over(2, &meta(), &data(number)).unwrap();
            siblings[0].hand_over(2, &meta(), &[1, 0, 0, number]).unwrap();
        }
        let mut cx = Context::from_waker(Waker::noop());
        let last = &mut siblings[2];
        for number in 0..3 {
            let Poll::Ready(Some(found)) = last.poll_data(&mut cx) else { panic!("no data") };
            assert_eq!((found.meta.len, found.meta.stride, &found.bytes[..]), (44, 44, &data(number)[..]));
            let Poll::Ready(Some(Message::Handshake(found))) = last.poll_message(&mut cx) else {
                panic!("no handshake");
            };
            assert_eq!(found.bytes[..], [1, 0, 0, number]);
        }
        assert!(last.poll_data(&mut cx).is_pending() && last.poll_message(&mut cx).is_pending());
    }

    #[test]
    fn what_waits_is_bounded_and_the_rest_has_a_reason() {
        let siblings = Siblings::of(2);
        let data = [&[4, 0, 0, 0][..], &[7; 40]].concat();
        for _ in 0..DATA {
            siblings[0].hand_over(1, &meta(), &data).unwrap();
        }
        assert_eq!(siblings[0].hand_over(1, &meta(), &data), Err(DropReason::Overload));
        for _ in 0..HANDSHAKES {
            siblings[0].hand_over(1, &meta(), &[1; 148]).unwrap();
        }
        let refused = siblings[0].hand_over(1, &meta(), &[1; 148]);
        assert_eq!(refused, Err(DropReason::HandshakeRateLimited));
        assert_eq!(siblings[0].hand_over(2, &meta(), &data), Err(DropReason::UnknownReceiverIndex));
    }
}
