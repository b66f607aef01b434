use std::ops::RangeInclusive;

use proptest::prelude::*;

use super::*;

const TOO_BIG: IcmpError = IcmpError::TooBig { mtu: 1340 };
const BOTH: [IcmpError; 2] = [IcmpError::HostUnreachable, TOO_BIG];

/// The Internet checksum by RFC 1071, two bytes at a time: independent of the implementation under test.
fn sum(chunks: &[&[u8]]) -> u16 {
    let mut bytes: Vec<u8> = chunks.concat();
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn v4(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
    packet.extend(source.into_iter().chain(destination));
    packet.extend(payload);
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    ip::write_ipv4_checksum(&mut packet, IPV4_HEADER);
    packet
}

fn v6(next: u8, source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    for address in [source, destination] {
        packet.extend(address.parse::<Ipv6Addr>().unwrap().octets());
    }
    packet.extend(payload);
    packet
}

fn plain_v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    v4(protocol, [10, 0, 0, 1], [10, 0, 0, 9], payload)
}

fn plain_v6(next: u8, payload: &[u8]) -> Vec<u8> {
    v6(next, "fd00::1", "fd00::9", payload)
}

fn answered(packet: &[u8]) -> bool {
    let answers = BOTH.map(|error| answer(packet, packet.len(), error).is_some());
    assert_eq!(answers[0], answers[1], "what may be answered does not depend on the answer");
    answers[0]
}

#[test]
fn an_ipv4_answer_is_what_the_rfcs_say() {
    let packet = plain_v4(17, &[7; 1400]);
    for (error, code, mtu) in [(IcmpError::HostUnreachable, 1, 0), (TOO_BIG, 4, 1340)] {
        let answer = answer(&packet, packet.len(), error).unwrap();
        assert_eq!(answer.len(), 576);
        let header = IpHeader::parse(&answer).unwrap();
        assert_eq!((header.total_len, header.protocol), (576, 1));
        assert_eq!(header.source, IpAddr::from([10, 0, 0, 9]));
        assert_eq!(header.destination, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((sum(&[&answer[..20]]), sum(&[&answer[20..]])), (0xffff, 0xffff));
        assert_eq!(answer[20..22], [3, code]);
        assert_eq!(answer[24..28], [0, 0, (mtu >> 8) as u8, mtu as u8]);
        assert_eq!(answer[28..], packet[..548]);
    }
}

#[test]
fn an_ipv6_answer_is_what_the_rfc_says() {
    let packet = plain_v6(17, &[7; 1400]);
    for (error, kind, code, mtu) in [(IcmpError::HostUnreachable, 1, 3, 0_u16), (TOO_BIG, 2, 0, 1340)] {
        let answer = answer(&packet, packet.len(), error).unwrap();
        assert_eq!(answer.len(), 1280);
        let header = IpHeader::parse(&answer).unwrap();
        assert_eq!((header.total_len, header.protocol), (1280, 58));
        assert_eq!(header.source, "fd00::9".parse::<IpAddr>().unwrap());
        assert_eq!(header.destination, "fd00::1".parse::<IpAddr>().unwrap());
        let pseudo = [0, 0, (1240 >> 8) as u8, 1240_u16 as u8, 0, 0, 0, 58];
        assert_eq!(sum(&[&answer[8..40], &pseudo, &answer[40..]]), 0xffff);
        assert_eq!(answer[40..42], [kind, code]);
        assert_eq!(answer[44..48], u32::from(mtu).to_be_bytes());
        assert_eq!(answer[48..], packet[..1232]);
    }
}

#[test]
fn a_short_packet_is_quoted_whole() {
    let packet = plain_v4(17, &[1; 9]);
    let answer = answer(&packet, packet.len(), TOO_BIG).unwrap();
    assert_eq!(answer[28..], packet);
}

#[test]
fn of_a_super_packet_the_first_segment_is_quoted() {
    let packet = plain_v4(6, &[1; 60_000]);
    let answer = answer(&packet, 1400, TOO_BIG).unwrap();
    assert_eq!(answer[30..32], 1400_u16.to_be_bytes());
    assert_eq!((sum(&[&answer[28..48]]), sum(&[&answer[20..]])), (0xffff, 0xffff));
    let packet = plain_v6(6, &[1; 60_000]);
    let answer = super::answer(&packet, 1400, TOO_BIG).unwrap();
    assert_eq!(answer[52..54], 1360_u16.to_be_bytes());
}

#[test]
fn errors_are_never_answered_and_questions_are() {
    let of = |kinds: RangeInclusive<u8>, packet: &dyn Fn(&[u8]) -> Vec<u8>| -> Vec<u8> {
        kinds.filter(|kind| answered(&packet(&[*kind, 0, 0, 0, 0, 0, 0, 0]))).collect()
    };
    let v4 = of(0..=255, &|payload| plain_v4(1, payload));
    assert_eq!(v4, [0, 8, 9, 10, 13, 14, 15, 16, 17, 18]);
    let v6 = of(0..=255, &|payload| plain_v6(58, payload));
    assert_eq!(v6, (128..=255).filter(|kind| *kind != 137).collect::<Vec<_>>());
    // ICMP behind extension headers, and packets without an ICMP header.
    let behind_options = |kind| plain_v6(60, &[58, 0, 0, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0]);
    assert!(answered(&behind_options(128)) && !answered(&behind_options(1)));
    let behind_authentication = |kind| plain_v6(51, &[58, 0, 0, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0]);
    assert!(answered(&behind_authentication(128)) && !answered(&behind_authentication(3)));
    assert!(!answered(&plain_v4(1, &[])) && !answered(&plain_v6(58, &[])));
}

#[test]
fn an_answer_is_never_answered() {
    for packet in [plain_v4(17, &[0; 100]), plain_v6(17, &[0; 100])] {
        for error in BOTH {
            let first = answer(&packet, packet.len(), error).unwrap();
            assert!(!answered(&first));
        }
    }
}

#[test]
fn only_first_fragments_are_answered() {
    let mut packet = plain_v4(17, &[0; 64]);
    packet[6] = 0x20;
    assert!(answered(&packet));
    packet[7] = 1;
    assert!(!answered(&packet));
    assert!(answered(&plain_v6(44, &[17, 0, 0, 1, 0, 0, 0, 0])));
    assert!(!answered(&plain_v6(44, &[17, 0, 0, 8, 0, 0, 0, 0])));
    // A first fragment of an error.
    assert!(!answered(&plain_v6(44, &[58, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])));
}

#[test]
fn an_error_behind_extension_headers_is_not_answered() {
    // Every byte of the headers but the first two reads as the type of an echo request.
    let behind = |extension: u8, len: u8, bytes: usize, kind: u8| {
        let mut payload = vec![128; bytes];
        payload[..2].copy_from_slice(&[ICMPV6, len]);
        payload.extend([kind, 0, 0, 0]);
        plain_v6(extension, &payload)
    };
    // Lengths count in units of 8 bytes behind the first 8 (RFC 8200, section 4.3), those of the
    // authentication header in units of 4 (RFC 4302, section 2.2).
    for (extension, len, bytes) in [(0, 2, 24), (43, 2, 24), (60, 2, 24), (AUTHENTICATION, 4, 24)] {
        assert!(answered(&behind(extension, len, bytes, 128)), "an echo request behind {extension}");
        assert!(!answered(&behind(extension, len, bytes, 1)), "an error behind {extension}");
    }
}

#[test]
fn only_single_hosts_are_answered_and_asked_for() {
    for other in [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [224, 0, 0, 251],
        [239, 255, 255, 250],
        [255; 4],
        [240, 0, 0, 1],
    ] {
        assert!(!answered(&v4(17, other, [10, 0, 0, 9], &[0; 8])), "{other:?} as source");
        assert!(!answered(&v4(17, [10, 0, 0, 1], other, &[0; 8])), "{other:?} as destination");
    }
    for other in ["::", "::1", "ff02::1", "ff0e::1"] {
        assert!(!answered(&v6(17, other, "fd00::9", &[0; 8])), "{other} as source");
        assert!(!answered(&v6(17, "fd00::1", other, &[0; 8])), "{other} as destination");
    }
}

proptest! {
    /// For any packet: no panic, at most 576 or 1280 bytes, a correct checksum, and a quote of the sender's
    /// own bytes.
    #[test]
    fn any_packet_has_a_right_answer_or_none(
        mut packet in proptest::collection::vec(any::<u8>(), 20..2000),
        is_v4: bool,
        fix: bool,
        wire_len in 0_usize..3000,
        mtu: u16,
    ) {
        packet[0] = if is_v4 { 0x40 | (5 + packet[0] % 11) } else { 0x60 };
        if fix {
            let len = packet.len() as u16;
            if is_v4 {
                packet[2..4].copy_from_slice(&len.to_be_bytes());
            } else if len >= 40 {
                packet[4..6].copy_from_slice(&(len - 40).to_be_bytes());
            }
        }
        for error in [IcmpError::HostUnreachable, IcmpError::TooBig { mtu }] {
            let Some(answer) = answer(&packet, wire_len, error) else { continue };
            let header = IpHeader::parse(&answer).unwrap();
            prop_assert_eq!(header.total_len, answer.len());
            if is_v4 {
                prop_assert!(answer.len() <= 576);
                prop_assert_eq!((sum(&[&answer[..20]]), sum(&[&answer[20..]])), (0xffff, 0xffff));
                prop_assert_eq!(&answer[40..48], &packet[12..20]);
            } else {
                prop_assert!(answer.len() <= 1280);
                let len = (answer.len() - 40) as u32;
                let pseudo = [&len.to_be_bytes()[..], &[0, 0, 0, 58]].concat();
                prop_assert_eq!(sum(&[&answer[8..40], &pseudo, &answer[40..]]), 0xffff);
                prop_assert_eq!(&answer[56..88], &packet[8..40]);
            }
            prop_assert!(super::answer(&answer, answer.len(), error).is_none());
        }
    }
}
