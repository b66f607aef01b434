use std::task::Waker;

use super::*;

const ALL: CaptureFilter = CaptureFilter { layer: None, peer: None, snap_bytes: MAX_PACKET };

/// Creates a capture for one packet thread.
fn one(filter: CaptureFilter) -> (Capture, Tap) {
    let (capture, taps) = Capture::new(filter, 1);
    (capture, taps.into_iter().next().unwrap())
}

fn turn(captures: &mut Captures, is_idle: bool) {
    captures.turn(&mut Context::from_waker(Waker::noop()), is_idle);
}

fn put_inner(captures: &mut Captures, peer: Option<PublicKey>, packet: &[u8]) {
    put(&mut captures.taps, &inner(Direction::Outbound, peer, packet), packet);
}

fn all(capture: &mut Capture) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let Ok(chunk) = capture.full.try_recv() {
        found.extend(chunk.packets().map(|(_, bytes)| bytes.to_vec()));
        capture.give_back(chunk);
    }
    found
}

#[test]
fn what_was_seen_comes_in_order_once_there_is_time_or_much_of_it() {
    let (mut capture, tap) = one(CaptureFilter { snap_bytes: 3, ..ALL });
    let mut captures = Captures::default();
    assert!(!captures.is_on() && captures.add(tap) && captures.is_on());
    for packet in [b"abcdef".as_slice(), b"gh"] {
        put_inner(&mut captures, None, packet);
    }
    turn(&mut captures, false);
    assert!(all(&mut capture).is_empty(), "more may come");
    turn(&mut captures, true);
    assert_eq!(all(&mut capture), [b"abc".to_vec(), b"gh".to_vec()]);
    for _ in 0..=CHUNK_PACKETS / 2 {
        put_inner(&mut captures, None, b"x");
    }
    turn(&mut captures, false);
    assert_eq!(all(&mut capture).len(), CHUNK_PACKETS / 2 + 1);
}

#[test]
fn a_reader_that_does_not_read_loses_packets_and_holds_nothing_up() {
    let (mut capture, tap) = one(ALL);
    let mut captures = Captures::default();
    captures.add(tap);
    let packet = [7; 60_000];
    for _ in 0..1000 {
        put_inner(&mut captures, None, &packet);
        turn(&mut captures, true);
    }
    let dropped = capture.dropped(Layer::Inner);
    assert_eq!((capture.seen(Layer::Inner), capture.seen(Layer::Outer)), (1000, 0));
    assert!(dropped > 900 && dropped < 1000, "{dropped}");
    let read = all(&mut capture).len() as u64;
    put_inner(&mut captures, None, &packet);
    capture.stop();
    turn(&mut captures, false);
    assert!(!captures.is_on());
    let rest = all(&mut capture).len() as u64;
    assert_eq!(read + rest + capture.dropped(Layer::Inner), 1001);
}

#[test]
fn only_what_was_asked_for_is_copied() {
    let (mine, other) = (PublicKey::from_bytes([1; 32]), PublicKey::from_bytes([2; 32]));
    let (mut capture, tap) = one(CaptureFilter { layer: Some(Layer::Inner), peer: Some(mine), ..ALL });
    let mut captures = Captures::default();
    captures.add(tap);
    put_inner(&mut captures, Some(mine), b"mine");
    put_inner(&mut captures, Some(other), b"other");
    put_inner(&mut captures, None, b"nobody's");
    let address = "192.0.2.1:7".parse().unwrap();
    let outer = OuterHeader { source: address, destination: address, ecn: Ecn::NotEct };
    put(&mut captures.taps, &outside(Direction::Inbound, Some(mine), outer, b"outer"), b"outer");
    turn(&mut captures, true);
    assert_eq!(all(&mut capture), [b"mine".to_vec()]);
    assert_eq!((capture.seen(Layer::Inner), capture.seen(Layer::Outer)), (1, 0));
}

#[test]
fn there_are_not_more_captures_than_there_is_memory_for() {
    let mut captures = Captures::default();
    let kept: Vec<_> = (0..MAX_TAPS).map(|_| one(ALL)).collect();
    let kept: Vec<_> = kept.into_iter().map(|(capture, tap)| (capture, captures.add(tap))).collect();
    assert!(kept.iter().all(|(_, added)| *added));
    let (_capture, tap) = one(ALL);
    assert!(!captures.add(tap));
    drop(kept);
    turn(&mut captures, false);
    assert!(!captures.is_on());
}

#[test]
fn the_taps_of_several_packet_threads_fill_one_capture_and_get_their_own_memory_back() {
    let (mut capture, taps) = Capture::new(ALL, 3);
    let mut threads: Vec<Captures> = taps
        .into_iter()
        .map(|tap| {
            let mut captures = Captures::default();
            captures.add(tap);
            captures
        })
        .collect();
    for round in 0..10 * CHUNKS {
        for (number, captures) in threads.iter_mut().enumerate() {
            put_inner(captures, None, &[number as u8, round as u8]);
            turn(captures, true);
        }
        let mut found = all(&mut capture);
        found.sort();
        assert_eq!(found, [0, 1, 2].map(|number| vec![number, round as u8]));
    }
    capture.stop();
    threads.iter_mut().for_each(|captures| turn(captures, true));
    assert!(threads.iter().all(|captures| !captures.is_on()));
}
