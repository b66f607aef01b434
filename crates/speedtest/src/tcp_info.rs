//! TCP_INFO of a connection.

use std::os::fd::{AsFd, AsRawFd as _};

use crate::sample::Tcp;

/// The part of `struct tcp_info` (`linux/tcp.h`) that is read, up to `tcpi_rcv_wnd` of 6.2.
const LEN: usize = 240;

/// The structure as the kernel wrote it: an older kernel writes less of it, and the rest stays 0.
struct Raw([u8; LEN]);

impl Raw {
    fn u32(&self, offset: usize) -> u64 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[offset..offset + 4]);
        u32::from_ne_bytes(bytes).into()
    }

    fn u64(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[offset..offset + 8]);
        u64::from_ne_bytes(bytes)
    }
}

fn read(socket: impl AsFd) -> Option<Raw> {
    let mut raw = Raw([0; LEN]);
    let mut len: libc::socklen_t = LEN as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the array, and the length that it wrote.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            raw.0.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(raw)
}

/// Reads TCP_INFO of the connections of a sender, and sums it up.
pub(crate) fn of(sockets: impl IntoIterator<Item = impl AsFd>) -> Tcp {
    let mut sum = Tcp::default();
    for raw in sockets.into_iter().filter_map(read) {
        let (mss, ssthresh, cwnd) = (raw.u32(16), raw.u32(76), raw.u32(80));
        sum.streams += 1;
        sum.unacked_bytes += raw.u32(24) * mss;
        sum.rtt_us += raw.u32(68);
        sum.cwnd_bytes += cwnd * mss;
        sum.retransmits += raw.u32(100);
        let min_rtt = raw.u32(148);
        sum.min_rtt_us = if sum.min_rtt_us == 0 { min_rtt } else { sum.min_rtt_us.min(min_rtt) };
        sum.delivery_rate += raw.u64(160);
        sum.busy_us += raw.u64(168);
        sum.rwnd_limited_us += raw.u64(176);
        sum.sndbuf_limited_us += raw.u64(184);
        sum.reordered += raw.u32(220);
        sum.receive_window_bytes += raw.u32(228);
        sum.in_slow_start += u32::from(cwnd < ssthresh);
    }
    let streams = u64::from(sum.streams.max(1));
    for mean in [&mut sum.rtt_us, &mut sum.busy_us, &mut sum.rwnd_limited_us, &mut sum.sndbuf_limited_us] {
        *mean /= streams;
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_tells_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        for _ in 0..8 {
            sender.write_all(&[0; 65_536]).unwrap();
            receiver.read_exact(&mut [0; 65_536]).unwrap();
        }
        let tcp = of([&sender, &sender]);
        assert_eq!((tcp.streams, tcp.in_slow_start, tcp.retransmits), (2, 2, 0));
        assert!(tcp.cwnd_bytes > 10_000 && tcp.receive_window_bytes > 10_000, "{tcp:?}");
        assert!((1..1_000_000).contains(&tcp.rtt_us), "{tcp:?}");
        assert!((1..=tcp.rtt_us * 8).contains(&tcp.min_rtt_us), "{tcp:?}");
        assert!(tcp.delivery_rate > 0, "{tcp:?}");
    }
}
