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

/// Data messages for another event loop, and what is said between them.
#[derive(Debug)]
pub(super) enum Data {
    /// A datagram that packet thread `from` received.
    Datagram { from: u16, datagram: HandedOver },
    /// The answer to [`Message::Flush`]: everything of this peer came before.
    Flushed(PublicKey),
}

/// A message to another event loop.
#[derive(Debug)]
pub(super) enum Message {
    /// A handshake message or a cookie reply.
    Handshake(HandedOver),
    /// A peer is at this address. The first packet thread, which admits initiations, knows it from then on.
    Endpoint { peer: PublicKey, endpoint: SocketAddr },
    /// Packet thread `from` has the peer now. It is to know when all datagrams from `source` that have
    /// arrived so far are handed over.
    Flush { peer: PublicKey, source: SocketAddr, from: u16 },
}

#[derive(Clone, Debug)]
struct Outbox {
    messages: mpsc::Sender<Message>,
    data: mpsc::Sender<Data>,
}

/// The connections of an event loop to the others of its interface.
#[derive(Debug)]
pub struct Siblings {
    number: u16,
    outboxes: Vec<Outbox>,
    messages: mpsc::Receiver<Message>,
    data: mpsc::Receiver<Data>,
    is_paused: bool,
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
        let siblings = |(number, ((_, messages), (_, data)))| Self {
            number,
            outboxes: outboxes.clone(),
            messages,
            data,
            is_paused: false,
        };
        (0..).zip(inboxes).map(siblings).collect()
    }

    /// Hands a datagram to the packet thread `shard`.
    ///
    /// # Errors
    /// Too many datagrams wait there; this one has to be dropped for that reason.
    pub(super) fn hand_over(&self, shard: u16, meta: &RecvMeta, datagram: &[u8]) -> Result<(), DropReason> {
        let outbox = self.outboxes.get(usize::from(shard)).ok_or(DropReason::UnknownReceiverIndex)?;
        let handed_over = HandedOver::new(meta, datagram);
        if Tunnel::is_data(datagram) {
            let data = Data::Datagram { from: self.number, datagram: handed_over };
            outbox.data.try_send(data).map_err(|_| DropReason::Overload)
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

    /// Asks packet thread `of` to say when it has handed over what it has received from `source`. Returns
    /// false if it has to be asked again.
    pub(super) fn ask_flush(&self, of: u16, peer: PublicKey, source: SocketAddr) -> bool {
        let flush = Message::Flush { peer, source, from: self.number };
        self.outboxes.get(usize::from(of)).is_some_and(|outbox| outbox.messages.try_send(flush).is_ok())
    }

    /// Answers [`Self::ask_flush`] of packet thread `to`. Returns false if there is no room for the answer
    /// now.
    pub(super) fn answer_flush(&self, to: u16, peer: PublicKey) -> bool {
        let outbox = self.outboxes.get(usize::from(to));
        outbox.is_none_or(|outbox| outbox.data.try_send(Data::Flushed(peer)).is_ok())
    }

    /// Leaves what others hand over where it is, or takes it again. While a peer is on its way to this event
    /// loop, its messages may come before it.
    pub(super) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the next message. While paused, it is pending, and registers no waker.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        if self.is_paused { Poll::Pending } else { self.messages.poll_recv(cx) }
    }

    /// As [`Self::poll_message`].
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Data>> {
        if self.is_paused { Poll::Pending } else { self.data.poll_recv(cx) }
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
            let Poll::Ready(Some(Data::Datagram { from: 0, datagram: found })) = last.poll_data(&mut cx)
            else {
                panic!("no data")
            };
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
