//! A packet socket (packet(7)) on the far end of a veth pair, where there may be no TUN. What the kernel
//! routes into the near end is read here, and what is written here the near end receives.
//!
//! Each packet is behind a virtio header and an Ethernet header. The near end has the address [`NEAR`] and
//! resolves no neighbours (IFF_NOARP), so all Ethernet headers of a family are the same.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::uio::readv;
use weft_tunnel::ip::{self, IPV4_HEADER, UDP};

use crate::batch::Slab;
use crate::config::TunOffload;
use crate::device::Queue;
use crate::device::descriptor::write_once;
use crate::device::queue::{HEADROOM, Read, commit_packet_behind, read_room};
use crate::device::vnet_hdr::{self, VNET_HDR};

/// The Ethernet address of the near end.
pub const NEAR: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// The Ethernet address of the far end. Frames for the near end's neighbours have the address of the near
/// end, so the kernel's IP takes none of them at the far end (PACKET_OTHERHOST).
pub const FAR: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

const ETHERNET: usize = 14;
/// What is before each packet.
const PREFIX: usize = VNET_HDR + ETHERNET;
const IPV4: [u8; 2] = (libc::ETH_P_IP as u16).to_be_bytes();
const IPV6: [u8; 2] = (libc::ETH_P_IPV6 as u16).to_be_bytes();
/// Pieces of a write at most: the headers, and each segment of the longest super-packet.
const MAX_PIECES: usize = 2 + crate::device::MAX_TCP_SEGMENTS as usize;

/// Bytes of packets that wait for weft, as far as net.core.rmem_max allows: a fair share of what the queues
/// of a TUN hold.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// Half of the bytes that packets may take which the kernel has not delivered to the near end yet. It
/// delivers them through a queue of net.core.netdev_max_backlog (1,000) packets for each CPU, and drops what
/// does not fit. The smallest packet takes over 500 bytes, so this buffer is full before, and a full one is
/// waited for.
const SEND_BUFFER: libc::c_int = 106_496;

/// From <linux/if_packet.h>; libc lacks them.
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Makes a packet socket (SOCK_RAW, bound to nothing) a queue of the far end with this index.
///
/// # Errors
/// The kernel is older than 4.20, or there is no such device in the namespace of the socket.
pub fn bind_far_end(socket: &OwnedFd, index: u32) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    set(socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is complete, of its family, and as long as is said.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    Ok(Errno::result(result).map(drop)?)
}

/// Returns the super-packets that a kernel reads from and writes to a bound packet socket.
pub fn offload_of(socket: impl AsFd) -> TunOffload {
    TunOffload { tcp: true, udp: takes_udp_super_packets(socket.as_fd()) }
}

/// Writes a super-packet of UDP to an Ethernet address that no end has. Before Linux 6.2 the kernel refuses
/// it, and cannot describe one that it has received.
fn takes_udp_super_packets(socket: BorrowedFd<'_>) -> bool {
    const HEADERS: usize = IPV4_HEADER + 8;
    const LEN: usize = HEADERS + 2;
    let mut packet = [0; LEN];
    packet[..IPV4_HEADER]
        .copy_from_slice(&[0x45, 0, 0, LEN as u8, 0, 0, 0x40, 0, 1, UDP, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    packet[IPV4_HEADER + 4..IPV4_HEADER + 6].copy_from_slice(&((LEN - IPV4_HEADER) as u16).to_be_bytes());
    ip::write_ipv4_checksum(&mut packet, IPV4_HEADER);
    let virtio = vnet_hdr::encode_super_packet(true, UDP, HEADERS as u16, IPV4_HEADER as u16, 1);
    let mut prefix = prefix(&virtio, IPV4);
    prefix[VNET_HDR + 5] = 3;
    write_once(socket, &[IoSlice::new(&prefix), IoSlice::new(&packet)]) != Err(Errno::EINVAL)
}

/// Reports whether a descriptor is a packet socket.
pub(super) fn is_packet_socket(descriptor: BorrowedFd<'_>) -> bool {
    let domain = get::<1>(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN);
    domain == Ok([libc::AF_PACKET.unsigned_abs()])
}

fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the call reads an int from `value`, which lives until it returns.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    Errno::result(result).map(drop)
}

/// Returns the value of an option, which consists of so many integers of 32 bits.
fn get<const COUNT: usize>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
) -> Result<[u32; COUNT], Errno> {
    let mut value = [0; COUNT];
    let mut len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes to `value`, for which any bytes are valid.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut len)
    };
    Errno::result(result).map(|_| value)
}

/// Returns what is before a packet: its virtio header, whose positions count from the Ethernet header, and
/// that.
fn prefix(virtio: &[u8; VNET_HDR], ether_type: [u8; 2]) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    let (header, ethernet) = prefix.split_at_mut(VNET_HDR);
    header.copy_from_slice(&vnet_hdr::moved(virtio, ETHERNET as i16));
    ethernet[..6].copy_from_slice(&NEAR);
    ethernet[6..12].copy_from_slice(&FAR);
    ethernet[12..].copy_from_slice(&ether_type);
    prefix
}

/// A bound packet socket.
#[derive(Debug)]
pub(super) struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Returns the queue of a non-blocking socket.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Queue for PacketSocket {
    fn read(&self, slab: &mut Slab) -> Read {
        let mut prefix = [0; PREFIX];
        loop {
            let room = read_room(slab, HEADROOM);
            let len = match readv(&self.socket, &mut [IoSliceMut::new(&mut prefix), IoSliceMut::new(room)]) {
                Ok(len) => len,
                Err(Errno::EAGAIN) => return Read::Empty,
                Err(Errno::EINTR) => continue,
                // The kernel cannot describe the packet in a virtio header.
                Err(Errno::EINVAL) => return Read::Malformed,
                Err(Errno::ENETDOWN | Errno::ENODEV | Errno::ENXIO) => return Read::Gone,
                Err(errno) => {
                    tracing::error!(error = errno.desc(), "reading from the packet socket failed for good");
                    return Read::Gone;
                }
            };
            let (Some(bytes), Some((virtio, ethernet))) =
                (len.checked_sub(PREFIX), prefix.split_first_chunk::<VNET_HDR>())
            else {
                return Read::Malformed;
            };
            // Anything else is of the link itself, and no packet for the tunnel.
            if ethernet.ends_with(&IPV4) || ethernet.ends_with(&IPV6) {
                return commit_packet_behind(slab, &vnet_hdr::moved(virtio, -(ETHERNET as i16)), bytes);
            }
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        let [first, payloads @ ..] = pieces else { return Err(Errno::EINVAL) };
        let (virtio, headers) = first.split_first_chunk::<VNET_HDR>().ok_or(Errno::EINVAL)?;
        let version = headers.first().or_else(|| payloads.first()?.first()).ok_or(Errno::EINVAL)? >> 4;
        let prefix = prefix(virtio, if version == 4 { IPV4 } else { IPV6 });
        let (prefix, headers) = (IoSlice::new(&prefix), IoSlice::new(headers));
        if let [payload] = payloads {
            return write_once(&self.socket, &[prefix, headers, *payload]);
        }
        let mut all = [IoSlice::new(&[]); MAX_PIECES];
        let all = all.get_mut(..2 + payloads.len()).ok_or(Errno::EINVAL)?;
        all[..2].copy_from_slice(&[prefix, headers]);
        all[2..].copy_from_slice(payloads);
        write_once(&self.socket, all)
    }

    fn poll_drops(&self) -> u64 {
        /// `struct tpacket_stats`: packets received and packets dropped, since it was last asked.
        const PACKET_STATISTICS: libc::c_int = 6;
        let counts = get::<2>(self.socket.as_fd(), libc::SOL_PACKET, PACKET_STATISTICS);
        counts.map_or(0, |[_, dropped]| dropped.into())
    }
}
