//! Control messages: what goes along with a datagram beside its bytes.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::c_int;
use weft_tunnel::Ecn;

/// Room for the control messages of one datagram. What is sent and received takes 88 bytes at most: an
/// in6_pktinfo (40), a traffic class (24) and a segment size (24).
const CONTROL_BYTES: usize = 128;

/// A buffer of control messages, aligned as their headers have to be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl Control {
    /// An empty buffer.
    pub(super) const fn new() -> Self {
        Self { bytes: [0; CONTROL_BYTES], len: 0 }
    }

    /// Lets the datagram leave from `source`. The interface is the routing table's choice.
    pub(super) fn push_source(&mut self, source: IpAddr) {
        match source {
            IpAddr::V4(address) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            IpAddr::V6(address) => {
                let ipi6_addr = libc::in6_addr { s6_addr: address.octets() };
                self.push(
                    libc::IPPROTO_IPV6,
                    libc::IPV6_PKTINFO,
                    libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 },
                );
            }
        }
    }

    /// Sets the ECN field of a datagram to an IPv4 or IPv6 address.
    pub(super) fn push_ecn(&mut self, ecn: Ecn, is_v6: bool) {
        let bits = c_int::from(ecn as u8);
        if is_v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, bits);
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, bits);
        }
    }

    /// Lets the kernel cut what is sent into datagrams of `bytes` bytes.
    pub(super) fn push_segment_size(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, bytes);
    }

    /// `value` is one of the plain C structs and integers above.
    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        // SAFETY: these only compute sizes.
        let (space, len) = unsafe {
            (libc::CMSG_SPACE(size_of::<T>() as u32) as usize, libc::CMSG_LEN(size_of::<T>() as u32))
        };
        assert!(self.len + space <= CONTROL_BYTES);
        // SAFETY: header and value lie within `bytes`, as was just checked. `self.len` is a sum of CMSG_SPACE,
        // hence a multiple of the header's alignment, which is that of `Self` at most.
        unsafe {
            let header = self.bytes.as_mut_ptr().add(self.len).cast::<libc::cmsghdr>();
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = len as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.len += space;
    }

    /// Lets a message header that is going to be sent point here.
    pub(super) fn attach(&mut self, header: &mut libc::msghdr) {
        if self.len > 0 {
            header.msg_control = self.bytes.as_mut_ptr().cast();
            header.msg_controllen = self.len as _;
        }
    }

    /// Lets a message header that is going to be received with point here.
    pub(super) fn attach_whole(&mut self, header: &mut libc::msghdr) {
        header.msg_control = self.bytes.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
    }
}

/// What the control messages of a received buffer say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ancillary {
    /// The local address it was sent to.
    pub(super) local: Option<IpAddr>,
    /// The ECN field of its header.
    pub(super) ecn: Ecn,
    /// Bytes of each datagram, when the kernel's GRO joined several.
    pub(super) segment_bytes: Option<usize>,
}

impl Ancillary {
    /// Reads the control messages of a header.
    ///
    /// # Safety
    /// `msg_control` and `msg_controllen` of `header` have to describe memory that is initialised and aligned
    /// like a `cmsghdr`, as after a call that received with it.
    pub(super) unsafe fn parse(header: &libc::msghdr) -> Self {
        let mut found = Self::default();
        // SAFETY: the caller's promise.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a header that lies within the buffer.
        while let Some(message) = unsafe { next.as_ref() } {
            // SAFETY: `message` is a header of that buffer, and its data follows it.
            unsafe {
                match (message.cmsg_level, message.cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        found.segment_bytes =
                            value::<c_int>(message).and_then(|bytes| usize::try_from(bytes).ok());
                    }
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        found.local = value::<libc::in_pktinfo>(message)
                            .map(|info| Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        found.local = value::<libc::in6_pktinfo>(message)
                            .map(|info| Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => {
                        found.ecn = value::<u8>(message).map(Ecn::from_bits).unwrap_or_default();
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        let class = value::<c_int>(message).unwrap_or_default();
                        found.ecn = Ecn::from_bits((class & 0xff) as u8);
                    }
                    _ => {}
                }
            }
            // SAFETY: as for CMSG_FIRSTHDR; `message` is one of its headers.
            next = unsafe { libc::CMSG_NXTHDR(header, message) };
        }
        found
    }
}

/// The value of a control message, unless it is shorter than a `T`.
///
/// # Safety
/// `cmsg_len` bytes from `message` on have to be readable, and any bytes have to be a valid `T`.
unsafe fn value<T: Copy>(message: &libc::cmsghdr) -> Option<T> {
    // SAFETY: this only computes a size.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as _;
    // SAFETY: the value is within `cmsg_len`, which the caller promises to be readable.
    (message.cmsg_len >= needed).then(|| unsafe { libc::CMSG_DATA(message).cast::<T>().read_unaligned() })
}
