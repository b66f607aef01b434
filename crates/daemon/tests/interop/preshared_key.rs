//! The preshared key: with the same one on both ends traffic passes, with two different ones nothing ever does.

use std::net::{SocketAddr, UdpSocket};

use weft_tunnel::PresharedKey;

use crate::conversation::{Conversation, MIB, Place};
use crate::topology::{Cable, Family};
use crate::waiting::until;
use crate::weft_end::Weft;
use crate::wireguard_go::{WireguardGo, can_run};

/// A handshake initiation and a response (whitepaper, section 5.4).
const INITIATION: u64 = 148;
const RESPONSE: u64 = 92;

#[test]
fn with_the_same_preshared_key_traffic_passes() {
    if !can_run("with_the_same_preshared_key_traffic_passes") {
        return;
    }
    for weft_begins in [true, false] {
        let mut lab = match weft_begins {
            true => Cable::new().weft_begins(Family::V4),
            false => Cable::new().go_begins(Family::V4),
        };
        let preshared_key = PresharedKey::generate().unwrap();
        lab.weft.peers[0].preshared_key = Some(preshared_key.clone());
        lab.go.peers[0].preshared_key = Some(preshared_key);
        let _weft = Weft::start(&lab.weft_side, &lab.weft);
        let _go = WireguardGo::start(&lab.go_side, &lab.go);
        let (weft_place, go_place) = (lab.weft_place(Family::V4), lab.go_place(Family::V4));
        let conversation = match weft_begins {
            true => Conversation::start(weft_place, go_place),
            false => Conversation::start(go_place, weft_place),
        };
        conversation.wait_for_more(MIB);
        conversation.finish();
    }
}

#[test]
fn with_another_preshared_key_nothing_passes_until_it_is_corrected() {
    if !can_run("with_another_preshared_key_nothing_passes_until_it_is_corrected") {
        return;
    }
    let mut lab = Cable::new().both_begin(Family::V4);
    let right = PresharedKey::generate().unwrap();
    lab.weft.peers[0].preshared_key = Some(right.clone());
    lab.go.peers[0].preshared_key = Some(PresharedKey::generate().unwrap());
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let bind = |(namespace, address): Place<'_>| {
        let socket = namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 4000))).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (in_weft, in_go) = (bind(lab.weft_place(Family::V4)), bind(lab.go_place(Family::V4)));

    // Each begins, and each answers the other's initiation, whose preshared key does not matter yet.
    in_weft.send_to(b"wrong", in_go.local_addr().unwrap()).unwrap();
    in_go.send_to(b"wrong", in_weft.local_addr().unwrap()).unwrap();
    until("both ends have begun a handshake and answered one", || {
        let ours = weft.peer(&lab.go.public_key());
        ours.sent_bytes >= INITIATION + RESPONSE && ours.received_bytes >= INITIATION
    });
    until("wireguard-go has answered weft", || {
        go.peer(&lab.weft.public_key()).tx_bytes >= INITIATION + RESPONSE
    });
    assert_eq!(go.peer(&lab.weft.public_key()).latest_handshake, 0);
    assert_eq!(weft.peer(&lab.go.public_key()).last_handshake, None);
    assert_eq!(weft.snapshot().tunnel.handshakes, 0);
    let mut buffer = [0; 16];
    for socket in [&in_weft, &in_go] {
        assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    lab.go.peers[0].preshared_key = Some(right);
    go.configure(&lab.go);
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    conversation.wait_for_more(MIB);
    conversation.finish();
}
