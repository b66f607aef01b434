//! Ancillary data of a datagram (cmsg(3)): its local address, ECN field and segment size.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::slice;

use libc::c_int;
use weft_tunnel::Ecn;

/// Room for the ancillary data of one datagram. Sending and receiving take at most 88 bytes: an
/// in6_pktinfo (40), a traffic class (24) and a segment size (24).
const CONTROL_BYTES: usize = 128;

/// Offset of the value in an ancillary message.
// SAFETY: this only computes a size.
const HEADER: usize = unsafe { libc::CMSG_LEN(0) } as usize;

/// A buffer of ancillary messages, aligned as their headers have to be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct AncillaryBuffer {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl AncillaryBuffer {
    /// Returns an empty buffer.
    pub(super) const fn new() -> Self {
        Self { bytes: [0; CONTROL_BYTES], len: 0 }
    }

    /// Makes the datagram leave from `source`. The routing table chooses the interface.
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

    /// Sets the ECN field of a datagram to an IPv6 or IPv4 destination.
    pub(super) fn push_ecn(&mut self, ecn: Ecn, is_v6: bool) {
        let bits = c_int::from(ecn as u8);
        if is_v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, bits);
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, bits);
        }
    }

    /// Makes the kernel split the contents into datagrams of `bytes` bytes.
    pub(super) fn push_segment_size(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, bytes);
    }

    /// Appends an ancillary message. `value` must be one of the plain C structs and integers above.
    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        // SAFETY: these only compute sizes.
        let (space, len) = unsafe {
            (libc::CMSG_SPACE(size_of::<T>() as u32) as usize, libc::CMSG_LEN(size_of::<T>() as u32))
        };
        assert!(self.len + space <= CONTROL_BYTES);
        // SAFETY: header and value lie within `bytes`, as was just checked. `self.len` is a sum of
        // CMSG_SPACE, hence a multiple of the header's alignment, which is that of `Self` at most.
        unsafe {
            let header = self.bytes.as_mut_ptr().add(self.len).cast::<libc::cmsghdr>();
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = len as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.len += space;
    }

    /// Points a message header for sending to this buffer. Several headers may share it, because sending only
    /// reads it.
    pub(super) fn attach(&self, header: &mut libc::msghdr) {
        if self.len > 0 {
            header.msg_control = self.bytes.as_ptr().cast_mut().cast();
            header.msg_controllen = self.len as _;
        }
    }

    /// Points a message header for receiving to the whole buffer.
    pub(super) fn attach_whole(&mut self, header: &mut libc::msghdr) {
        header.msg_control = self.bytes.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
    }
}

/// The ancillary data of a received message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ancillary {
    /// The local address that the datagram was sent to.
    pub(super) local: Option<IpAddr>,
    /// The ECN field of the IP header.
    pub(super) ecn: Ecn,
    /// Bytes of each datagram, when the kernel's GRO joined several.
    pub(super) segment_bytes: Option<usize>,
}

impl Ancillary {
    /// Parses the ancillary data of a header.
    ///
    /// # Safety
    /// `msg_control` is null or points to `msg_controllen` bytes that are initialised and may be read, as
    /// after a call that received with it.
    pub(super) unsafe fn parse(header: &libc::msghdr) -> Self {
        let mut found = Self::default();
        if header.msg_control.is_null() {
            return found;
        }
        // SAFETY: the caller's promise.
        let mut rest: &[u8] = unsafe {
            slice::from_raw_parts(header.msg_control.cast_const().cast(), header.msg_controllen as _)
        };
        // SAFETY: all bytes are a valid cmsghdr.
        while let Some(message) = unsafe { read::<libc::cmsghdr>(rest) } {
            let Some(value) = rest.get(HEADER..message.cmsg_len as _) else { break };
            // SAFETY: all bytes are valid integers, and valid structs of integers.
            unsafe {
                match (message.cmsg_level, message.cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        found.segment_bytes =
                            read::<c_int>(value).and_then(|bytes| usize::try_from(bytes).ok());
                    }
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        found.local = read::<libc::in_pktinfo>(value)
                            .map(|info| Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        found.local = read::<libc::in6_pktinfo>(value)
                            .map(|info| Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => {
                        found.ecn = read::<u8>(value).map(Ecn::from_bits).unwrap_or_default();
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        let class = read::<c_int>(value).unwrap_or_default();
                        found.ecn = Ecn::from_bits((class & 0xff) as u8);
                    }
                    _ => {}
                }
            }
            // SAFETY: this only computes a size.
            let space = unsafe { libc::CMSG_SPACE(value.len() as u32) } as usize;
            rest = rest.get(space..).unwrap_or_default();
        }
        found
    }
}

/// Returns the `T` at the start of `bytes`; `None` if they are too short.
///
/// # Safety
/// All bytes have to be a valid `T`.
unsafe fn read<T: Copy>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: these are the bytes of a `T`, and the caller promises that they are valid.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses these messages as if they were received.
    fn parse(control: &AncillaryBuffer) -> Ancillary {
        // SAFETY: a msghdr of zeros is valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        control.attach(&mut header);
        // SAFETY: the header describes `control`, or no memory at all.
        unsafe { Ancillary::parse(&header) }
    }

    #[test]
    fn each_control_message_of_a_datagram_is_read() {
        for source in [IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), Ipv6Addr::LOCALHOST.into()] {
            let mut control = AncillaryBuffer::new();
            control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, 7_u8);
            control.push_source(source);
            if source.is_ipv6() {
                control.push_ecn(Ecn::Ce, true);
            } else {
                // The kernel delivers this value as a byte.
                control.push(libc::IPPROTO_IP, libc::IP_TOS, Ecn::Ce as u8);
            }
            control.push(libc::SOL_UDP, libc::UDP_GRO, 1300 as c_int);
            let found = parse(&control);
            assert_eq!((found.local, found.ecn, found.segment_bytes), (Some(source), Ecn::Ce, Some(1300)));
        }
    }

    #[test]
    fn without_control_messages_nothing_is_known() {
        let found = parse(&AncillaryBuffer::new());
        assert_eq!((found.local, found.ecn, found.segment_bytes), (None, Ecn::default(), None));
    }

    #[test]
    fn a_value_that_is_cut_short_is_ignored() {
        let mut control = AncillaryBuffer::new();
        control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 1_u64);
        control.push(libc::SOL_UDP, libc::UDP_GRO, 1300_u16);
        control.push_ecn(Ecn::Ect0, true);
        let found = parse(&control);
        assert_eq!((found.local, found.ecn, found.segment_bytes), (None, Ecn::Ect0, None));
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_control_messages() {
        for len in [0, size_of::<libc::cmsghdr>() - 1, CONTROL_BYTES + 1, usize::MAX] {
            let mut control = AncillaryBuffer::new();
            control.push_ecn(Ecn::Ce, true);
            control.push_source(Ipv6Addr::LOCALHOST.into());
            control.bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(parse(&control).local, None, "{len}");
        }
    }
}
