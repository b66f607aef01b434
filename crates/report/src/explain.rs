//! Explains the drop reasons: what it means when packets are dropped, and what to do.

use weft_tunnel::DropReason;

use crate::finding::Level;

/// Returns the level of a finding about packets that are dropped for this reason now, which packets are
/// dropped, and what to do. `None` if such drops are normal, or if a separate check says more.
pub(super) fn explain(reason: DropReason) -> Option<(Level, &'static str, &'static str)> {
    use DropReason::*;
    use Level::{Note, Warning};
    Some(match reason {
        // Separate checks report these, with more figures.
        UdpSendFailed | DatagramTooLong | NoEndpoint | ReplayedHandshake => return None,
        CookieRequired | HandshakeRateLimited => return None,
        // What waits for a peer that does not answer: a finding about that peer says so, unless it may be
        // silent.
        StagingFull | HandshakeTimeout => return None,
        // A few tell TCP to slow down, or a sender of the path's MTU: all works as it should. A packet thread
        // that is full is found by its load.
        Overload | PacketTooBig => return None,
        // The operator set these limits; the table of peers shows the drops per peer.
        OverRateToPeer | OverRateFromPeer => return None,
        // Stray and duplicate datagrams, which every network has, and drops that are normal at the start of a
        // session.
        MalformedDatagram | UnknownReceiverIndex | NoSession | UnexpectedHandshake | PeerRemoved
        | PeerMoved => {
            return None;
        }
        // The kernel and programs that look for neighbours send these by themselves.
        LinkLocal => return None,
        MalformedPacket => {
            (Warning, "packets from the TUN that are not valid IP packets", "see what sends them")
        }
        NoPeer => (
            Note,
            "packets to addresses that no peer has in its allowed-ips",
            "add the addresses to a peer's AllowedIPs, or do not route them into the tunnel",
        ),
        PacketThreadStalled => (
            Warning,
            "packets whose packet thread took nothing for over a second",
            "see what the thread waits for (the log names it): its socket, or the processor",
        ),
        ControlQueueFull => (
            Warning,
            "handshakes and keepalives, because the socket took nothing",
            "check that nothing blocks the way out (`tc -s qdisc`)",
        ),
        TruncatedDatagram => (Warning, "datagrams larger than 64 KiB", "find out what sends them"),
        InvalidMac => (
            Warning,
            "handshakes that were made for another public key",
            "compare the public key that the peers have for this interface with its own",
        ),
        UnknownPeer => (
            Warning,
            "handshakes with a key that no peer has",
            "add the peer, or correct its PublicKey or PresharedKey here",
        ),
        InvalidTag => (
            Warning,
            "packets that were altered on their way or forged",
            "if they grow with traffic, look for a device on the way that alters packets (try UDP checksums off)",
        ),
        Replayed => (
            Note,
            "packets that came twice, or more than 1,000 packets late",
            "look for a link on the way that duplicates or reorders",
        ),
        MalformedPlaintext => {
            (Warning, "packets from peers that are not IP packets", "see what the peer's WireGuard is")
        }
        SourceNotAllowed => (
            Warning,
            "packets with an inner source address that is not among the allowed-ips of the peer",
            "add the address to the peer's AllowedIPs here, or let the peer send from the right one",
        ),
        CongestionNotEct => (
            Note,
            "packets that were marked as congested on the way, though they do not take part in ECN",
            "look for a device on the way that marks what it should drop",
        ),
        TunStalled => (
            Warning,
            "packets from peers, because the TUN took nothing for over a second",
            "see what the receiving kernel waits for (`ip -s link`, a firewall)",
        ),
        TunWriteFailed => (
            Warning,
            "packets from peers that the kernel refused",
            "see that the interface is up (`ip link`) and that its MTU fits the peers'",
        ),
    })
}
