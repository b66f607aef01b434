//! Keepalives: 32 bytes that say "still here". IPv4 only inside, and there is no other traffic, so every byte
//! is accounted for.

use std::net::{SocketAddr, UdpSocket};

use weft_lab::until;

use crate::conversation::Place;
use crate::topology::{Cable, Family};
use crate::weft_end::Weft;
use crate::wireguard_go::WireguardGo;

/// A data message without content (whitepaper, section 5.4.6).
const KEEPALIVE: u64 = 32;

/// A socket that takes datagrams and never answers.
fn silent_socket((namespace, address): Place<'_>) -> UdpSocket {
    namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 4000))).unwrap()
}

/// Sends one datagram of 4 bytes, which arrives.
fn send_one(from: &UdpSocket, to: &UdpSocket) {
    from.send_to(b"data", to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(std::time::Duration::from_secs(45))).unwrap();
    assert_eq!(to.recv(&mut [0; 16]).unwrap(), 4);
}

#[test]
fn a_persistent_keepalive_brings_the_tunnel_up_and_goes_on() {
    let Some(mut lab) = Cable::weft_begins(Family::V4) else { return };
    lab.weft.peers[0].persistent_keepalive = Some(1);
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let rx = || go.peer(&lab.weft.public_key()).rx_bytes;
    until("a handshake without any traffic", || go.peer(&lab.weft.public_key()).latest_handshake > 0);
    let before = rx();
    until("three keepalives", || rx() >= before + 3 * KEEPALIVE);
    assert_eq!((rx() - before) % KEEPALIVE, 0, "something else than keepalives came");
    assert_eq!(weft.snapshot().tunnel.handshakes, 1);
}

#[test]
fn weft_answers_data_with_a_keepalive_when_it_has_nothing_else() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let (in_weft, in_go) =
        (silent_socket(lab.weft_place(Family::V4)), silent_socket(lab.go_place(Family::V4)));
    send_one(&in_weft, &in_go);
    let rx = || go.peer(&lab.weft.public_key()).rx_bytes;
    let before = rx();
    send_one(&in_go, &in_weft);
    until("weft's keepalive", || rx() > before);
    assert_eq!(rx() - before, KEEPALIVE);
    assert_eq!(weft.snapshot().tunnel.handshakes, 1);
}

#[test]
fn the_keepalive_of_wireguard_go_is_answer_enough_for_weft() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let _go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let (in_weft, in_go) =
        (silent_socket(lab.weft_place(Family::V4)), silent_socket(lab.go_place(Family::V4)));
    send_one(&in_weft, &in_go);
    until("the keepalive of wireguard-go", || weft.snapshot().tunnel.keepalives_received == 1);
    let snapshot = weft.snapshot();
    assert_eq!((snapshot.tunnel.handshakes, snapshot.drops.total()), (1, drops_of_the_kernel(&snapshot)));
}

/// The kernel itself sends a few packets through a new interface, to groups that are no peer's.
fn drops_of_the_kernel(snapshot: &weft_dataplane::Snapshot) -> u64 {
    snapshot.drops.get(weft_tunnel::DropReason::NoPeer)
}
