//! `crate::siblings` of the data plane, with the locks of shuttle in place of tokio's channels.

use std::collections::VecDeque;
use std::net::SocketAddr;

use shuttle::sync::Mutex;

use crate::stand_in::{PublicKey, RecvMeta};

#[derive(Debug)]
pub(crate) struct HandedOver {
    pub(crate) meta: RecvMeta,
    pub(crate) bytes: Box<[u8]>,
}

impl HandedOver {
    pub(crate) fn new(meta: &RecvMeta, datagram: &[u8]) -> Self {
        Self { meta: *meta, bytes: datagram.into() }
    }
}

#[derive(Debug)]
pub(crate) enum Data {
    Datagram { from: u16, datagram: HandedOver },
    Flushed(PublicKey),
}

#[derive(Debug)]
pub(crate) enum Message {
    Flush { peer: PublicKey, source: SocketAddr, from: u16 },
}

/// The inboxes of a thread that had a peer, for messages, and of the thread that has it, for data.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    messages: Mutex<VecDeque<Message>>,
    data: Mutex<VecDeque<Data>>,
    has_answered: Mutex<bool>,
    /// Whether messages find no room.
    pub(crate) is_full: bool,
}

impl Siblings {
    pub(crate) fn ask_flush(&self, _of: u16, peer: PublicKey, source: SocketAddr) -> bool {
        if !self.is_full {
            self.messages.lock().unwrap().push_back(Message::Flush { peer, source, from: 1 });
        }
        !self.is_full
    }

    pub(crate) fn answer_flush(&self, _to: u16, peer: PublicKey) -> bool {
        self.data.lock().unwrap().push_back(Data::Flushed(peer));
        *self.has_answered.lock().unwrap() = true;
        true
    }

    pub(crate) fn has_answered(&self) -> bool {
        *self.has_answered.lock().unwrap()
    }

    pub(crate) fn hand_over(&self, from: u16, datagram: HandedOver) {
        self.data.lock().unwrap().push_back(Data::Datagram { from, datagram });
    }

    pub(crate) fn next_message(&self) -> Option<Message> {
        self.messages.lock().unwrap().pop_front()
    }

    pub(crate) fn next_data(&self) -> Option<Data> {
        self.data.lock().unwrap().pop_front()
    }
}
