//! Offload metadata of an outbound packet: work that the kernel leaves to the reader of the TUN, in the terms
//! of virtio-net (Virtual I/O Device 1.2, section 5.1.6). It is a checksum to complete, or a super-packet to
//! split.

/// Work that remains on an outbound packet before it can be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Offload {
    /// Nothing: every checksum is complete.
    #[default]
    None,
    /// The 16 bits at `start + offset` hold the pseudo-header sum only; the checksum over everything from
    /// `start` to the end of the packet has to be completed.
    Checksum {
        /// Bytes from the start of the IP header to where the sum begins.
        start: u16,
        /// Bytes from `start` to the checksum field.
        offset: u16,
    },
    /// A TCP super-packet: one header, then the payload of several segments. Its checksum is partial too.
    TcpSegmentation {
        /// TCP payload bytes in each segment but the last. Never 0.
        segment_size: u16,
    },
    /// A UDP super-packet: one header, then the payload of several datagrams. Its checksum is partial too.
    UdpSegmentation {
        /// UDP payload bytes in each datagram but the last. Never 0.
        segment_size: u16,
    },
}
