//! What is sent before there is a session arrives once there is one: all of it, and in order.

use std::net::SocketAddr;

use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::Amount;
use weft_lab::until;

use crate::conversation::Place;
use crate::topology::{Cable, Family, go_endpoint};
use crate::weft_end::Weft;
use crate::wireguard_go::WireguardGo;

/// Fewer than the 128 packets that WireGuard keeps for a peer.
const BURST: u64 = 100;

/// Sends a burst of numbered datagrams, back to back.
fn send_burst((from, source): Place<'_>, (to, destination): Place<'_>, as_super_packets: bool) -> Numbered {
    let options = NumberedOptions {
        flows: 1,
        datagram_bytes: 1000,
        datagrams_per_second: 1_000_000,
        burst: BURST as u16,
        segmentation_offload: as_super_packets,
        amount: Amount::Count(BURST),
        ..NumberedOptions::default()
    };
    Numbered::start(from, source, to, destination, options).unwrap()
}

fn expect_all_in_order(burst: Numbered) {
    until("the whole burst arrives", || burst.progress().1 >= BURST);
    let report = burst.finish().forward;
    let unwanted = (report.lost, report.out_of_order, report.duplicates, report.corrupt, report.refused);
    assert_eq!((report.received, unwanted), (BURST, (0, 0, 0, 0, 0)), "{report:?}");
}

/// weft begins a handshake that has no answer until wireguard-go is told of weft.
fn as_initiator(as_super_packets: bool) {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start_empty(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let burst = send_burst(lab.weft_place(Family::V4), lab.go_place(Family::V4), as_super_packets);
    until("the whole burst waits in weft", || weft.snapshot().tunnel.staged_segments == BURST);
    go.configure(&lab.go);
    expect_all_in_order(burst);
    assert_eq!(weft.snapshot().tunnel.staged_segments, 0);
}

#[test]
fn a_burst_before_the_handshake_arrives_in_order() {
    for as_super_packets in [false, true] {
        as_initiator(as_super_packets);
    }
}

#[test]
fn a_burst_while_the_peer_is_just_up_arrives_in_order() {
    for _ in 0..3 {
        let Some(lab) = Cable::weft_begins(Family::V4) else { return };
        let _go = WireguardGo::start(&lab.go_side, &lab.go);
        let _weft = Weft::start(&lab.weft_side, &lab.weft);
        expect_all_in_order(send_burst(lab.weft_place(Family::V4), lab.go_place(Family::V4), false));
    }
}

#[test]
fn a_burst_that_waits_in_a_responder_arrives_in_order() {
    // weft's endpoint for its peer is wrong, so that only the peer can begin.
    let Some(mut lab) = Cable::go_begins(Family::V4) else { return };
    let silent = SocketAddr::new(go_endpoint(Family::V4).ip(), 9);
    lab.weft.peers[0].endpoint = Some(silent);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let go = WireguardGo::start_empty(&lab.go_side, &lab.go);
    let burst = send_burst(lab.weft_place(Family::V4), lab.go_place(Family::V4), false);
    until("the whole burst waits in weft", || weft.snapshot().tunnel.staged_segments == BURST);
    // Begins a handshake at once.
    lab.go.peers[0].persistent_keepalive = Some(25);
    go.configure(&lab.go);
    expect_all_in_order(burst);
    assert_eq!(weft.peer(&lab.go.public_key()).endpoint, Some(go_endpoint(Family::V4)));
    assert_eq!(weft.snapshot().tunnel.handshakes, 1);
}

#[test]
fn a_burst_behind_the_handshake_of_wireguard_go_arrives_whole() {
    let Some(lab) = Cable::go_begins(Family::V4) else { return };
    let _go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    // The order is the sender's here, and wireguard-go does not keep it: both its TUN reader and its
    // handshake take packets out of what waits. What weft sends is held to it by the tests above.
    let burst = send_burst(lab.go_place(Family::V4), lab.weft_place(Family::V4), false);
    until("the whole burst arrives", || burst.progress().1 >= BURST);
    let report = burst.finish().forward;
    let unwanted = (report.lost, report.duplicates, report.corrupt, report.refused);
    assert_eq!((report.received, unwanted), (BURST, (0, 0, 0, 0)), "{report:?}");
    assert_eq!(weft.snapshot().tunnel.handshakes, 1);
}
