//! Reasons for dropping a packet, with one counter each.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident => $label:literal,)+) => {
        /// Why weft dropped a packet. Every drop has exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)+ }

        impl DropReason {
            /// Every reason, in the order of its counter.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// Labels in the order of the counters. This is a table and not a `match`, because an inlined
            /// `match` led to different symbols in different builds of the same source, and a package has to
            /// be the same bytes in each build.
            const LABELS: [&'static str; Self::ALL.len()] = [$($label),+];

            /// Returns the name of the reason in logs, tables and metrics.
            pub const fn label(self) -> &'static str {
                Self::LABELS[self as usize]
            }
        }
    };
}

drop_reasons! {
    /// Outbound: not an IPv4 or IPv6 packet, or shorter than its header says, or its offload metadata does
    /// not fit it.
    MalformedPacket => "malformed_packet",
    /// Outbound: on its way to the packet thread of its peer, or staged there, when the peer or its address
    /// moved to another one.
    PeerMoved => "peer_moved",
    /// Outbound: the packet thread of the peer took nothing from the other packet threads for over a second.
    PacketThreadStalled => "packet_thread_stalled",
    /// Outbound: no peer has the destination in its allowed-ips.
    NoPeer => "no_peer",
    /// Outbound: to all hosts of the link or to one of its link-local addresses, which no peer has in its
    /// allowed-ips. Kernels and programs send such packets by themselves.
    LinkLocal => "link_local",
    /// Outbound: the peer has no known endpoint, so no handshake can start.
    NoEndpoint => "no_endpoint",
    /// Outbound: longer than the path to the peer carries, and must not be fragmented; answered by ICMP.
    PacketTooBig => "packet_too_big",
    /// Outbound: over the rate limit for packets to the peer.
    OverRateToPeer => "over_rate_to_peer",
    /// Outbound: no room in the peer's staging or in the staging budget. The oldest packets are dropped to
    /// make room, or the new packet where that does not help.
    StagingFull => "staging_full",
    /// Outbound: no handshake completed for 90 s (Rekey-Attempt-Time), and the staged packets were dropped.
    HandshakeTimeout => "handshake_timeout",
    /// Outbound: the peer was removed while the packet waited for its handshake.
    PeerRemoved => "peer_removed",
    /// Outbound: the kernel refused to send the datagram (no route, a firewall).
    UdpSendFailed => "udp_send_failed",
    /// Outbound: the datagram is longer than the route to the endpoint carries unfragmented.
    DatagramTooLong => "datagram_too_long",
    /// Inbound: not a WireGuard message, or the wrong length for its type.
    MalformedDatagram => "malformed_datagram",
    /// Inbound: longer than the buffer that received it.
    TruncatedDatagram => "truncated_datagram",
    /// Inbound: no peer has this receiver index.
    UnknownReceiverIndex => "unknown_receiver_index",
    /// Inbound: the handshake message was not made with our public key (mac1).
    InvalidMac => "invalid_mac",
    /// Inbound: answered with a cookie reply instead, under load or after forged responses.
    CookieRequired => "cookie_required",
    /// Inbound: no budget for handshake messages, or under load not enough for this source; or the peer was
    /// sent a response less than 20 ms ago.
    HandshakeRateLimited => "handshake_rate_limited",
    /// Inbound: a handshake from a public key that no peer has, or an initiation that fails to decrypt.
    UnknownPeer => "unknown_peer",
    /// Inbound: a handshake initiation that is not newer than the last one.
    ReplayedHandshake => "replayed_handshake",
    /// Inbound: a handshake response that answers no outstanding initiation of ours, or an initiation that
    /// was handed over to the packet thread that had the peer before.
    UnexpectedHandshake => "unexpected_handshake",
    /// Inbound: no session has this index any more, or a cookie reply does not answer our last handshake
    /// message. Outbound: no session to seal with.
    NoSession => "no_session",
    /// Inbound: the authentication tag is wrong.
    InvalidTag => "invalid_tag",
    /// Inbound: the counter was seen before, is older than the replay window, or is one that no session has.
    Replayed => "replayed",
    /// Inbound: datagrams arrive faster than they can be opened. Dropped from the longest queue of a source,
    /// or one at a time from a queue that has waited too long; or of a session from before its peer moved to
    /// another packet thread, before the peer was there or after a message of the next session was opened.
    Overload => "overload",
    /// Inbound: decrypted, but not an IP packet.
    MalformedPlaintext => "malformed_plaintext",
    /// Inbound: the inner source address is not in the peer's allowed-ips (cryptokey routing).
    SourceNotAllowed => "source_not_allowed",
    /// Inbound: over the rate limit for packets from the peer.
    OverRateFromPeer => "over_rate_from_peer",
    /// Inbound: the outer header is marked Congestion Experienced, but the inner packet is not ECN-capable
    /// (RFC 6040).
    CongestionNotEct => "congestion_not_ect",
    /// Inbound: the TUN accepted nothing for over a second.
    TunStalled => "tun_stalled",
    /// Inbound: the kernel refused the packet that was written to the TUN.
    TunWriteFailed => "tun_write_failed",
    /// No free slot for a handshake message or keepalive of ours, or for the answer to a received handshake
    /// message, because the socket accepts nothing.
    ControlQueueFull => "control_queue_full",
}

/// One counter per [`DropReason`], in packets on the wire: a super-packet counts once per segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Adds `segments` packets to the counter of `reason`.
    pub fn add(&mut self, reason: DropReason, segments: u64) {
        self.0[reason as usize] += segments;
    }

    /// Returns the number of packets dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Iterates over all reasons with their counts, including zero.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }

    /// Returns the number of packets dropped for all reasons together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
