//! A splitter that is independent of the coalescer splits every planned write again, which must restore the
//! packets.

use proptest::prelude::*;
use weft_sched::flow::FlowHasher;

use super::*;

const BOTH: TunOffload = TunOffload { tcp: true, udp: true };

#[derive(Clone, Debug)]
struct Spec {
    v6: bool,
    protocol: u8,
    flow: u8,
    sequence: u32,
    flags: u8,
    options: Vec<u8>,
    id: u16,
    dont_fragment: bool,
    tos: u8,
    ttl: u8,
    payload: Vec<u8>,
}

fn tcp(flow: u8, sequence: u32, len: usize) -> Spec {
    Spec {
        v6: false,
        protocol: ip::TCP,
        flow,
        sequence,
        flags: TCP_ACK,
        options: Vec::new(),
        id: 0,
        dont_fragment: true,
        tos: 0,
        ttl: 64,
        payload: (0..len).map(|byte| (byte as u32 + sequence) as u8).collect(),
    }
}

fn udp(flow: u8, len: usize) -> Spec {
    Spec { protocol: ip::UDP, ..tcp(flow, 7, len) }
}

fn build(spec: &Spec) -> Vec<u8> {
    let ip_header = if spec.v6 { 40 } else { 20 };
    let transport_header = if spec.protocol == ip::UDP { 8 } else { 20 + spec.options.len() };
    let transport_len = transport_header + spec.payload.len();
    let mut packet = vec![0; ip_header];
    if spec.v6 {
        packet[0] = 0x60 | spec.tos >> 4;
        packet[1] = spec.tos << 4;
        packet[4..6].copy_from_slice(&(transport_len as u16).to_be_bytes());
        packet[6] = spec.protocol;
        packet[7] = spec.ttl;
        packet[8..24].fill(0xfd);
        packet[24..40].fill(0xfe);
    } else {
        packet[0] = 0x45;
        packet[1] = spec.tos;
        packet[2..4].copy_from_slice(&((20 + transport_len) as u16).to_be_bytes());
        packet[4..6].copy_from_slice(&spec.id.to_be_bytes());
        packet[6] = if spec.dont_fragment { 0x40 } else { 0 };
        packet[8] = spec.ttl;
        packet[9] = spec.protocol;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    }
    packet.extend_from_slice(&[0x10, spec.flow, 0x20, 0x01]);
    if spec.protocol == ip::UDP {
        packet.extend_from_slice(&(transport_len as u16).to_be_bytes());
        packet.extend_from_slice(&[0, 0]);
    } else {
        packet.extend_from_slice(&spec.sequence.to_be_bytes());
        packet.extend_from_slice(&[1, 2, 3, 4]);
        packet.extend_from_slice(&[(transport_header as u8 / 4) << 4, spec.flags, 0x80, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(&spec.options);
    }
    packet.extend_from_slice(&spec.payload);
    finish(&mut packet);
    packet
}

/// Completes every checksum, one word after the other.
fn finish(packet: &mut [u8]) {
    let v6 = packet[0] >> 4 == 6;
    let (start, protocol) = if v6 { (40, packet[6]) } else { (20, packet[9]) };
    let addresses = if v6 { 8..40 } else { 12..20 };
    if !v6 {
        packet[10..12].fill(0);
        let sum = !slow_sum(&packet[..20], 0);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let field = start + if protocol == ip::UDP { 6 } else { 16 };
    packet[field..field + 2].fill(0);
    let pseudo = slow_sum(&packet[addresses], u32::from(protocol) + (packet.len() - start) as u32);
    let mut sum = !slow_sum(&packet[start..], u32::from(pseudo));
    if protocol == ip::UDP && sum == 0 {
        sum = 0xffff;
    }
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn slow_sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Splits one write as the kernel would.
fn split(write: &[u8]) -> Vec<Vec<u8>> {
    let (header, packet) = write.split_at(VNET_HDR);
    if header[1] == 0 {
        assert_eq!(header, [0; VNET_HDR]);
        return vec![packet.to_vec()];
    }
    let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (header_len, size, start, offset) = (word(2), word(4), word(6), word(8));
    let v6 = packet[0] >> 4 == 6;
    let protocol = if v6 { packet[6] } else { packet[9] };
    assert_eq!(header[0], 1);
    assert_eq!(start, if v6 { 40 } else { 20 });
    let (gso_type, field) = match (protocol, v6) {
        (ip::UDP, _) => (5, 6),
        (_, false) => (1, 16),
        (_, true) => (4, 16),
    };
    assert_eq!((header[1], offset), (gso_type, field));
    let addresses = if v6 { 8..40 } else { 12..20 };
    let partial = slow_sum(&packet[addresses], u32::from(protocol) + (packet.len() - start) as u32);
    assert_eq!(packet[start + offset..start + offset + 2], partial.to_be_bytes());
    if !v6 {
        assert_eq!(slow_sum(&packet[..20], 0), 0xffff);
        assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
    }

    let payloads: Vec<_> = packet[header_len..].chunks(size).collect();
    let last = payloads.len() - 1;
    let each = payloads.iter().enumerate().map(|(number, payload)| {
        let mut segment = [&packet[..header_len], payload].concat();
        let transport_len = (segment.len() - start) as u16;
        if v6 {
            segment[4..6].copy_from_slice(&transport_len.to_be_bytes());
        } else {
            let len = (segment.len() as u16).to_be_bytes();
            segment[2..4].copy_from_slice(&len);
            let id = u16::from_be_bytes([segment[4], segment[5]]).wrapping_add(number as u16);
            segment[4..6].copy_from_slice(&id.to_be_bytes());
        }
        if protocol == ip::UDP {
            segment[start + 4..start + 6].copy_from_slice(&transport_len.to_be_bytes());
        } else {
            let sequence = u32::from_be_bytes([
                segment[start + 4],
                segment[start + 5],
                segment[start + 6],
                segment[start + 7],
            ]);
            let sequence = sequence.wrapping_add((number * size) as u32);
            segment[start + 4..start + 8].copy_from_slice(&sequence.to_be_bytes());
            if number != last {
                segment[start + 13] &= !TCP_PSH;
            }
        }
        finish(&mut segment);
        segment
    });
    each.collect()
}

/// Plans the packets and returns the bytes of every write.
fn writes(packets: &[Vec<u8>], offload: TunOffload) -> Vec<Vec<u8>> {
    let mut slab = PlainSlab::new(packets.iter().map(Vec::len).sum());
    let hasher = FlowHasher::random();
    let stage = |packet: &Vec<u8>| Staged { packet: slab.push(packet).unwrap(), flow: hasher.hash(packet) };
    let staged: Vec<_> = packets.iter().map(stage).collect();
    let mut coalescer = Coalescer::default();
    // The second plan must not see anything of the first.
    coalescer.plan(&slab, &staged[..staged.len() / 2], offload);
    coalescer.plan(&slab, &staged, offload);
    let mut writes = Vec::new();
    for (index, group) in coalescer.groups().iter().enumerate() {
        let mut pieces = Vec::new();
        coalescer.gather(index, &slab, &staged, &mut pieces);
        assert!(pieces.len() <= 1024);
        let write: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        assert_eq!(write.len() - VNET_HDR, group.len as usize);
        assert!(group.len as usize <= MAX_PACKET);
        assert_eq!(coalescer.members(index).count(), group.segments as usize);
        writes.push(write);
    }
    writes
}

fn segments(specs: &[Spec]) -> Vec<usize> {
    let packets: Vec<_> = specs.iter().map(build).collect();
    writes(&packets, BOTH).iter().map(|write| split(write).len()).collect()
}

fn flow_number(v6: bool, protocol: u8, flow: u8) -> usize {
    usize::from(v6) + 2 * usize::from(protocol == ip::UDP) + 4 * usize::from(flow)
}

/// Returns the packets of one flow, in order. With DF the IPv4 ID has no meaning.
fn flow_of(packets: &[Vec<u8>], flow: usize) -> Vec<Vec<u8>> {
    let number = |packet: &[u8]| match packet[0] >> 4 {
        6 => flow_number(true, packet[6], packet[41]),
        _ => flow_number(false, packet[9], packet[21]),
    };
    let mine = packets.iter().filter(|packet| number(packet) == flow);
    mine.cloned()
        .map(|mut packet| {
            if packet[0] >> 4 == 4 && packet[6] & IPV4_DONT_FRAGMENT != 0 {
                packet[4..6].fill(0);
                packet[10..12].fill(0);
            }
            packet
        })
        .collect()
}

fn spec() -> impl Strategy<Value = Spec> {
    let flags = prop_oneof![6 => Just(0x10_u8), 2 => Just(0x18_u8), 1 => any::<u8>()];
    let options = prop_oneof![3 => Just(0_usize), 2 => Just(12_usize), 1 => Just(40_usize)];
    let len = prop_oneof![4 => Just(100_usize), 1 => Just(1400_usize), 2 => 0_usize..120];
    (
        (any::<bool>(), any::<bool>(), 0_u8..3, flags, options),
        (prop_oneof![5 => Just(false), 1 => Just(true)], any::<bool>(), len),
        (prop_oneof![9 => Just(0_u8), 1 => any::<u8>()], prop_oneof![9 => Just(64_u8), 1 => any::<u8>()]),
    )
        .prop_map(|((v6, udp, flow, flags, options), (gap, dont_fragment, len), (tos, ttl))| Spec {
            v6,
            protocol: if udp { ip::UDP } else { ip::TCP },
            flow,
            sequence: u32::from(gap),
            flags,
            options: vec![1; options],
            id: 0,
            dont_fragment,
            tos,
            ttl,
            payload: vec![flow; len],
        })
}

proptest! {
    #[test]
    fn splitting_a_plan_gives_the_packets_back(
        mut specs in proptest::collection::vec(spec(), 1..80),
        corrupt in proptest::collection::vec(any::<proptest::sample::Index>(), 0..3),
    ) {
        // Sequence numbers and IPv4 IDs that mostly continue, wrapping on the way.
        let mut sequence = [u32::MAX - 500; 12];
        let mut ids = [0xfffa_u16; 12];
        for (number, spec) in specs.iter_mut().enumerate() {
            let flow = flow_number(spec.v6, spec.protocol, spec.flow);
            let gap = spec.sequence;
            spec.sequence = sequence[flow].wrapping_add(gap);
            spec.id = ids[flow];
            spec.payload.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at + number) as u8);
            sequence[flow] = spec.sequence.wrapping_add(spec.payload.len() as u32);
            ids[flow] = ids[flow].wrapping_add(1 + gap as u16);
        }
        let mut packets: Vec<_> = specs.iter().map(build).collect();
        for index in corrupt {
            let packet = index.get(&packets).clone();
            let at = packets.iter().position(|other| *other == packet).unwrap();
            *packets[at].last_mut().unwrap() ^= 0x40;
        }
        for offload in [BOTH, TunOffload { tcp: true, udp: false }, TunOffload::default()] {
            let written: Vec<_> = writes(&packets, offload).iter().flat_map(|write| split(write)).collect();
            prop_assert_eq!(written.len(), packets.len());
            for flow in 0..12 {
                prop_assert_eq!(flow_of(&written, flow), flow_of(&packets, flow));
            }
        }
    }
}

#[test]
fn consecutive_segments_of_one_stream_are_one_write() {
    let specs: Vec<_> = (0..44).map(|number| tcp(0, number * 1400, 1400)).collect();
    assert_eq!(segments(&specs), [44]);
    let v6: Vec<_> = specs.into_iter().map(|spec| Spec { v6: true, ..spec }).collect();
    assert_eq!(segments(&v6), [44]);
}

#[test]
fn a_super_packet_ends_before_65_536_bytes() {
    let specs: Vec<_> = (0..50).map(|number| tcp(0, number * 1400, 1400)).collect();
    assert_eq!(segments(&specs), [46, 4]);
}

#[test]
fn a_write_has_no_more_segments_than_the_kernel_takes() {
    let specs: Vec<_> = (0..300).map(|number| tcp(0, number, 1)).collect();
    assert_eq!(segments(&specs), [256, 44]);
    assert_eq!(segments(&vec![udp(0, 100); 70]), [64, 6]);
}

#[test]
fn streams_that_interleave_are_joined_each_and_stay_in_place() {
    let specs: Vec<_> =
        (0..6).flat_map(|number| [tcp(0, number * 100, 100), tcp(1, number * 50, 50)]).collect();
    assert_eq!(segments(&specs), [6, 6]);
}

#[test]
fn a_push_or_a_short_segment_is_the_last() {
    let push = Spec { flags: TCP_ACK | TCP_PSH, ..tcp(0, 100, 100) };
    assert_eq!(segments(&[tcp(0, 0, 100), push, tcp(0, 200, 100), tcp(0, 300, 100)]), [2, 2]);
    assert_eq!(segments(&[tcp(0, 0, 100), tcp(0, 100, 99), tcp(0, 199, 99)]), [2, 1]);
    assert_eq!(segments(&[udp(0, 100), udp(0, 99), udp(0, 99), udp(0, 100)]), [2, 1, 1]);
}

#[test]
fn what_cannot_join_closes_its_own_stream_only() {
    let fin = Spec { flags: TCP_ACK | 1, ..tcp(0, 200, 100) };
    let specs = [tcp(0, 0, 100), tcp(1, 0, 100), tcp(0, 100, 100), fin, tcp(0, 300, 100), tcp(1, 100, 100)];
    assert_eq!(segments(&specs), [2, 2, 1, 1]);
    let pure_ack = tcp(0, 100, 0);
    assert_eq!(segments(&[tcp(0, 0, 100), pure_ack, tcp(0, 100, 100)]), [1, 1, 1]);
}

#[test]
fn headers_that_differ_are_not_joined() {
    let next = tcp(0, 100, 100);
    for other in [
        Spec { sequence: 101, ..next.clone() },
        Spec { ttl: 63, ..next.clone() },
        Spec { tos: 3, ..next.clone() },
        Spec { dont_fragment: false, ..next.clone() },
        Spec { options: vec![1; 4], ..next.clone() },
        Spec { flags: TCP_ACK | 0x80, ..next.clone() },
        Spec { v6: true, ..next.clone() },
        Spec { protocol: ip::UDP, ..next },
        tcp(0, 100, 101),
    ] {
        assert_eq!(segments(&[tcp(0, 0, 100), other.clone()]), [1, 1], "{other:?}");
    }
}

#[test]
fn a_different_acknowledgement_window_or_option_is_not_joined() {
    let spec = |number: u32| Spec { options: vec![1; 12], ..tcp(0, number * 100, 100) };
    let packets = [0, 1].map(|number| build(&spec(number)));
    assert_eq!(writes(&packets, BOTH).len(), 1);
    // The acknowledgement number, the window, the urgent pointer, and the options.
    for at in [8, 11, 14, 15, 18, 19, 20, 31] {
        let mut packets = packets.clone();
        packets[1][20 + at] ^= 1;
        finish(&mut packets[1]);
        assert_eq!(writes(&packets, BOTH).len(), 2, "byte {at} of the TCP header");
    }
}

#[test]
fn fragments_options_of_ipv4_and_bytes_behind_the_packet_are_not_joined() {
    for protocol in [ip::TCP, ip::UDP] {
        let packets = [0, 1].map(|number| build(&Spec { protocol, ..tcp(0, number * 100, 100) }));
        assert_eq!(writes(&packets, BOTH).len(), 1);
        let changes: [fn(&mut Vec<u8>); 4] = [
            // The last fragment, and the first.
            |packet| packet[7] = 1,
            |packet| packet[6] |= 0x20,
            |packet| packet.push(0),
            |packet| {
                packet.splice(20..20, [1; 4]);
                packet[0] = 0x46;
                packet[3] += 4;
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            // Both alike, so that nothing but this speaks against it.
            let mut packets = packets.clone();
            for packet in &mut packets {
                change(packet);
                packet[10..12].fill(0);
                let header = usize::from(packet[0] & 0x0f) * 4;
                let sum = !slow_sum(&packet[..header], 0);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            assert_eq!(writes(&packets, BOTH).len(), 2, "protocol {protocol}, change {number}");
        }
    }
}

#[test]
fn datagrams_without_a_checksum_or_of_another_length_are_not_joined() {
    let packets = [build(&udp(0, 100)), build(&udp(0, 100))];
    assert_eq!(writes(&packets, BOTH).len(), 1);
    let unverified = packets.clone().map(|mut packet| {
        packet[26..28].fill(0);
        packet
    });
    assert_eq!(writes(&unverified, BOTH).len(), 2);
    let shorter = packets.map(|mut packet| {
        packet[25] -= 1;
        finish(&mut packet);
        packet
    });
    assert_eq!(writes(&shorter, BOTH).len(), 2);
}

#[test]
fn only_what_the_device_takes_is_joined() {
    let streams = [build(&tcp(0, 0, 100)), build(&tcp(0, 100, 100))];
    let datagrams = [build(&udp(0, 100)), build(&udp(0, 100))];
    for (tcp, udp) in [(true, true), (true, false), (false, true), (false, false)] {
        let count = |joined| if joined { 1 } else { 2 };
        let offload = TunOffload { tcp, udp };
        let written = [&streams, &datagrams].map(|packets| writes(packets, offload).len());
        assert_eq!(written, [count(tcp), count(udp)], "{offload:?}");
    }
}

#[test]
fn without_dont_fragment_the_id_counts_up() {
    let fragile = |number: u32, id| Spec { dont_fragment: false, id, ..tcp(0, number * 100, 100) };
    assert_eq!(segments(&[fragile(0, 65_535), fragile(1, 0), fragile(2, 2)]), [2, 1]);
}

#[test]
fn a_bad_checksum_is_never_merged() {
    for protocol in [ip::TCP, ip::UDP] {
        for v6 in [false, true] {
            for bad in 0..4 {
                let spec = |number: u32| Spec { v6, protocol, ..tcp(0, number * 100, 100) };
                let mut packets: Vec<_> = (0..4).map(|number| build(&spec(number))).collect();
                packets[bad][70] ^= 1;
                let writes = writes(&packets, BOTH);
                let alone = [&[0; VNET_HDR], &packets[bad][..]].concat();
                assert!(writes.contains(&alone), "{protocol} {v6} {bad}");
            }
        }
    }
}

#[test]
fn a_bad_ip_header_checksum_is_never_merged() {
    let mut packets: Vec<_> = (0..3).map(|number| build(&tcp(0, number * 100, 100))).collect();
    packets[1][10] ^= 1;
    assert_eq!(writes(&packets, BOTH).len(), 3);
}

#[test]
fn udp_without_a_checksum_fragments_and_options_pass_untouched() {
    let mut no_checksum = build(&udp(0, 100));
    no_checksum[26..28].fill(0);
    let mut fragment = build(&udp(0, 100));
    fragment[6] = 0x20;
    finish(&mut fragment);
    let mut with_option = build(&tcp(0, 0, 100));
    with_option[0] = 0x46;
    for packet in [no_checksum, fragment, with_option] {
        let packets = vec![packet; 3];
        assert_eq!(writes(&packets, BOTH).len(), 3);
    }
}
