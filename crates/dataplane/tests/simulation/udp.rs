//! The sockets of a node.

use std::cell::RefCell;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use weft_tunnel::{Ecn, MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS, RecvMeta, Transmit};
use weft_udp::{BindError, RecvBuffers, SendError, Sent, Udp, UdpFeatures, UdpStats};

use crate::kernel::{Datagram, Kernel, SOCKET_BYTES, TooLong, Wait, has_packet};
use crate::network::{Network, OUTER_HEADERS};
use crate::threads::{Threads, interleave};

/// What a kernel says when it cannot send for the moment.
const REFUSALS: [i32; 5] = [libc::ENOBUFS, libc::ENOMEM, libc::EPERM, libc::ENETUNREACH, libc::ECONNREFUSED];

pub(crate) struct SimulatedUdp {
    pub(crate) network: Rc<RefCell<Network>>,
    pub(crate) node: usize,
    pub(crate) thread: usize,
    pub(crate) threads: Weak<Threads>,
}

impl SimulatedUdp {
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        of_handshakes: bool,
    ) -> Poll<io::Result<usize>> {
        interleave(&self.threads, &self.network, self.node);
        let mut network = self.network.borrow_mut();
        let errors = network.kernels[self.node].errors_percent;
        if network.chance.happens(errors) {
            return Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)));
        }
        let kernel = &mut network.kernels[self.node];
        let mut filled = 0;
        while filled < RecvBuffers::COUNT {
            let Some(buffer) = buffers.free_buffers().next() else { break };
            let Some(first) = kernel.take(self.thread, of_handshakes) else { break };
            let (stride, mut len) = (first.bytes.len(), first.bytes.len());
            buffer[..len].copy_from_slice(&first.bytes);
            // What has the same source and size, the last one shorter (UDP GRO).
            let joins_to = |last: usize, next: &Datagram, len: usize| {
                last == stride
                    && len < MAX_BATCH_SEGMENTS * stride
                    && next.source == first.source
                    && next.bytes.len() <= stride
                    && len + next.bytes.len() <= buffer_bytes(of_handshakes)
            };
            let mut last = stride;
            loop {
                let end = &kernel.ends[self.thread];
                let queue = if of_handshakes { &end.handshakes } else { &end.received };
                let Some(next) = queue.front().filter(|next| kernel.joins && joins_to(last, next, len))
                else {
                    break;
                };
                last = next.bytes.len();
                let Some(next) = kernel.take(self.thread, of_handshakes) else { break };
                buffer[len..len + last].copy_from_slice(&next.bytes);
                len += last;
            }
            let local = Some(kernel.address.ip());
            buffers.push([(RecvMeta { source: first.source, local, ecn: Ecn::NotEct, len, stride }, false)]);
            filled += 1;
        }
        if filled > 0 {
            return Poll::Ready(Ok(filled));
        }
        let what = if of_handshakes { Wait::Handshakes } else { Wait::Datagrams };
        kernel.wait(self.thread, what, cx.waker());
        Poll::Pending
    }
}

/// The kernel refuses datagrams.
fn refuse(kernel: &mut Kernel, transmit: &Transmit<'_>) {
    let datagrams = transmit.contents.chunks(transmit.segment_size);
    let data = datagrams.filter(|bytes| has_packet(bytes)).count() as u64;
    kernel.books.data_refused += data;
    kernel.books.others_refused += transmit.segments() as u64 - data;
}

fn buffer_bytes(of_handshakes: bool) -> usize {
    if of_handshakes { 64 * 148 } else { RecvBuffers::BUFFER_BYTES }
}

impl Udp for SimulatedUdp {
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        interleave(&self.threads, &self.network, self.node);
        let mut network = self.network.borrow_mut();
        let kernel = &mut network.kernels[self.node];
        if kernel.socket_is_full {
            kernel.wait(self.thread, Wait::SocketRoom, cx.waker());
            return Poll::Pending;
        }
        let errors = kernel.errors_percent;
        let now = network.now;
        if network.chance.happens(errors) {
            refuse(&mut network.kernels[self.node], transmit);
            let errno = *network.chance.one_of(&REFUSALS);
            return Poll::Ready(Err(SendError::Failed(io::Error::from_raw_os_error(errno))));
        }
        let kernel = &mut network.kernels[self.node];
        let (len, to) = (transmit.segment_size + OUTER_HEADERS, transmit.destination.ip());
        let (mut is_whole, mut path_mtu) = (false, None);
        match kernel.too_long {
            TooLong::Refused if len > kernel.link_mtu => {
                refuse(kernel, transmit);
                kernel.books.too_long += transmit.segments() as u64;
                return Poll::Ready(Err(SendError::TooLong));
            }
            TooLong::Reported => {
                let mtu = kernel.path_mtu(to, now);
                is_whole = len <= mtu;
                path_mtu = (!is_whole && kernel.asks(to, now)).then_some(mtu as u16);
            }
            TooLong::Refused | TooLong::Fragmented => {}
        }
        assert!(transmit.segments() <= MAX_BATCH_SEGMENTS && transmit.contents.len() <= MAX_BATCH_BYTES);
        let mut sent = Sent { bytes: 0, source_unusable: false, path_mtu };
        for bytes in transmit.contents.chunks(transmit.segment_size) {
            // A socket may take a part only.
            if sent.bytes > 0 && network.chance.happens(1) {
                break;
            }
            sent.bytes += bytes.len();
            network.send(self.node, transmit.destination, bytes, is_whole);
        }
        Poll::Ready(Ok(sent))
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        self.receive(cx, buffers, false)
    }

    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        self.receive(cx, buffers, true)
    }

    fn rebind(&mut self, port: Option<u16>, _: Option<u32>) -> Result<u16, BindError> {
        let mut network = self.network.borrow_mut();
        let now = network.now;
        let kernel = &mut network.kernels[self.node];
        if let Some(port) = port.filter(|port| *port != kernel.address.port()) {
            kernel.address.set_port(port);
            kernel.moved_at = now;
        }
        Ok(kernel.address.port())
    }

    fn port(&self) -> u16 {
        self.network.borrow().kernels[self.node].address.port()
    }

    fn stats(&self) -> UdpStats {
        UdpStats::default()
    }

    fn features(&self) -> UdpFeatures {
        UdpFeatures { wanted_receive_buffer_bytes: SOCKET_BYTES as u64, ..UdpFeatures::default() }
    }
}
