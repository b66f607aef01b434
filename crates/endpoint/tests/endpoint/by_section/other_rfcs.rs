//! What other RFCs add to it, and IP, UDP and ICMP.

use std::net::IpAddr;

use super::*;

#[test]
fn rfc_6191_a_new_connection_may_follow_at_once() {
    let mut wire = accepted(&SACK);
    let id = wire.id();
    wire.end.release(id, wire.now);
    wire.sent();
    wire.ack = wire.ack.wrapping_add(1);
    let fin = Seg::new(FIN | ACK, wire.seq, wire.ack);
    wire.send(&[fin]);
    assert_eq!(wire.end.stats().time_wait, 1);
    let old = wire.send(&[Seg::new(SYN, wire.seq.wrapping_sub(9), 0)]);
    assert_eq!((old[0].flags, wire.end.stats().time_wait), (ACK, 1));
    let new = wire.send(&[Seg::new(SYN, wire.seq.wrapping_add(9), 0)]);
    assert_eq!((new[0].flags, wire.end.stats().time_wait), (SYN | ACK, 0));
    assert!(new[0].seq.wrapping_sub(wire.ack) > 65_536 && new[0].seq.wrapping_sub(wire.ack) < 1 << 31);
}

#[test]
fn rfc_6298_a_syn_is_sent_again_after_1_2_4_seconds_then_given_up() {
    let mut wire = Wire::new();
    wire.connect();
    let again = wire.wait(181 * SECOND);
    let at: Vec<u64> = again.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(at[..6], [1, 3, 7, 15, 31, 63]);
    assert!(again.iter().all(|(_, segment)| segment.flags == SYN));
    wire.wait(100 * SECOND);
    assert!(wire.events.contains(&Event::Failed(wire.id(), StreamError::TimedOut)));
}

#[test]
fn rfc_6298_a_syn_ack_is_sent_again_and_forgotten() {
    let mut wire = Wire::new();
    listening(&mut wire);
    wire.send(&[Seg::new(SYN, 1, 0)]);
    let again = wire.wait(100 * SECOND);
    assert_eq!(again.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), [1, 3, 7, 15, 31]);
    assert_eq!(wire.end.stats().half_open, 0);
}

#[test]
fn rfc_6298_the_first_segment_is_sent_again_when_nothing_is_acknowledged() {
    let mut wire = Wire::connected(&PLAIN);
    wire.put(&[1; 5000]);
    let again = wire.wait(10 * SECOND);
    assert!(again[0].0 >= 200 * MS && again[0].0 < SECOND, "{:?}", again[0].0);
    assert!(again.iter().all(|(_, segment)| segment.seq == wire.ack && segment.payload.len() == 1000));
    assert!(again.len() >= 4 && again[2].0 - again[1].0 >= again[1].0 - again[0].0);
    // The acknowledgement lets the others follow.
    wire.ack = wire.ack.wrapping_add(1000);
    let ack = wire.ack();
    let more = wire.send(&[ack]);
    assert_eq!((more.len(), more[0].seq), (2, wire.ack));
}

#[test]
fn rfc_6298_what_was_sent_twice_says_nothing_about_the_time() {
    let mut wire = Wire::connected(&PLAIN);
    wire.put(&[1; 1000]);
    assert!(!wire.wait(5 * SECOND).is_empty());
    wire.ack = wire.ack.wrapping_add(1000);
    let ack = wire.ack();
    wire.send(&[ack]);
    assert_eq!(wire.end.stream(wire.id()).unwrap().rtt, 20 * MS);
    wire.put(&[1; 1000]);
    wire.now += 100 * MS;
    wire.ack = wire.ack.wrapping_add(1000);
    let ack = wire.ack();
    wire.send(&[ack]);
    assert_eq!(wire.end.stream(wire.id()).unwrap().rtt, 30 * MS);
}

#[test]
fn rfc_8985_the_tail_is_probed_after_two_round_trips() {
    let mut wire = Wire::new();
    let syn = wire.connect();
    wire.now += 50 * MS;
    (wire.seq, wire.ack) = (501, syn.seq.wrapping_add(1));
    wire.send(&[Seg::new(SYN | ACK, 500, wire.ack).options(&SACK)]);
    wire.put(&[1; 5000]);
    let sent = wire.wait(150 * MS);
    assert_eq!(sent.len(), 1, "{sent:?}");
    let (at, probe) = &sent[0];
    assert!((100..110).contains(&at.as_millis()), "{at:?}");
    assert_eq!((probe.seq, probe.payload.len()), (wire.ack.wrapping_add(5000 - 1380), 1380));
    // The probe's SACK reveals the loss of the others.
    wire.now += 20 * MS;
    let (start, end) = (probe.seq, wire.ack.wrapping_add(5000));
    let answer = wire.ack().options(&sacks(&[(start, end)]));
    let again = wire.send(&[answer]);
    assert_eq!(again.first().map(|segment| segment.seq), Some(wire.ack));
}

#[test]
fn rfc_8985_what_three_segments_have_overtaken_is_sent_again_at_once() {
    let mut wire = Wire::connected(&SACK);
    assert_eq!(wire.put(&[1; 1380 * 8]).len(), 8);
    wire.now += 20 * MS;
    let at = |n: u32| wire.ack.wrapping_add(1380 * n);
    let answer = wire.ack().options(&sacks(&[(at(1), at(3))]));
    let late = wire.ack().options(&sacks(&[(at(1), at(5))]));
    let first = wire.ack;
    assert_eq!(wire.send(&[answer]), [], "it may only be late");
    let again = wire.send(&[late]);
    assert_eq!((again[0].seq, again[0].payload.len()), (first, 1380));
    assert_eq!(wire.end.stream(wire.id()).unwrap().recoveries, 1);
}

#[test]
fn rfc_2883_what_was_sent_again_for_nothing_was_no_loss() {
    let mut wire = Wire::connected(&SACK);
    wire.put(&[1; 1380 * 8]);
    let cwnd = wire.end.stream(wire.id()).unwrap().cwnd;
    wire.now += 20 * MS;
    let first = wire.ack;
    let at = |n: u32| first.wrapping_add(1380 * n);
    let overtaken = wire.ack().options(&sacks(&[(at(1), at(5))]));
    assert_eq!(wire.send(&[overtaken])[0].seq, first);
    wire.ack = at(8);
    let all = wire.ack();
    wire.send(&[all]);
    let stats = wire.end.stream(wire.id()).unwrap();
    assert!(stats.undone == 0 && stats.cwnd < cwnd, "{stats:?}");
    let duplicate = wire.ack().options(&sacks(&[(first, at(1))]));
    wire.send(&[duplicate]);
    let stats = wire.end.stream(wire.id()).unwrap();
    assert!(stats.undone == 1 && stats.cwnd >= cwnd && stats.ssthresh == u64::MAX, "{stats:?}");
}

#[test]
fn rfc_3522_a_timestamp_tells_the_original_from_what_was_sent_again() {
    for is_late in [true, false] {
        let mut wire = Wire::connected(&[&SACK[..], &times(1000, 0)].concat());
        let time = |segment: &Seg| u32::from_be_bytes(segment.options[4..8].try_into().unwrap());
        let sent = wire.put(&[1; 1368 * 8]);
        let cwnd = wire.end.stream(wire.id()).unwrap().cwnd;
        wire.now += 20 * MS;
        let at = |n: usize| sent[n].seq;
        let options = [times(1001, time(&sent[0])), sacks(&[(at(1), at(5))])].concat();
        let again = wire.ack().options(&options);
        let again = wire.send(&[again]).remove(0);
        assert_eq!(again.seq, at(0));
        wire.ack = at(5);
        let answer = wire.ack().options(&times(1002, time(if is_late { &sent[0] } else { &again })));
        wire.send(&[answer]);
        let stats = wire.end.stream(wire.id()).unwrap();
        assert_eq!((stats.undone == 1, stats.cwnd >= cwnd), (is_late, is_late), "{stats:?}");
    }
}

#[test]
fn rfc_3168_a_mark_is_told_until_the_peer_has_reduced_its_window() {
    for agrees in [true, false] {
        let mut wire = Wire::connected_as(SYN | ACK | if agrees { ECE } else { 0 }, &SACK);
        let mark = |wire: &mut Wire, flags: u8, ecn| {
            let data = Seg { ecn, ..wire.ack().payload(&[1; 1000]) };
            wire.seq = wire.seq.wrapping_add(1000);
            wire.wait(SECOND);
            let answer = wire.send(&[Seg { flags: ACK | flags, ..data }]);
            answer.first().map(|segment| segment.flags & ECE != 0)
        };
        let echoes = [mark(&mut wire, 0, 2), mark(&mut wire, 0, 3), mark(&mut wire, 0, 2)];
        assert_eq!(echoes, [Some(false), Some(agrees), Some(agrees)]);
        assert_eq!([mark(&mut wire, CWR, 2), mark(&mut wire, CWR, 3)], [Some(false), Some(agrees)]);
    }
}

#[test]
fn rfc_3168_the_window_is_reduced_once_a_round_trip_and_new_bytes_tell_it() {
    let mut wire = Wire::connected_as(SYN | ACK | ECE, &SACK);
    let sent = wire.put(&[1; 1380 * 8]);
    assert!(sent.iter().all(|segment| segment.ecn == 2 && segment.flags & (ECE | CWR) == 0));
    let cwnd = |wire: &Wire| wire.end.stream(wire.id()).unwrap().cwnd;
    wire.now += 20 * MS;
    for _ in 0..3 {
        wire.ack = wire.ack.wrapping_add(1380);
        let told = Seg { flags: ACK | ECE, ..wire.ack() };
        assert!(wire.send(&[told]).iter().all(|segment| segment.ecn == 0));
    }
    // Seven tenths of what was in flight.
    assert!((7728..9000).contains(&cwnd(&wire)), "{}", cwnd(&wire));
    wire.ack = wire.ack.wrapping_add(1380 * 5);
    let rest = wire.ack();
    wire.send(&[rest]);
    let next = wire.put(&[2; 1380 * 2]);
    let marks: Vec<_> = next.iter().map(|segment| (segment.ecn, segment.flags & CWR != 0)).collect();
    assert_eq!(marks, [(2, true), (2, false)]);
    // What is sent again may not be marked.
    assert!(wire.wait(SECOND).iter().all(|(_, segment)| segment.ecn == 0 && segment.flags & CWR == 0));
}

#[test]
fn rfc_6582_three_duplicates_do_without_sack() {
    let mut wire = Wire::connected(&PLAIN);
    assert_eq!(wire.put(&[1; 10_000]).len(), 10);
    let duplicate = wire.ack();
    assert_eq!(wire.send(&[duplicate.clone(), duplicate.clone()]), []);
    let again = wire.send(&[duplicate]);
    assert_eq!((again[0].seq, again[0].payload.len()), (wire.ack, 1000));
    // A partial acknowledgement sends the next one.
    wire.ack = wire.ack.wrapping_add(3000);
    let partial = wire.ack();
    assert_eq!(wire.send(&[partial])[0].seq, wire.ack);
}

#[test]
fn rfc_5681_a_peer_without_sack_gets_a_duplicate_for_each_segment() {
    let mut wire = accepted(&PLAIN);
    let segment = |n: u32| Seg::new(ACK, wire.seq.wrapping_add(1000 * n), wire.ack).payload(&[0; 1000]);
    let answers = wire.send(&[segment(1), segment(2), segment(3)]);
    assert_eq!(answers.iter().map(|answer| answer.ack).collect::<Vec<_>>(), [wire.seq; 3]);
}

#[test]
fn rfc_2018_gaps_are_reported_all_of_them() {
    let mut wire = accepted(&SACK);
    let (seq, ack) = (wire.seq, wire.ack);
    let at = |n: u32| seq.wrapping_add(1000 * n);
    let segment = |n: u32| Seg::new(ACK, at(n), ack).payload(&[0; 1000]);
    let answers = wire.send(&[1, 3, 5, 7, 9, 11].map(segment));
    let blocks: Vec<_> = answers.iter().flat_map(Seg::sacks).collect();
    assert_eq!(blocks[..4], [11, 9, 7, 5].map(|n| (at(n), at(n + 1))));
    assert!([1, 3].iter().all(|n| blocks.contains(&(at(*n), at(n + 1)))), "{blocks:?}");
}

#[test]
fn rfc_2883_a_duplicate_is_reported_first() {
    let mut wire = accepted(&SACK);
    let (seq, ack) = (wire.seq, wire.ack);
    let at = |n: u32| seq.wrapping_add(1000 * n);
    let segment = |n: u32| Seg::new(ACK, at(n), ack).payload(&[0; 1000]);
    wire.send(&[segment(0), segment(2)]);
    assert_eq!(wire.send(&[segment(0)])[0].sacks(), [(at(0), at(1)), (at(2), at(3))]);
    assert_eq!(wire.send(&[segment(2)])[0].sacks(), [(at(2), at(3)), (at(2), at(3))]);
}

#[test]
fn rfc_5681_an_acknowledgement_is_delayed_for_one_segment_only() {
    let mut wire = accepted(&SACK);
    let send = |wire: &mut Wire, count: u32| {
        let segments: Vec<Seg> = (0..count)
            .map(|n| Seg::new(ACK, wire.seq.wrapping_add(1000 * n), wire.ack).payload(&[0; 1000]))
            .collect();
        wire.seq = wire.seq.wrapping_add(1000 * count);
        wire.send(&segments).len()
    };
    // The first ones are not delayed.
    assert_eq!((0..16).map(|_| send(&mut wire, 1)).sum::<usize>(), 16);
    assert_eq!((send(&mut wire, 1), send(&mut wire, 1)), (0, 1));
    assert_eq!(send(&mut wire, 20), 1);
    assert_eq!(send(&mut wire, 1), 0);
    let later = wire.wait(100 * MS);
    assert_eq!((later.len(), later[0].0, later[0].1.ack), (1, 40 * MS, wire.seq));
}

#[test]
fn rfc_7323_old_timestamps_and_none_are_dropped() {
    let options = [&[2, 4, 5, 100][..], &times(1000, 0)].concat();
    let mut wire = Wire::connected(&options);
    let good = wire.ack().options(&times(1001, 0)).payload(b"abc");
    wire.send(&[good]);
    wire.seq = wire.seq.wrapping_add(3);
    let old = wire.ack().options(&times(999, 0)).payload(b"old");
    let answer = wire.send(&[old]).remove(0);
    assert_eq!((answer.ack, &answer.options[8..]), (wire.seq, &1001_u32.to_be_bytes()[..]));
    let none = wire.ack().payload(b"none");
    assert_eq!(wire.send(&[none]), []);
    assert_eq!(wire.take(), b"abc");
    // After 24 days an old one says nothing.
    wire.now += 25 * 24 * 3600 * SECOND;
    let old = wire.ack().options(&times(999, 0)).payload(b"old");
    wire.send(&[old]);
    assert_eq!(wire.take(), b"old");
}

#[test]
fn rfc_7323_windows_are_scaled_but_not_in_a_syn() {
    let mut wire = Wire::connected_with(config(0), &[2, 4, 3, 232, 1, 3, 3, 2], 2000);
    assert_eq!(wire.end.stream(wire.id()).unwrap().send_window, 2000);
    let ack = wire.ack().window(2000);
    wire.send(&[ack]);
    assert_eq!(wire.end.stream(wire.id()).unwrap().send_window, 8000);
}

#[test]
fn rfc_5961_a_blind_attacker_gets_a_few_challenges() {
    let mut wire = accepted(&SACK);
    let challenge = |answer: &[Seg], wire: &Wire| {
        assert_eq!(answer.len(), 1, "{answer:?}");
        assert_eq!((answer[0].flags, answer[0].seq, answer[0].ack), (ACK, wire.ack, wire.seq));
    };
    let attacks = [
        Seg::new(RST, wire.seq.wrapping_add(1), 0),
        Seg::new(RST | ACK, wire.seq.wrapping_add(60_000), wire.ack),
        Seg::new(SYN, wire.seq, 0),
        Seg::new(SYN | ACK, wire.seq.wrapping_add(7), wire.ack),
        Seg::new(ACK, wire.seq, wire.ack.wrapping_add(1)).payload(b"forged"),
        Seg::new(ACK, wire.seq, wire.ack.wrapping_sub(10 << 20)).payload(b"forged"),
    ];
    for attack in &attacks {
        let answer = wire.send(std::slice::from_ref(attack));
        challenge(&answer, &wire);
    }
    assert_eq!(
        wire.send(&[
            Seg::new(RST, wire.seq.wrapping_sub(1), 0),
            Seg::new(RST, wire.seq.wrapping_add(3 << 20), 0)
        ]),
        []
    );
    let more: usize = (0..100).map(|_| wire.send(&attacks[..1]).len()).sum();
    assert_eq!(more, 4, "ten in five seconds");
    wire.wait(5 * SECOND);
    let answer = wire.send(&attacks[..1]);
    challenge(&answer, &wire);
    assert_eq!((wire.take(), wire.state()), (vec![], StreamState::Established));
    wire.send(&[Seg::new(RST, wire.seq, 0)]);
    assert_eq!(wire.end.take(wire.id(), wire.now).unwrap_err(), StreamError::Reset);
}

#[test]
fn rfc_5927_icmp_counts_if_it_names_what_is_in_flight() {
    let mut wire = Wire::connected(&SACK);
    let sent = wire.put(&[1; 1380 * 2]);
    assert_eq!(sent.len(), 2);
    let error = |wire: &Wire, kind: [u8; 4], mtu: u16, seq: u32| {
        let mut quoted = Seg { ports: (wire.ports.1, wire.ports.0), seq, ..Seg::default() }
            .bytes(address(0, true), address(1, true));
        quoted.truncate(28);
        let mut message = kind.to_vec();
        message.extend([0, 0]);
        message.extend(mtu.to_be_bytes());
        message.extend(quoted);
        packet("10.9.9.9".parse().unwrap(), address(0, true), 1, message, Some(2))
    };
    let blind = error(&wire, [3, 4, 0, 0], 600, wire.ack.wrapping_sub(9));
    assert_eq!(wire.raw(&[blind]), []);
    let hard = error(&wire, [3, 3, 0, 0], 0, wire.ack);
    assert_eq!((wire.raw(&[hard]), wire.state()), (vec![], StreamState::Established));
    let real = error(&wire, [3, 4, 0, 0], 1000, wire.ack);
    let again = wire.raw(&[real]);
    assert_eq!(again.iter().map(|segment| segment.payload.len()).collect::<Vec<_>>(), [960, 960, 840]);
    assert_eq!(wire.end.stream(wire.id()).unwrap().cwnd, 13_800, "no sign of congestion");
    // Below what every path takes nothing is believed.
    let lower = error(&wire, [3, 4, 0, 0], 68, wire.ack);
    wire.raw(&[lower]);
    assert_eq!(wire.end.stream(wire.id()).unwrap().mss, 536);
    // Before the connection is open, an error ends it.
    let syn = wire.connect();
    let refused = error(&wire, [3, 3, 0, 0], 0, syn.seq);
    wire.raw(&[refused]);
    assert!(wire.events.contains(&Event::Failed(wire.id(), StreamError::Refused)));
}

#[test]
fn what_a_peer_quotes_of_datagrams_to_another_one_says_nothing_of_its_path() {
    let mut wire = Wire::new();
    let other: IpAddr = "10.9.9.9".parse().unwrap();
    wire.end.set_owners(&[address(1, true), other].map(|peer| vec![peer.into()]));
    wire.end.bind_udp(SocketAddr::new(address(0, true), 99)).unwrap();
    let mut datagram = 99_u16.to_be_bytes().to_vec();
    datagram.extend(4000_u16.to_be_bytes());
    datagram.extend([0, 8, 0, 0]);
    let quoted = packet(address(0, true), address(1, true), 17, datagram, None);
    let mut mss_after = |source: IpAddr| {
        let message = [vec![3, 4, 0, 0, 0, 0, 0x02, 0x40], quoted.clone()].concat();
        let error = packet(source, address(0, true), 1, message, Some(2));
        wire.raw(&[error]);
        wire.ack = wire.connect().seq.wrapping_add(1);
        let answer = Seg::new(SYN | ACK, wire.seq, wire.ack).options(&[2, 4, 5, 180]);
        wire.seq = wire.seq.wrapping_add(1);
        wire.send(&[answer]);
        wire.end.stream(wire.id()).unwrap().mss
    };
    assert_eq!((mss_after(other), mss_after(address(1, true))), (1380, 536));
}

#[test]
fn rfc_6056_ports_differ_and_are_used_up() {
    let mut wire = Wire::with(weft_endpoint::Config {
        limits: Limits { streams: 100_000, ..Limits::default() },
        memory: 1 << 30,
        ..config(0)
    });
    let to = SocketAddr::new(address(1, true), 443);
    let ports: std::collections::HashSet<u16> = (0..28_232)
        .map(|_| {
            let id = wire.end.connect(to, wire.now).unwrap();
            wire.end.addresses(id).unwrap().0.port()
        })
        .collect();
    assert_eq!((ports.len(), ports.iter().all(|port| (32_768..61_000).contains(port))), (28_232, true));
    assert_eq!(wire.end.connect(to, wire.now), Err(ConnectError::NoPort));
    let other = SocketAddr::new(address(1, true), 444);
    assert!(wire.end.connect(other, wire.now).is_ok());
}

#[test]
fn rfc_6528_initial_numbers_differ_by_flow_and_grow_with_time() {
    let mut wire = Wire::new();
    listening(&mut wire);
    let initial = |wire: &mut Wire, port: u16| {
        wire.ports.0 = port;
        let answer = wire.send(&[Seg::new(SYN, 1, 0)]).remove(0).seq;
        wire.send(&[Seg::new(RST, 2, 0)]);
        answer
    };
    let first = initial(&mut wire, 1000);
    assert!(initial(&mut wire, 1001).wrapping_sub(first) > 1 << 16);
    wire.now += SECOND;
    assert_eq!(initial(&mut wire, 1000).wrapping_sub(first), 250_000);
}

#[test]
fn rfc_792_and_4443_echo_is_answered() {
    for is_ipv4 in [true, false] {
        let (kind, answer, protocol) = if is_ipv4 { (8, 0, 1) } else { (128, 129, 58) };
        let mut wire = Wire::new();
        let mut message = vec![kind, 0, 0, 0, 0, 7, 0, 1];
        message.extend(b"some bytes");
        let (peer, own) = (address(1, is_ipv4), address(0, is_ipv4));
        wire.raw(&[packet(peer, own, protocol, message.clone(), Some(2))]);
        message[0] = answer;
        let expected = packet(own, peer, protocol, message.clone(), Some(2));
        let at = if is_ipv4 { 20 } else { 40 };
        assert_eq!(wire.others[0][at..], expected[at..]);
        let mut wrong = packet(peer, own, protocol, message, Some(2));
        wrong[at + 9] ^= 1;
        wire.raw(&[wrong]);
        assert_eq!((wire.others.len(), wire.end.stats().invalid_packets), (0, 1));
    }
}

#[test]
fn rfc_768_datagrams_go_both_ways_also_in_fragments() {
    for is_ipv4 in [true, false] {
        let mut world = crate::world::World::new("delay=1ms", 1);
        let any: SocketAddr = if is_ipv4 { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let sockets = [0, 1].map(|end: usize| world.ends[end].bind_udp(any).unwrap());
        let to = SocketAddr::new(address(1, is_ipv4), world.ends[1].udp_address(sockets[1]).unwrap().port());
        let sizes = [0, 1, 1372, 1373, 5000, 65_000];
        for size in sizes {
            let payload: Vec<u8> = (0..size as u32).map(|n| (n / 3) as u8).collect();
            assert_eq!(world.ends[0].send_udp(sockets[0], to, &payload), Ok(true));
        }
        let mut received = Vec::new();
        let mut into = vec![0; 70_000];
        world.run(SECOND, |world| {
            while let Some((len, from)) = world.ends[1].take_udp(sockets[1], &mut into) {
                assert!(into[..len].iter().zip(0..).all(|(byte, n): (&u8, u32)| *byte == (n / 3) as u8));
                assert_eq!(from.ip(), address(0, is_ipv4));
                received.push(len);
            }
            received.len() == sizes.len()
        });
        assert_eq!(received, sizes);
        // A full queue says so, and later that it has room.
        while world.ends[0].send_udp(sockets[0], to, &[0; 60_000]).unwrap() {}
        world.run(SECOND, |world| world.events[0].contains(&Event::UdpWritable(sockets[0])));
        world.ends[0].release_udp(sockets[0]);
        assert!(world.ends[0].send_udp(sockets[0], to, b"").is_err());
    }
}

#[test]
fn rfc_1122_a_datagram_for_nobody_is_answered_by_a_limited_number_of_errors() {
    for is_ipv4 in [true, false] {
        let mut wire = Wire::new();
        let datagram = packet(
            address(1, is_ipv4),
            address(0, is_ipv4),
            ip::UDP,
            [&[0, 9, 0, 99, 0, 12, 0, 0][..], b"data"].concat(),
            Some(6),
        );
        let mut errors = 0;
        for _ in 0..1000 {
            wire.raw(std::slice::from_ref(&datagram));
            errors += wire.others.len();
            if let Some(error) = wire.others.first() {
                let at = if is_ipv4 { 20 } else { 40 };
                assert_eq!(error[at..at + 2], if is_ipv4 { [3, 3] } else { [1, 4] });
                assert_eq!(error[at + 8..], datagram);
            }
        }
        assert_eq!(errors, 50);
    }
}
