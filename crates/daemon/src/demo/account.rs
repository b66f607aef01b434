//! The counters of one daemon, and whether they balance: each packet that went in came out, waits, or was
//! counted as dropped.

use weft_tunnel::DropReason;

use weft_dataplane::Snapshot;

/// Maximum number of datagrams other than data that a healthy tunnel sends in a run: handshakes, keepalives
/// and their answers.
const MOST_CONTROL: u64 = 1000;

/// The counters of one daemon.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(super) struct Account {
    /// IP packets read from the TUN; a super-packet counts once.
    pub(super) packets_read: u64,
    /// IP packets read from the TUN, counted after segmentation.
    pub(super) segments_read: u64,
    pub(super) bytes_read: u64,
    /// IP packets written to the TUN; a super-packet counts once.
    pub(super) packets_written: u64,
    pub(super) segments_written: u64,
    pub(super) bytes_written: u64,
    /// Segments encrypted.
    pub(super) sealed: u64,
    /// Segments decrypted and found to be from the peer.
    pub(super) opened: u64,
    /// Segments waiting for a session.
    pub(super) staged: u64,
    pub(super) keepalives_received: u64,
    pub(super) handshakes: u64,
    pub(super) datagrams_sent: u64,
    /// Number of messages passed to the kernel, by datagrams in each: at most 1, 2, 4, 8, 16, 32, 64.
    pub(super) batch_segments: [u64; 7],
    pub(super) gso_fallbacks: u64,
    pub(super) datagrams_received: u64,
    pub(super) receive_calls: u64,
    /// Packets dropped by reason, without reasons that did not occur.
    pub(super) drops: Vec<(&'static str, u64)>,
    #[serde(skip)]
    pub(super) reasons: Reasons,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reasons {
    /// Between the TUN and encryption.
    before_sealing: u64,
    /// Between encryption and the socket.
    after_sealing: u64,
    /// Between the socket and decryption.
    before_opening: u64,
    /// Between decryption and the TUN.
    after_opening: u64,
    /// Packets of the kernel that no peer is meant to receive, such as multicast.
    for_nobody: u64,
    /// Part of `before_opening`: datagrams that arrived faster than they could be opened.
    overload: u64,
}

impl From<&Snapshot> for Account {
    fn from(snapshot: &Snapshot) -> Self {
        let Snapshot { udp, tunnel, drops, tun, .. } = snapshot;
        let mut reasons = Reasons::default();
        for (reason, count) in drops.iter() {
            *reasons.place_of(reason) += count;
        }
        reasons.for_nobody = drops.get(DropReason::LinkLocal);
        reasons.overload = drops.get(DropReason::Overload);
        Self {
            packets_read: tun.packets_read,
            segments_read: tun.segments_read + tun.malformed_reads,
            bytes_read: tun.bytes_read,
            packets_written: tun.packets_written,
            segments_written: tun.segments_written,
            bytes_written: tun.bytes_written,
            sealed: tunnel.sealed,
            opened: tunnel.opened,
            staged: tunnel.staged_segments,
            keepalives_received: tunnel.keepalives_received,
            handshakes: tunnel.handshakes,
            datagrams_sent: udp.datagrams_sent,
            batch_segments: udp.batch_segments,
            gso_fallbacks: udp.gso_fallbacks,
            datagrams_received: udp.datagrams_received,
            receive_calls: udp.recv_calls,
            drops: drops
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.label(), count))
                .collect(),
            reasons,
        }
    }
}

impl Reasons {
    fn place_of(&mut self, reason: DropReason) -> &mut u64 {
        match reason {
            DropReason::MalformedPacket
            | DropReason::PacketThreadStalled
            | DropReason::PeerMoved
            | DropReason::NoPeer
            | DropReason::LinkLocal
            | DropReason::NoEndpoint
            | DropReason::PacketTooBig
            | DropReason::OverRateToPeer
            | DropReason::StagingFull
            | DropReason::HandshakeTimeout
            | DropReason::PeerRemoved => &mut self.before_sealing,
            DropReason::UdpSendFailed | DropReason::DatagramTooLong => &mut self.after_sealing,
            DropReason::TunStalled | DropReason::TunWriteFailed => &mut self.after_opening,
            _ => &mut self.before_opening,
        }
    }
}

impl Account {
    /// Returns the number of packets that weft dropped although a peer or this machine should have received
    /// them, and not for overload.
    pub(super) fn dropped(&self) -> u64 {
        let Reasons { before_sealing, after_sealing, before_opening, after_opening, for_nobody, overload } =
            self.reasons;
        before_sealing + after_sealing + before_opening + after_opening - for_nobody - overload
    }

    /// Returns the number of datagrams that arrived faster than they could be opened. Some make TCP slow
    /// down.
    pub(super) fn overload(&self) -> u64 {
        self.reasons.overload
    }

    /// Returns a sentence for each imbalance. While packets are in flight, imbalances are to be expected.
    pub(super) fn imbalances(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut equal = |what: &str, went_in: u64, came_out: u64| {
            if went_in != came_out {
                found
                    .push(format!("{went_in} packets were {what}, and {came_out} of them are accounted for"));
            }
        };
        equal(
            "read from the TUN",
            self.segments_read,
            self.sealed + self.staged + self.reasons.before_sealing,
        );
        equal("decrypted", self.opened, self.segments_written + self.reasons.after_opening);
        let mut between = |what: &str, count: Option<u64>| {
            if count.is_none_or(|control| control > MOST_CONTROL) {
                found.push(format!("{what} do not add up"));
            }
        };
        let data_sent = self.sealed.checked_sub(self.reasons.after_sealing);
        between("datagrams sent", data_sent.and_then(|data| self.datagrams_sent.checked_sub(data)));
        let known = self.opened + self.keepalives_received + self.reasons.before_opening;
        between("datagrams received", self.datagrams_received.checked_sub(known));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balanced() -> Account {
        Account {
            segments_read: 100,
            sealed: 90,
            staged: 3,
            datagrams_sent: 92,
            opened: 50,
            segments_written: 49,
            keepalives_received: 1,
            datagrams_received: 55,
            reasons: Reasons {
                before_sealing: 7,
                after_sealing: 1,
                before_opening: 2,
                after_opening: 1,
                for_nobody: 7,
                overload: 1,
            },
            ..Account::default()
        }
    }

    #[test]
    fn books_in_which_everything_is_somewhere_balance() {
        assert_eq!(balanced().imbalances(), [""; 0]);
        assert_eq!((balanced().dropped(), balanced().overload()), (3, 1));
    }

    #[test]
    fn every_reason_before_the_encryption_explains_a_packet_that_is_not_sealed() {
        let last = DropReason::ALL.iter().position(|reason| *reason == DropReason::PeerRemoved).unwrap();
        for reason in &DropReason::ALL[..=last] {
            let mut reasons = Reasons::default();
            *reasons.place_of(*reason) += 1;
            assert_eq!(reasons.before_sealing, 1, "{reason:?}");
        }
    }

    #[test]
    fn a_packet_that_vanishes_anywhere_is_missed() {
        for vanish in [
            |a: &mut Account| a.sealed -= 1,
            |a: &mut Account| a.segments_written -= 1,
            |a: &mut Account| a.datagrams_sent -= 4,
            |a: &mut Account| a.datagrams_received -= 3,
        ] {
            let mut account = balanced();
            vanish(&mut account);
            assert_eq!(account.imbalances().len(), 1, "{account:?}");
        }
    }
}
