//! TCP itself.

use super::*;

#[test]
fn rfc_9293_a_syn_has_the_options_of_linux() {
    let mut wire = Wire::new();
    let syn = wire.connect();
    assert_eq!(syn.options[..8], [2, 4, 5, 100, 4, 2, 8, 10]);
    assert_eq!((&syn.options[12..], syn.window), (&[0, 0, 0, 0, 1, 3, 3, 10][..], 65_535));
    wire.is_ipv4 = false;
    assert_eq!(wire.connect().options[..4], [2, 4, 5, 80]);
}

#[test]
fn rfc_9293_a_syn_ack_offers_what_the_syn_has() {
    let mut wire = Wire::new();
    listening(&mut wire);
    let answer = wire.send(&[Seg::new(SYN, 1, 0).options(&PLAIN)]);
    assert_eq!(answer[0].options, [2, 4, 5, 100]);
    wire.ports.0 += 1;
    let answer = wire.send(&[Seg::new(SYN, 1, 0).options(&SACK)]);
    assert_eq!(answer[0].options, [2, 4, 5, 100, 1, 1, 4, 2, 1, 3, 3, 10]);
    wire.ports.0 += 1;
    let answer = wire.send(&[Seg::new(SYN, 1, 0).options(&times(7, 0))]);
    assert_eq!(
        (&answer[0].options[..8], &answer[0].options[12..]),
        (&[2, 4, 5, 100, 1, 1, 8, 10][..], &[0, 0, 0, 7][..])
    );
}

#[test]
fn rfc_9293_what_belongs_to_nothing_is_reset() {
    let mut wire = Wire::new();
    let reset = wire.send(&[Seg::new(ACK, 5, 77)]).remove(0);
    assert_eq!((reset.flags, reset.seq), (RST, 77));
    let reset = wire.send(&[Seg::new(SYN, 5, 0).payload(b"abc")]).remove(0);
    assert_eq!((reset.flags, reset.ack, reset.seq), (RST | ACK, 9, 0));
    assert_eq!(wire.send(&[Seg::new(RST, 5, 0), Seg::new(RST | ACK, 5, 9)]), []);
    // A SYN-ACK with a wrong acknowledgement does not open a connection.
    let syn = wire.connect();
    let reset = wire.send(&[Seg::new(SYN | ACK, 5, syn.seq)]).remove(0);
    assert_eq!((reset.flags, reset.seq), (RST, syn.seq));
    assert_eq!(wire.send(&[Seg::new(RST | ACK, 5, syn.seq)]), []);
    assert_eq!(wire.state(), StreamState::SynSent);
    wire.send(&[Seg::new(RST | ACK, 5, syn.seq.wrapping_add(1))]);
    assert!(wire.events.contains(&Event::Failed(wire.id(), StreamError::Refused)));
}

#[test]
fn rfc_9293_a_segment_from_or_to_no_host_is_dropped() {
    let mut wire = Wire::new();
    listening(&mut wire);
    let (own, peer) = (address(0, true), address(1, true));
    let syn =
        |source, destination| Seg { ports: wire.ports, ..Seg::new(SYN, 5, 0) }.bytes(source, destination);
    let no_hosts = ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"].map(|text| text.parse().unwrap());
    let mut wrong: Vec<_> = no_hosts.iter().map(|source| syn(*source, own)).collect();
    wrong.extend(no_hosts.iter().map(|destination| syn(peer, *destination)));
    wrong.push(syn(own, own));
    let right = syn(peer, own);
    assert_eq!(wire.raw(&wrong), []);
    assert_eq!(wire.raw(&[right]).len(), 1);
}

#[test]
fn rfc_9293_the_last_of_what_was_put_is_pushed() {
    let mut wire = Wire::connected(&SACK);
    let pushed = |sent: Vec<Seg>| sent.iter().map(|segment| segment.flags & PSH != 0).collect::<Vec<_>>();
    assert_eq!(pushed(wire.put(&[1; 1380 * 2])), [false, true]);
    // It waits neither for more nor for an acknowledgement.
    assert_eq!(pushed(wire.put(b"a")), [true]);
}

#[test]
fn rfc_9293_both_ends_open_at_once() {
    let mut wire = Wire::new();
    let syn = wire.connect();
    let answer = wire.send(&[Seg::new(SYN, 500, 0).options(&SACK)]).remove(0);
    assert_eq!((answer.flags, answer.seq, answer.ack), (SYN | ACK, syn.seq, 501));
    assert_eq!(wire.state(), StreamState::SynReceived);
    let ack = syn.seq.wrapping_add(1);
    wire.send(&[Seg::new(SYN | ACK, 500, ack).options(&SACK)]);
    assert_eq!(wire.state(), StreamState::Established);
    wire.send(&[Seg::new(ACK, 501, ack).payload(b"hello")]);
    assert_eq!(wire.take(), b"hello");
}

#[test]
fn rfc_9293_this_end_closes_first_then_waits() {
    let mut wire = accepted(&SACK);
    let id = wire.id();
    wire.end.finish(id, wire.now);
    let fin = wire.sent().remove(0);
    assert_eq!((fin.flags, fin.seq, wire.state()), (FIN | ACK, wire.ack, StreamState::FinWait1));
    wire.ack = wire.ack.wrapping_add(1);
    let ack = wire.ack();
    assert_eq!((wire.send(&[ack]), wire.state()), (vec![], StreamState::FinWait2));
    // The other direction goes on.
    let data = wire.ack().payload(b"still here");
    wire.send(&[data]);
    assert_eq!(wire.take(), b"still here");
    wire.seq = wire.seq.wrapping_add(10);
    let fin = Seg::new(FIN | ACK, wire.seq, wire.ack);
    let last = wire.send(std::slice::from_ref(&fin)).remove(0);
    assert_eq!((last.flags, last.ack), (ACK, wire.seq.wrapping_add(1)));
    assert_eq!((wire.state(), wire.end.stats().time_wait), (StreamState::TimeWait, 1));
    // The FIN comes again; a reset does not end the wait (RFC 1337).
    assert_eq!(wire.send(&[fin]).len(), 1);
    assert_eq!(wire.send(&[Seg::new(RST, wire.seq.wrapping_add(1), 0)]), []);
    wire.wait(59 * SECOND);
    assert_eq!(wire.end.stats().time_wait, 1);
    wire.wait(2 * SECOND);
    assert_eq!(wire.end.stats().time_wait, 0);
    wire.end.release(id, wire.now);
    assert_eq!(wire.end.stats().streams, 0);
}

#[test]
fn rfc_9293_the_peer_closes_first() {
    let mut wire = accepted(&SACK);
    let id = wire.id();
    let fin = Seg::new(FIN | ACK, wire.seq, wire.ack).payload(b"bye");
    assert_eq!(wire.send(&[fin])[0].ack, wire.seq.wrapping_add(4));
    assert_eq!((wire.take(), wire.state()), (b"bye".to_vec(), StreamState::CloseWait));
    assert!(wire.end.take(id, wire.now).unwrap().unwrap().is_empty());
    wire.seq = wire.seq.wrapping_add(4);
    let data = wire.put(b"last words").remove(0);
    assert_eq!(data.payload, b"last words");
    wire.end.release(id, wire.now);
    assert_eq!(wire.sent()[0].flags, FIN | ACK);
    wire.ack = wire.ack.wrapping_add(11);
    let ack = wire.ack();
    assert_eq!((wire.send(&[ack]), wire.end.stats().streams, wire.end.stats().time_wait), (vec![], 0, 0));
}

#[test]
fn rfc_9293_both_ends_close_at_once() {
    let mut wire = accepted(&SACK);
    let id = wire.id();
    wire.end.finish(id, wire.now);
    wire.sent();
    let fin = Seg::new(FIN | ACK, wire.seq, wire.ack);
    assert_eq!(wire.send(&[fin])[0].ack, wire.seq.wrapping_add(1));
    assert_eq!(wire.state(), StreamState::Closing);
    (wire.seq, wire.ack) = (wire.seq.wrapping_add(1), wire.ack.wrapping_add(1));
    let ack = wire.ack();
    wire.send(&[ack]);
    assert_eq!(wire.state(), StreamState::TimeWait);
}

#[test]
fn rfc_9293_a_fin_behind_a_gap_waits_for_it() {
    let mut wire = accepted(&SACK);
    let fin = Seg::new(FIN | ACK, wire.seq.wrapping_add(3), wire.ack).payload(b"def");
    wire.send(&[fin]);
    assert_eq!((wire.take(), wire.state()), (vec![], StreamState::Established));
    // A second end somewhere else does not count, and nothing behind the first one.
    let other = Seg::new(FIN | ACK, wire.seq.wrapping_add(6), wire.ack).payload(b"ghi");
    wire.send(&[other]);
    let first = wire.ack().payload(b"abc");
    assert_eq!(wire.send(&[first])[0].ack, wire.seq.wrapping_add(7));
    assert_eq!((wire.take(), wire.state()), (b"abcdef".to_vec(), StreamState::CloseWait));
}

#[test]
fn rfc_9293_a_close_with_something_unread_is_a_reset() {
    let mut wire = accepted(&SACK);
    let data = wire.ack().payload(b"unread");
    wire.send(&[data]);
    let id = wire.id();
    wire.end.release(id, wire.now);
    assert_eq!(wire.sent()[0].flags, RST | ACK);
    assert_eq!(wire.end.stats().streams, 0);
    // And something that comes after the close.
    let mut wire = accepted(&SACK);
    let id = wire.id();
    wire.end.release(id, wire.now);
    wire.sent();
    let data = wire.ack().payload(b"late");
    assert!(wire.send(&[data])[0].flags & RST != 0);
    assert_eq!(wire.end.stats().streams, 0);
}

#[test]
fn rfc_9293_a_closed_window_is_probed_for_as_long_as_the_peer_answers() {
    let mut wire = Wire::connected_with(config(0), &PLAIN, 1000);
    let sent = wire.put(&[7; 3000]);
    assert_eq!(sent.iter().map(|segment| segment.payload.len()).collect::<Vec<_>>(), [1000]);
    wire.ack = wire.ack.wrapping_add(1000);
    let closed = wire.ack().window(0);
    assert_eq!(wire.send(std::slice::from_ref(&closed)), []);
    let mut probes = 0;
    for _ in 0..400 {
        for (_, probe) in wire.wait(10 * SECOND) {
            assert_eq!((probe.seq, probe.payload.len()), (wire.ack.wrapping_sub(1), 0));
            assert_eq!(wire.send(std::slice::from_ref(&closed)), []);
            probes += 1;
        }
    }
    assert!((60..90).contains(&probes), "{probes} probes in 4,000 s");
    let open = wire.ack();
    assert_eq!(wire.send(&[open]).iter().map(|segment| segment.payload.len()).sum::<usize>(), 2000);
    // A peer that does not answer is given up.
    let mut wire = Wire::connected_with(config(0), &PLAIN, 0);
    wire.put(b"x");
    wire.wait(2000 * SECOND);
    assert!(wire.events.contains(&Event::Failed(wire.id(), StreamError::TimedOut)));
}

#[test]
fn rfc_9293_no_silly_small_segments() {
    let mut wire = Wire::connected_with(config(0), &PLAIN, 10_000);
    let half = wire.ack().window(10_400);
    wire.send(&[half]);
    let sizes = |sent: &[Seg]| sent.iter().map(|segment| segment.payload.len()).collect::<Vec<_>>();
    // Whole segments while more waits; the rest of what was put is sent at once.
    assert_eq!(sizes(&wire.put(&[1; 20_000])), [1000; 10]);
    wire.ack = wire.ack.wrapping_add(10_000);
    let small = wire.ack().window(400);
    assert_eq!(sizes(&wire.send(&[small])), []);
    let later = wire.wait(3 * SECOND);
    assert_eq!(later.iter().map(|(_, segment)| segment.payload.len()).collect::<Vec<_>>()[0], 400);
    // The receiver does not tell a window that opened by less than a segment.
    let mut wire = accepted(&SACK);
    let mut edges = Vec::new();
    for n in 0..50_u32 {
        let data = Seg::new(ACK, wire.seq.wrapping_add(n * 1000), wire.ack).payload(&[0; 1000]);
        for segment in wire.send(&[data]) {
            edges.push(u64::from(n + 1) * 1000 + (u64::from(segment.window) << 6));
        }
        if n % 3 == 0 {
            let chunk = wire.end.take(wire.id(), wire.now).unwrap().unwrap();
            wire.end.give_back(chunk);
        }
    }
    assert!(edges.is_sorted(), "the right edge moved back: {edges:?}");
}

#[test]
fn rfc_9293_a_window_that_shrinks_is_survived() {
    let mut wire = Wire::connected(&PLAIN);
    assert_eq!(wire.put(&[1; 8000]).len(), 8);
    let shrunk = Seg::new(ACK, wire.seq, wire.ack.wrapping_add(2000)).window(1000);
    assert_eq!(wire.send(&[shrunk]), []);
    // What is beyond the window is not sent, but for the first segment.
    for (_, segment) in wire.wait(20 * SECOND) {
        assert_eq!((segment.seq, segment.payload.len()), (wire.ack.wrapping_add(2000), 1000));
    }
    let open = Seg::new(ACK, wire.seq, wire.ack.wrapping_add(8000)).window(9000);
    wire.send(&[open]);
    assert_eq!(wire.end.stream(wire.id()).unwrap().send_queue, 0);
}

#[test]
fn rfc_9293_keepalive_ends_a_vanished_peer() {
    let limits = Limits { keepalive: Some(60 * SECOND), ..Limits::default() };
    let config = weft_endpoint::Config { limits, ..config(0) };
    let mut wire = Wire::connected_with(config, &SACK, 60_000);
    for _ in 0..20 {
        let probes = wire.wait(61 * SECOND);
        assert!(probes.len() <= 1 && probes.iter().all(|(_, probe)| probe.seq == wire.ack.wrapping_sub(1)));
        let answer = wire.ack();
        wire.send(&[answer]);
    }
    assert_eq!(wire.state(), StreamState::Established);
    wire.wait(700 * SECOND);
    assert!(wire.events.contains(&Event::Failed(wire.id(), StreamError::TimedOut)));
}
