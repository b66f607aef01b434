//! The path without a cipher and without splitting: the cost of an unprocessed super-packet from TUN to TUN.
//!
//! ```text
//! iperf3 ─► near tun0 ─► read ─► one GSO send ─► veth ─► one GRO receive ─► one write ─► far tun0 ─► iperf3
//! ```
//!
//! One thread per end, as in the daemon with inline I/O; reading, sending and receiving use weft's code. A
//! packet is sent as it was read, in datagrams as long as the MTU. Its virtio header is not sent but rebuilt:
//! every TCP packet of a program leaves the kernel with a partial checksum, and its segments are as long as
//! the MTU allows.

use std::collections::VecDeque;
use std::fs::File;
use std::future::poll_fn;
use std::io::{IoSlice, Write as _};
use std::os::fd::AsFd as _;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::oneshot;
use weft_host::routes::{Netlink, QueueLimits};
use weft_lab::Namespace;
use weft_tun::{Device, Tun as _, TunBatch, TunConfig};
use weft_tunnel::ip::{self, IpHeader};
use weft_tunnel::{Ecn, Transmit};
use weft_udp::{RecvBuffers, Udp as _, UdpConfig, UdpSockets};

use super::ends::{self, MTU, PORT, Side, TUN};

/// As in the daemon.
const READ_BYTES: usize = 256 * 1024;
const RECEIVE_CALLS: usize = 8;
/// Longest super-packet that fits one GSO send, in bytes.
const GSO_BYTES: u32 = 64_000;
/// Length of the virtio header, its flag for a partial checksum, and its GSO type for TCP over IPv4 (Virtual
/// I/O Device 1.2, section 5.1.6).
const VNET_HDR: usize = 10;
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: u16 = 16;

/// Two ends that carry packets. Dropping this ends them.
pub(super) struct NullPath(
    /// Held until drop.
    #[expect(dead_code, reason = "dropping them ends them")]
    [Running; 2],
);

struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<std::io::Result<Result<()>>>>,
}

impl NullPath {
    pub(super) fn start(namespaces: &[Namespace; 2]) -> Result<Self> {
        let [near, far] = namespaces;
        Ok(Self([start(near, Side::Near)?, start(far, Side::Far)?]))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(Ok(ended)) = self.thread.take().map(JoinHandle::join) else { return };
        if let Err(error) = ended.map_err(anyhow::Error::from).flatten() {
            eprintln!("warning: the path without a cipher failed: {error:#}");
        }
    }
}

fn start(namespace: &Namespace, side: Side) -> Result<Running> {
    let (device, writer) = namespace.run(|| open(TUN))?;
    ends::bring_up_tun(namespace, side)?;
    namespace.run(|| -> Result<()> {
        let netlink = Netlink::open()?;
        let link = netlink.link(&TUN.parse()?)?;
        let limits = QueueLimits { gso_max_bytes: Some(GSO_BYTES), ..QueueLimits::default() };
        netlink.set_queue_limits(&link, limits);
        Ok(())
    })?;
    let (stop, stopped) = oneshot::channel();
    let thread = namespace.spawn("null-path", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().event_interval(1).build()?;
        runtime.block_on(async {
            let udp = UdpSockets::bind(&UdpConfig { port: PORT, ..UdpConfig::default() })?;
            End::new(device, writer, udp, side).run(stopped).await
        })
    })?;
    Ok(Running { stop: Some(stop), thread: Some(thread) })
}

/// Opens a TUN twice: as weft's device for reading, and as a file for writing whole super-packets, which
/// weft's device does not accept.
fn open(name: &str) -> Result<(Device, File)> {
    let tun = tun_rs::DeviceBuilder::new()
        .name(name)
        .inherit_enable_state()
        .with(|builder| {
            builder.packet_information(false).offload(true);
        })
        .build_sync()
        .with_context(|| format!("cannot make the TUN {name}"))?;
    let descriptor = || tun.as_fd().try_clone_to_owned();
    let device = weft_tun::open(TunConfig { descriptors: vec![descriptor()?], ..TunConfig::new(name) })?;
    Ok((device, descriptor()?.into()))
}

struct End {
    device: Device,
    writer: File,
    udp: UdpSockets,
    side: Side,
    batches: VecDeque<TunBatch>,
    buffers: RecvBuffers,
    /// The rest of a packet that the socket did not accept.
    unsent: Vec<u8>,
}

impl End {
    fn new(device: Device, writer: File, udp: UdpSockets, side: Side) -> Self {
        let (batches, buffers) = (VecDeque::new(), RecvBuffers::default());
        Self { device, writer, udp, side, batches, buffers, unsent: Vec::new() }
    }

    async fn run(mut self, mut stopped: oneshot::Receiver<()>) -> Result<()> {
        let turns = poll_fn(|cx| {
            if Future::poll(std::pin::Pin::new(&mut stopped), cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let turn = self.inbound(cx).and_then(|inbound| Ok(inbound | self.outbound(cx)?));
            match turn {
                Ok(true) => cx.waker().wake_by_ref(),
                Ok(false) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            Poll::Pending
        });
        tokio::task::unconstrained(turns).await
    }

    /// Receives and writes packets, and reports whether there is more to do.
    fn inbound(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        for _ in 0..RECEIVE_CALLS {
            match self.udp.poll_recv(cx, &mut self.buffers) {
                Poll::Ready(result) => result?,
                Poll::Pending => return Ok(false),
            };
            while let Some(mut received) = self.buffers.next() {
                let mut rest = &*received.whole();
                // The kernel's GRO may join packets that were sent separately.
                while let Some(header) = IpHeader::parse(rest) {
                    let (packet, behind) = rest.split_at(header.total_len);
                    let virtio = virtio_header(packet, &header);
                    // A packet that the kernel refuses is lost, as on any path.
                    let _ = self.writer.write_vectored(&[IoSlice::new(&virtio), IoSlice::new(packet)]);
                    rest = behind;
                }
            }
        }
        Ok(true)
    }

    /// Reads and sends packets, and reports whether there is more to do.
    fn outbound(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        let mut budget = READ_BYTES;
        loop {
            if !self.unsent.is_empty() {
                let rest = std::mem::take(&mut self.unsent);
                if let Some(from) = send(&mut self.udp, cx, self.side, &rest)? {
                    self.unsent = rest[from..].to_vec();
                    return Ok(false);
                }
            }
            let Some(batch) = self.batches.front_mut() else {
                if budget == 0 {
                    return Ok(true);
                }
                match self.device.poll_recv_many(cx, &mut self.batches, budget) {
                    Poll::Ready(Ok(0)) => return Err(anyhow!("the TUN is gone")),
                    Poll::Ready(read) => budget = budget.saturating_sub(read?),
                    Poll::Pending => return Ok(false),
                }
                continue;
            };
            match batch.next_packet() {
                Some(packet) => {
                    if let Some(from) = send(&mut self.udp, cx, self.side, packet.bytes())? {
                        self.unsent = packet.bytes()[from..].to_vec();
                    }
                }
                None => drop(self.batches.pop_front()),
            }
        }
    }
}

/// Sends a packet in datagrams of at most the MTU. Returns the offset of the unsent rest if the socket
/// accepts no more.
fn send(udp: &mut UdpSockets, cx: &mut Context<'_>, side: Side, packet: &[u8]) -> Result<Option<usize>> {
    let mut from = 0;
    while from < packet.len() {
        let transmit = Transmit {
            destination: side.other().endpoint(),
            source: None,
            ecn: Ecn::NotEct,
            segment_size: usize::from(MTU),
            contents: &packet[from..],
        };
        match udp.poll_send(cx, &transmit) {
            Poll::Ready(sent) => from += sent?.bytes,
            Poll::Pending => return Ok(Some(from)),
        }
    }
    Ok(None)
}

/// Returns the virtio header of a packet, rebuilt because the one read with the packet is not sent.
fn virtio_header(packet: &[u8], ip: &IpHeader) -> [u8; VNET_HDR] {
    let mut header = [0; VNET_HDR];
    let data_offset = packet.get(ip.header_len + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let headers = ip.header_len + data_offset;
    if ip.protocol != ip::TCP || packet[0] >> 4 != 4 || headers >= usize::from(MTU) {
        return header;
    }
    header[0] = NEEDS_CSUM;
    if packet.len() > usize::from(MTU) {
        header[1] = GSO_TCPV4;
        header[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&(MTU - headers as u16).to_ne_bytes());
    }
    header[6..8].copy_from_slice(&(ip.header_len as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&TCP_CHECKSUM.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[9] = ip::TCP;
        packet[32] = 8 << 4;
        packet
    }

    fn header(packet: &[u8]) -> [u16; 5] {
        let header = virtio_header(packet, &IpHeader::parse(packet).unwrap());
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        [u16::from(header[0]) << 8 | u16::from(header[1]), field(2), field(4), field(6), field(8)]
    }

    #[test]
    fn a_tcp_packet_has_a_partial_checksum_and_a_long_one_segments_of_the_mtu() {
        assert_eq!(header(&tcp(52)), [0x100, 0, 0, 20, 16]);
        assert_eq!(header(&tcp(60_000)), [0x101, 52, 1368, 20, 16]);
    }

    #[test]
    fn what_is_not_tcp_is_complete() {
        let mut packet = tcp(84);
        packet[9] = 1;
        assert_eq!(header(&packet), [0; 5]);
    }
}
