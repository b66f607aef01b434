//! Fake sockets, which carry nothing and record the filters that the kernel is told to apply.

use std::io;
use std::task::{Context, Poll};

use weft_tunnel::Transmit;
use weft_udp::{BindError, Half, RecvBuffers, SendError, Sent, Udp, UdpStats};

#[derive(Default)]
pub(super) struct FakeKernel {
    /// Whether the kernel can filter by receiver index.
    pub(super) can_filter: bool,
    /// The argument of each call of [`Udp::let_pass`].
    pub(super) passing: Vec<Option<Vec<u32>>>,
    /// The argument of each call of [`Udp::let_half_ask`].
    pub(super) halves: Vec<Option<Half>>,
    pub(super) junk_dropped: u64,
}

impl Udp for FakeKernel {
    fn poll_send(&mut self, _: &mut Context<'_>, _: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        Poll::Pending
    }

    fn poll_recv(&mut self, _: &mut Context<'_>, _: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn rebind(&mut self, _: Option<u16>, _: Option<u32>) -> Result<u16, BindError> {
        Err(BindError::NoAddressFamily)
    }

    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        self.passing.push(receivers.map(<[u32]>::to_vec));
        self.can_filter && receivers.is_some()
    }

    fn let_half_ask(&mut self, half: Option<Half>) {
        self.halves.push(half);
    }

    fn stats(&self) -> UdpStats {
        UdpStats { junk_dropped: self.junk_dropped, ..UdpStats::default() }
    }
}
