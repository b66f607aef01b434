//! Why a packet was dropped, and how many were: one counter a reason.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident => $label:literal,)+) => {
        /// Why weft dropped a packet. Every drop has exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)+ }

        impl DropReason {
            /// Every reason, in the order of its counter.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// In the order of the counters. A table, and no `match`: inlined, that became other symbols in other builds of
            /// the same source, and a package is to be the same bytes each time.
            const LABELS: [&'static str; Self::ALL.len()] = [$($label),+];

            /// The name of the reason in logs, tables and metrics.
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
    /// Outbound: no peer has the destination in its allowed-ips.
    NoPeer => "no_peer",
    /// Outbound: the peer has no known endpoint, so no handshake can start.
    NoEndpoint => "no_endpoint",
    /// Outbound: longer than the path to the peer carries, and not to be fragmented; answered by ICMP.
    PacketTooBig => "packet_too_big",
    /// Outbound: more than the limit of what is sent to the peer allows.
    OverRateToPeer => "over_rate_to_peer",
    /// Outbound: the peer's staging was full and this packet was its oldest.
    StagingFull => "staging_full",
    /// Outbound: no handshake came through for 90 s (Rekey-Attempt-Time); what waited was given up.
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
    /// Inbound: no peer of ours has this receiver index.
    UnknownReceiverIndex => "unknown_receiver_index",
    /// Inbound: the handshake message was not made with our public key (mac1).
    InvalidMac => "invalid_mac",
    /// Inbound: under load, answered with a cookie reply instead.
    CookieRequired => "cookie_required",
    /// Inbound: under load, and this source has used up its share of handshakes.
    HandshakeRateLimited => "handshake_rate_limited",
    /// Inbound: a handshake from a key that is no peer of ours, or one that fails to decrypt.
    UnknownPeer => "unknown_peer",
    /// Inbound: a handshake initiation that is older than the last one.
    ReplayedHandshake => "replayed_handshake",
    /// Inbound: a handshake message or cookie reply that answers nothing of ours.
    UnexpectedHandshake => "unexpected_handshake",
    /// Inbound: no session has this index any more.
    NoSession => "no_session",
    /// Inbound: the authentication tag is wrong.
    InvalidTag => "invalid_tag",
    /// Inbound: the counter was seen before, or is older than the replay window.
    Replayed => "replayed",
    /// Inbound: decrypted, but not an IP packet.
    MalformedPlaintext => "malformed_plaintext",
    /// Inbound: the inner source address is not in the peer's allowed-ips (cryptokey routing).
    SourceNotAllowed => "source_not_allowed",
    /// Inbound: more than the limit of what comes from the peer allows.
    OverRateFromPeer => "over_rate_from_peer",
    /// Inbound: marked Congestion Experienced outside, while the inner packet does not do ECN (RFC 6040).
    CongestionNotEct => "congestion_not_ect",
    /// Inbound: the TUN took nothing for over a second.
    TunStalled => "tun_stalled",
    /// Inbound: the kernel refused the packet that was written to the TUN.
    TunWriteFailed => "tun_write_failed",
    /// A handshake message or keepalive of ours that found no free slot because the socket takes nothing.
    ControlQueueFull => "control_queue_full",
}

/// One counter a [`DropReason`], in packets as the wire would see them: a super-packet counts its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts `segments` packets more.
    pub fn add(&mut self, reason: DropReason, segments: u64) {
        self.0[reason as usize] += segments;
    }

    /// Packets dropped for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Every reason with its count, zero or not.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }

    /// Packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
