//! Handshakes, cookie replies and keepalives for the UDP socket, apart from the data in `transmit.rs`.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::peer_id::PeerId;
use crate::transmit::{Ecn, MAX_CONTROL_MESSAGE, Transmit};

/// The type of a handshake initiation, its first byte.
const INITIATION: u8 = 1;

/// A control message (handshake message, cookie reply or keepalive) that waits for the socket.
#[derive(Clone, Debug)]
pub struct ControlMessage {
    /// The peer that it is for; `None` for a cookie reply: the peer that asks is not known.
    peer: Option<PeerId>,
    /// Since when it has its place in the queue.
    since: Instant,
    destination: SocketAddr,
    source: Option<IpAddr>,
    len: usize,
    bytes: [u8; MAX_CONTROL_MESSAGE],
}

impl ControlMessage {
    /// Returns the message as one datagram.
    pub fn transmit(&self) -> Transmit<'_> {
        Transmit {
            destination: self.destination,
            source: self.source,
            ecn: Ecn::NotEct,
            segment_size: self.len,
            contents: &self.bytes[..self.len],
        }
    }
}

/// What [`ControlQueue::push`] did with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Added,
    /// An older message, which was counted when it was added, is not sent.
    InPlaceOfOlder,
    /// The message is too long, or no slot is free. Nothing was added.
    NoRoom,
}

/// Control messages, in slots that data cannot fill.
#[derive(Debug)]
pub struct ControlQueue {
    messages: VecDeque<ControlMessage>,
    capacity: usize,
}

impl ControlQueue {
    /// Creates a queue of `capacity` messages.
    pub fn new(capacity: usize) -> Self {
        Self { messages: VecDeque::with_capacity(capacity), capacity }
    }

    /// Reports whether a slot is free.
    pub fn has_room(&self) -> bool {
        self.messages.len() < self.capacity
    }

    /// Reports whether `messages` slots are free.
    pub(crate) fn has_room_for(&self, messages: usize) -> bool {
        self.messages.len() + messages <= self.capacity
    }

    /// Reports whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the number of messages that wait.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns the oldest message.
    pub fn front(&self) -> Option<&ControlMessage> {
        self.messages.front()
    }

    /// Removes and returns the oldest message.
    pub fn pop(&mut self) -> Option<ControlMessage> {
        self.messages.pop_front()
    }

    /// Puts a message that was not sent back to the front of the queue.
    pub fn unpop(&mut self, message: ControlMessage) {
        self.messages.push_front(message);
    }

    /// Removes the handshake initiation to `peer` that waits, if one does: the peer would answer it, and the
    /// next one after this answer would come too soon for another.
    pub(crate) fn remove_initiation(&mut self, peer: PeerId) {
        self.messages.retain(|message| message.peer != Some(peer) || message.bytes[0] != INITIATION);
    }

    /// Adds a message of at most [`MAX_CONTROL_MESSAGE`] bytes.
    ///
    /// It takes the place of an older one of its type to the same peer that waits for the socket, and needs
    /// no slot then. Of the initiations, responses and keepalives of a peer only the newest one counts: it
    /// has the state of the handshake, and the session, that there are now.
    pub(crate) fn push(
        &mut self,
        peer: Option<PeerId>,
        destination: SocketAddr,
        source: Option<IpAddr>,
        message: &[u8],
        now: Instant,
    ) -> Pushed {
        let mut bytes = [0; MAX_CONTROL_MESSAGE];
        let Some(place) = bytes.get_mut(..message.len()) else { return Pushed::NoRoom };
        place.copy_from_slice(message);
        let mut new = ControlMessage { peer, since: now, destination, source, len: message.len(), bytes };
        // A peer gets one message of a type in a turn: those of this moment need not be looked through.
        let mut waiting = self.messages.iter_mut().take_while(|older| older.since < now);
        let is_older = |older: &&mut ControlMessage| older.peer == new.peer && older.bytes[0] == new.bytes[0];
        if let Some(older) = peer.and_then(|_| waiting.find(is_older)) {
            new.since = older.since;
            *older = new;
            return Pushed::InPlaceOfOlder;
        }
        if !self.has_room() {
            return Pushed::NoRoom;
        }
        self.messages.push_back(new);
        Pushed::Added
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn to(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn a_control_queue_takes_what_fits() {
        let mut queue = ControlQueue::new(2);
        let now = Instant::now();
        let push = |queue: &mut ControlQueue, peer, len| {
            queue.push(peer, to(1), None, &[7; MAX_CONTROL_MESSAGE + 1][..len], now)
        };
        assert_eq!(push(&mut queue, Some(PeerId::for_test(1)), MAX_CONTROL_MESSAGE + 1), Pushed::NoRoom);
        assert!(queue.is_empty() && queue.has_room_for(2) && !queue.has_room_for(3));
        assert_eq!(push(&mut queue, None, 92), Pushed::Added);
        assert_eq!((queue.is_empty(), queue.len()), (false, 1));
        assert_eq!(push(&mut queue, Some(PeerId::for_test(1)), MAX_CONTROL_MESSAGE), Pushed::Added);
        assert_eq!((queue.len(), queue.has_room(), push(&mut queue, None, 32)), (2, false, Pushed::NoRoom));
    }

    #[test]
    fn a_newer_message_takes_the_place_of_an_older_one_of_its_type_to_the_same_peer() {
        let (one, other) = (Some(PeerId::for_test(1)), Some(PeerId::for_test(2)));
        let began = Instant::now();
        let mut queue = ControlQueue::new(7);
        let push = |queue: &mut ControlQueue, peer, message: &[u8], port, seconds| {
            queue.push(peer, to(port), None, message, began + Duration::from_secs(seconds))
        };
        for (peer, message) in [
            (one, b"\x01a"),
            (other, b"\x01b"),
            (one, b"\x02c"),
            (None, b"\x03d"),
            (None, b"\x03e"),
            (one, b"\x04f"),
            (other, b"\x04g"),
        ] {
            assert_eq!(push(&mut queue, peer, message, 1, 0), Pushed::Added, "{message:?}");
        }
        for (newer, seconds) in [(b"\x01A", 5), (b"\x02C", 6), (b"\x04F", 7), (b"\x01B", 10)] {
            assert_eq!(push(&mut queue, one, newer, 2, seconds), Pushed::InPlaceOfOlder, "{newer:?}");
        }
        // Cookie replies are for the senders of messages.
        assert_eq!(push(&mut queue, None, b"\x03h", 2, 11), Pushed::NoRoom);
        queue.remove_initiation(PeerId::for_test(2));
        queue.remove_initiation(PeerId::for_test(2));
        let left = std::iter::from_fn(|| queue.pop())
            .map(|message| (message.transmit().contents[1], message.destination.port()));
        let expected = [(b'B', 2), (b'C', 2), (b'd', 1), (b'e', 1), (b'F', 2), (b'g', 1)];
        assert_eq!(left.collect::<Vec<_>>(), expected);
    }
}
