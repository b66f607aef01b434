//! A network that delivers at once, and its sockets, which can be told to take nothing and to fail.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weft_tunnel::{Ecn, RecvMeta, Transmit, Tunnel};
use weft_udp::{BindError, RecvBuffers, SendError, Sent, Udp, UdpStats};

/// A network that delivers at once, with sockets that can be made to take nothing.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) sockets: HashMap<SocketAddr, Socket>,
    /// The sockets of an address with several packet threads.
    pub(crate) shards: HashMap<SocketAddr, Vec<SocketAddr>>,
    /// Which datagrams do not arrive with the others.
    pub(crate) apart: Apart,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Apart {
    #[default]
    None,
    Handshakes,
    /// As when the kernel joins data to a handshake message.
    All,
}

#[derive(Default)]
pub(crate) struct Socket {
    pub(crate) refuses: bool,
    /// The errors that the next calls to send end with.
    pub(crate) send_errors: VecDeque<SendError>,
    pub(crate) inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(crate) handshakes: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Whether an error comes before each handshake message, and whether the next call is to fail.
    pub(crate) handshakes_fail: bool,
    pub(crate) is_to_fail: bool,
    /// Number of calls of which every other one fails, while the socket is empty.
    pub(crate) calls_to_fail: u32,
    /// The receiver indices that pass, while there is a list.
    pub(crate) passing: Option<Vec<u32>>,
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
}

impl Network {
    /// The socket that the kernel chooses for a datagram.
    fn socket(&mut self, destination: SocketAddr, datagram: &[u8]) -> &mut Socket {
        let at = if datagram[0] == 2 { 8 } else { 4 };
        let index = u32::from_be_bytes(*datagram[at..].first_chunk().unwrap());
        let index = if datagram[0] == 1 { 0 } else { index as usize };
        let chosen = self.shards.get(&destination).map(|shards| shards[index % shards.len()]);
        self.sockets.get_mut(&chosen.unwrap_or(destination)).unwrap()
    }
}

impl Socket {
    /// What a kernel does that was told which messages pass.
    fn lets_pass(&self, datagram: &[u8]) -> bool {
        let at = match datagram[0] {
            1 => return true,
            2 => 8,
            _ => 4,
        };
        let index = u32::from_le_bytes(*datagram[at..].first_chunk().unwrap());
        self.passing.as_ref().is_none_or(|passing| passing.contains(&index))
    }
}

pub(crate) type SharedNetwork = Rc<RefCell<Network>>;

pub(crate) struct FakeUdp {
    pub(crate) address: SocketAddr,
    pub(crate) network: SharedNetwork,
    pub(crate) stats: UdpStats,
}

impl Udp for FakeUdp {
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        let mut network = self.network.borrow_mut();
        let own = network.sockets.get_mut(&self.address).unwrap();
        if own.refuses {
            own.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(error) = own.send_errors.pop_front() {
            return Poll::Ready(Err(error));
        }
        let apart = network.apart;
        let source = network.shards.iter().find(|(_, shards)| shards.contains(&self.address));
        let source = source.map_or(self.address, |(address, _)| *address);
        for datagram in transmit.contents.chunks(transmit.segment_size) {
            let peer = network.socket(transmit.destination, datagram);
            if !peer.lets_pass(datagram) {
                continue;
            }
            let is_apart = match apart {
                Apart::None => false,
                Apart::Handshakes => !Tunnel::is_data(datagram),
                Apart::All => true,
            };
            let inbox = if is_apart { &mut peer.handshakes } else { &mut peer.inbox };
            inbox.push_back((source, datagram.to_vec()));
            if let Some(waker) = peer.reader.take() {
                waker.wake();
            }
        }
        self.stats.datagrams_sent += transmit.segments() as u64;
        self.stats.batches_sent += 1;
        Poll::Ready(Ok(Sent { bytes: transmit.contents.len(), source_unusable: false, path_mtu: None }))
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        let (mut filled, limit) = (0, buffers.room());
        let mut network = self.network.borrow_mut();
        let own = network.sockets.get_mut(&self.address).unwrap();
        while filled < limit
            && let Some((source, datagram)) = own.inbox.pop_front()
        {
            buffers.free_buffers().next().unwrap()[..datagram.len()].copy_from_slice(&datagram);
            let len = datagram.len();
            buffers.push([(RecvMeta { source, local: None, ecn: Ecn::NotEct, len, stride: len }, false)]);
            filled += 1;
        }
        if filled > 0 {
            return Poll::Ready(Ok(filled));
        }
        own.calls_to_fail = own.calls_to_fail.saturating_sub(1);
        if own.calls_to_fail % 2 == 1 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        own.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        let mut network = self.network.borrow_mut();
        let own = network.sockets.get_mut(&self.address).unwrap();
        own.is_to_fail = own.handshakes_fail && !own.is_to_fail && !own.handshakes.is_empty();
        if own.is_to_fail {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        let Some((source, bytes)) = own.handshakes.pop_front() else {
            own.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: bytes.len(), stride: bytes.len() };
        buffers.free_buffers().next().unwrap()[..bytes.len()].copy_from_slice(&bytes);
        buffers.push([(meta, false)]);
        Poll::Ready(Ok(1))
    }

    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let mut network = self.network.borrow_mut();
        network.sockets.get_mut(&self.address).unwrap().passing = receivers.map(<[u32]>::to_vec);
        receivers.is_some()
    }

    fn stats(&self) -> UdpStats {
        self.stats
    }

    fn rebind(&mut self, _: Option<u16>, _: Option<u32>) -> Result<u16, BindError> {
        Err(BindError::NoAddressFamily)
    }
}
