//! Inbound, first step: the waiting messages, joined by the kernel where it can, fill the free buffers.

use std::io::{self, IoSliceMut};

use super::filled::Filled;
use super::socket::{MESSAGES_PER_CALL, UdpSocket};
use crate::{RecvBuffers, UdpStats};

/// Fills the free buffers until there are none, or the socket is empty. Fails with
/// [`io::ErrorKind::WouldBlock`] if nothing has arrived.
pub(super) fn recv(
    socket: &UdpSocket,
    buffers: &mut RecvBuffers,
    stats: &mut UdpStats,
) -> io::Result<Filled> {
    let room = buffers.room();
    let mut metas = [None; RecvBuffers::COUNT];
    let mut filled = Filled { buffers: 0, is_empty_now: false };
    {
        let mut free = buffers.free_buffers();
        let mut slices: [IoSliceMut<'_>; RecvBuffers::COUNT] =
            std::array::from_fn(|_| IoSliceMut::new(free.next().unwrap_or_default()));
        while filled.buffers < room {
            let rest = filled.buffers..room;
            // A call that returns less than it could means that the socket is empty. Where a call receives a
            // single message, only an error says so.
            let expected = rest.len().min(MESSAGES_PER_CALL);
            match socket.recv(&mut slices[rest.clone()], &mut metas[rest]) {
                Ok(count) => {
                    stats.recv_calls += 1;
                    filled.buffers += count;
                    if count < expected {
                        filled.is_empty_now = true;
                        break;
                    }
                }
                Err(error) if filled.buffers == 0 => return Err(error),
                Err(error) => {
                    // The next call meets any other error again.
                    filled.is_empty_now = error.kind() == io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
    }
    buffers.push(metas[..filled.buffers].iter().flatten().map(|meta| {
        stats.datagrams_received += meta.len.div_ceil(meta.stride).max(1) as u64;
        stats.bytes_received += meta.len as u64;
        // No datagram is longer than a buffer.
        (*meta, false)
    }));
    Ok(filled)
}
