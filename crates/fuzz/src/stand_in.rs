//! The device of Linux on sockets that keep message boundaries, as the tests of `weft-tun` have it, and the
//! kernel's side of it. Everything that was sent is there when a read begins.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::task::{Context, Waker};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tokio::runtime::Runtime;
use weft_tun::{Device, Tun, TunBatch, TunOffload};

/// Bytes of the virtio header in front of each packet.
pub(crate) const VNET_HDR: usize = 10;

pub(crate) struct StandIn {
    pub(crate) device: Device,
    /// The kernel's ends of the queues.
    pub(crate) queues: Vec<UnixDatagram>,
    runtime: Runtime,
    /// Messages that were written before.
    written: u64,
}

impl StandIn {
    pub(crate) fn new(queues: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let (ours, theirs): (Vec<OwnedFd>, Vec<UnixDatagram>) = (0..queues)
            .map(|_| {
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                let (ours, theirs) =
                    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
                (ours, UnixDatagram::from(theirs))
            })
            .unzip();
        let device = {
            let _entered = runtime.enter();
            let offload = TunOffload { tcp: true, udp: true };
            Device::from_descriptors_for_test("weft-none", ours, false, offload).unwrap()
        };
        Self { device, queues: theirs, runtime, written: 0 }
    }

    /// Lets the runtime see which queues are readable, and reads once.
    pub(crate) fn read(&mut self, max_bytes: usize) -> VecDeque<TunBatch> {
        let Self { device, runtime, .. } = self;
        runtime.block_on(async {
            tokio::task::yield_now().await;
            let mut batches = VecDeque::new();
            let _ = device.poll_recv_many(&mut Context::from_waker(Waker::noop()), &mut batches, max_bytes);
            batches
        })
    }

    /// Hands over what is staged, and returns the messages that were written to each queue.
    pub(crate) fn flush_all(&mut self) -> Vec<Vec<Vec<u8>>> {
        let Self { device, runtime, .. } = self;
        runtime.block_on(async { device.flush() }).unwrap();
        let mut written: Vec<_> = self.queues.iter().map(|_| Vec::new()).collect();
        loop {
            for (queue, messages) in written.iter_mut().enumerate() {
                messages.extend(self.take_written(queue));
            }
            let Self { device, runtime, .. } = self;
            let is_ready = runtime.block_on(async {
                tokio::task::yield_now().await;
                device.poll_send_ready(&mut Context::from_waker(Waker::noop())).is_ready()
            });
            // A socket is full before a whole batch is in it.
            let messages: usize = written.iter().map(Vec::len).sum();
            let stats = device.stats().snapshot();
            let failures = stats.write_failures;
            assert_eq!(failures, 0, "a socket takes every message");
            if is_ready && stats.packets_written == self.written + messages as u64 {
                self.written = stats.packets_written;
                return written;
            }
        }
    }

    /// Takes every message that was written to a queue.
    fn take_written(&self, queue: usize) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        let mut buffer = vec![0; VNET_HDR + 70_000];
        while let Ok(len) = self.queues[queue].recv(&mut buffer) {
            messages.push(buffer[..len].to_vec());
        }
        messages
    }
}
