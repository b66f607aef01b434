//! Explicit Congestion Notification across the tunnel (RFC 6040): the inner field is copied to the outer
//! header, and a mark from the outer path is carried into the inner packet.

use crate::ip;
use crate::transmit::Ecn;

/// Returns the ECN field of the IP packet `packet`, which has a whole header.
#[inline]
pub(crate) fn of(packet: &[u8]) -> Ecn {
    match packet {
        [first, second, ..] if first >> 4 == 4 => Ecn::from_bits(*second),
        [_, second, ..] => Ecn::from_bits(second >> 4),
        _ => Ecn::NotEct,
    }
}

/// Merges the outer field into the inner packet (RFC 6040, figure 4). Returns false if the packet has to be
/// dropped, because congestion was marked and the sender of the inner packet cannot learn of it.
#[inline]
pub(crate) fn merge(outer: Ecn, packet: &mut [u8]) -> bool {
    let inner = of(packet);
    match (inner, outer) {
        (_, Ecn::NotEct) | (Ecn::Ce, _) => true,
        (Ecn::NotEct, Ecn::Ce) => false,
        (Ecn::Ect0 | Ecn::Ect1, Ecn::Ce) => {
            set(packet, Ecn::Ce);
            true
        }
        (Ecn::Ect0, Ecn::Ect1) => {
            set(packet, Ecn::Ect1);
            true
        }
        (Ecn::NotEct | Ecn::Ect1 | Ecn::Ect0, _) => true,
    }
}

fn set(packet: &mut [u8], ecn: Ecn) {
    if packet[0] >> 4 == 4 {
        packet[1] = packet[1] & !3 | ecn as u8;
        let header_len = usize::from(packet[0] & 0xf) * 4;
        ip::write_ipv4_checksum(packet, header_len);
    } else {
        packet[1] = packet[1] & !0x30 | (ecn as u8) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(ecn: Ecn) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[1] = 0xb8 | ecn as u8;
        ip::write_ipv4_checksum(&mut packet, 20);
        packet
    }

    fn v6(ecn: Ecn) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x6b;
        packet[1] = 0x80 | (ecn as u8) << 4 | 0x0f;
        packet
    }

    #[test]
    fn merging_follows_the_table_of_rfc_6040() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect1), Some(Ect0), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [NotEct, Ect1, Ect0, Ce].into_iter().zip(row) {
                for mut packet in [v4(inner), v6(inner)] {
                    let before = packet.clone();
                    let kept = merge(outer, &mut packet);
                    assert_eq!(kept.then(|| of(&packet)), expected, "inner {inner:?}, outer {outer:?}");
                    assert_eq!(packet[0], before[0]);
                    assert_eq!(packet[1] & 0x8f & !3, before[1] & 0x8f & !3);
                    if packet[0] >> 4 == 4 {
                        assert_eq!(ip::fold(ip::checksum_add(0, &packet)), 0xffff);
                    }
                }
            }
        }
    }
}
