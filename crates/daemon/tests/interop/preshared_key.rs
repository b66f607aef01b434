//! The preshared key: with the same one on both ends traffic passes, with two different ones nothing ever
//! does.

use std::net::{SocketAddr, UdpSocket};

use weft_lab::until;
use weft_tunnel::PresharedKey;

use crate::conversation::{Conversation, MIB, Place};
use crate::topology::{Cable, Family};
use crate::weft_end::Weft;
use crate::wireguard_go::WireguardGo;

/// A handshake initiation and a response (whitepaper, section 5.4).
const INITIATION: u64 = 148;
const RESPONSE: u64 = 92;

/// The ends, one of which can begin: weft or wireguard-go.
fn begins(weft_begins: bool) -> Option<Cable> {
    if weft_begins { Cable::weft_begins(Family::V4) } else { Cable::go_begins(Family::V4) }
}

#[test]
fn with_the_same_preshared_key_traffic_passes() {
    for weft_begins in [true, false] {
        let Some(mut lab) = begins(weft_begins) else { return };
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

/// One end begins, the other one answers: the preshared key matters only to the end that reads the answer.
/// Two initiations show that the answer to the first was of no use.
fn with_another_preshared_key(weft_begins: bool) {
    let Some(mut lab) = begins(weft_begins) else { return };
    let right = PresharedKey::generate().unwrap();
    lab.weft.peers[0].preshared_key = Some(right.clone());
    lab.go.peers[0].preshared_key = Some(PresharedKey::generate().unwrap());
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let (weft_place, go_place) = (lab.weft_place(Family::V4), lab.go_place(Family::V4));
    let (first, second) = if weft_begins { (weft_place, go_place) } else { (go_place, weft_place) };
    let bind = |(namespace, address): Place<'_>| {
        let socket = namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 4000))).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (from, to) = (bind(first), bind(second));
    from.send_to(b"wrong", to.local_addr().unwrap()).unwrap();
    until("two initiations and an answer", || {
        let (ours, theirs) = (weft.peer(&lab.go.public_key()), go.peer(&lab.weft.public_key()));
        match weft_begins {
            true => ours.sent_bytes >= 2 * INITIATION && theirs.tx_bytes >= RESPONSE,
            false => ours.received_bytes >= 2 * INITIATION && ours.sent_bytes >= RESPONSE,
        }
    });
    assert_eq!(go.peer(&lab.weft.public_key()).latest_handshake, 0);
    assert_eq!(weft.peer(&lab.go.public_key()).last_handshake, None);
    assert_eq!(weft.snapshot().tunnel.handshakes, 0);
    assert_eq!(to.recv(&mut [0; 16]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);

    let mut corrected = lab.go.clone();
    corrected.peers[0].preshared_key = Some(right);
    go.configure(&corrected);
    let conversation = Conversation::start(first, second);
    conversation.wait_for_more(MIB);
    conversation.finish();
}

#[test]
fn with_another_preshared_key_nothing_passes_from_either_end_until_it_is_corrected() {
    for weft_begins in [true, false] {
        println!("weft begins: {weft_begins}");
        with_another_preshared_key(weft_begins);
    }
}
