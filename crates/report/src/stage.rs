//! The stage of the packet path at which a packet was dropped.

use weft_tunnel::DropReason;

/// Returns the direction and the stage of a drop reason, such as `("outbound", "routing")`.
pub fn stage_of(reason: DropReason) -> (&'static str, &'static str) {
    use DropReason::*;
    match reason {
        MalformedPacket => ("outbound", "tun"),
        NoPeer | LinkLocal | PacketThreadStalled | PeerMoved | PacketTooBig | OverRateToPeer => {
            ("outbound", "routing")
        }
        NoEndpoint | StagingFull | HandshakeTimeout | PeerRemoved => ("outbound", "session"),
        UdpSendFailed | DatagramTooLong | ControlQueueFull => ("outbound", "udp"),
        MalformedDatagram | TruncatedDatagram | Overload => ("inbound", "udp"),
        UnknownReceiverIndex | NoSession => ("inbound", "session"),
        InvalidMac | CookieRequired | HandshakeRateLimited | UnknownPeer | ReplayedHandshake
        | UnexpectedHandshake => ("inbound", "handshake"),
        InvalidTag | Replayed | MalformedPlaintext | CongestionNotEct => ("inbound", "decryption"),
        SourceNotAllowed | OverRateFromPeer => ("inbound", "routing"),
        TunStalled | TunWriteFailed => ("inbound", "tun"),
    }
}
