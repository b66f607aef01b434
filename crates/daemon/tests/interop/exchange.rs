//! Traffic passes over either family, whichever end begins, and both ends agree on what happened.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use weft_lab::{PATIENCE, until};

use crate::conversation::{Conversation, MIB, Place};
use crate::topology::{Cable, Family, go_endpoint, weft_endpoint};
use crate::weft_end::Weft;
use crate::wireguard_go::WireguardGo;

/// A handshake counts for either end when it is through there, and wg(8) shows whole seconds.
const HANDSHAKE_TOLERANCE: Duration = Duration::from_secs(5);

fn exchange(first: Place<'_>, second: Place<'_>) {
    let conversation = Conversation::start(first, second);
    conversation.wait_for_more(8 * MIB);
    conversation.finish();
}

#[test]
fn weft_begins_and_tcp_passes_both_ways_at_once() {
    for (outside, tun_threads) in [(Family::V4, 0), (Family::V6, 0), (Family::V4, 2)] {
        println!("over {outside:?}, with {tun_threads} TUN threads");
        let Some(lab) = Cable::weft_begins(outside) else { return };
        let go = WireguardGo::start(&lab.go_side, &lab.go);
        let weft = Weft::start_with_threads(&lab.weft_side, &lab.weft, tun_threads);
        for inside in [Family::V4, Family::V6] {
            exchange(lab.weft_place(inside), lab.go_place(inside));
        }
        assert_eq!(go.peer(&lab.weft.public_key()).endpoint, Some(weft_endpoint(outside)));
        weft.stop();
    }
}

#[test]
fn wireguard_go_begins_and_tcp_passes_both_ways_at_once() {
    for (outside, tun_threads) in [(Family::V4, 0), (Family::V6, 2)] {
        println!("over {outside:?}, with {tun_threads} TUN threads");
        let Some(lab) = Cable::go_begins(outside) else { return };
        let weft = Weft::start_with_threads(&lab.weft_side, &lab.weft, tun_threads);
        let _go = WireguardGo::start(&lab.go_side, &lab.go);
        for inside in [Family::V4, Family::V6] {
            exchange(lab.go_place(inside), lab.weft_place(inside));
        }
        assert_eq!(weft.peer(&lab.go.public_key()).endpoint, Some(go_endpoint(outside)));
        weft.stop();
    }
}

/// Sends datagrams there and back, one at a time: no buffer is ever full, and nothing is lost, however busy
/// the machine is.
fn take_turns(first: Place<'_>, second: Place<'_>) {
    let sockets = [first, second].map(|(namespace, address)| {
        let socket = namespace.run(|| UdpSocket::bind((address, 0))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    sockets[0].connect(sockets[1].local_addr().unwrap()).unwrap();
    sockets[1].connect(sockets[0].local_addr().unwrap()).unwrap();
    let (mut sent, mut received) = ([0; 1200], [0; 1200]);
    for turn in 0..1000_u32 {
        let (from, to) = if turn % 2 == 0 { (&sockets[0], &sockets[1]) } else { (&sockets[1], &sockets[0]) };
        sent[..4].copy_from_slice(&turn.to_be_bytes());
        from.send(&sent).unwrap();
        assert_eq!(to.recv(&mut received).unwrap(), sent.len());
        assert_eq!(received, sent);
    }
}

#[test]
fn both_ends_agree_on_endpoints_handshake_and_bytes() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    take_turns(lab.weft_place(Family::V4), lab.go_place(Family::V4));

    // A keepalive may still be on its way.
    until("each end has received what the other one has sent", || {
        let (ours, theirs) = (weft.peer(&lab.go.public_key()), go.peer(&lab.weft.public_key()));
        (ours.sent_bytes, ours.received_bytes) == (theirs.rx_bytes, theirs.tx_bytes)
    });
    let (ours, theirs) = (weft.peer(&lab.go.public_key()), go.peer(&lab.weft.public_key()));
    let endpoints: [Option<SocketAddr>; 2] = [ours.endpoint, theirs.endpoint];
    assert_eq!(endpoints, [Some(go_endpoint(Family::V4)), Some(weft_endpoint(Family::V4))]);
    assert_eq!(weft.snapshot().tunnel.handshakes, 1);
    let ours = SystemTime::now() - ours.last_handshake.unwrap().elapsed();
    let theirs = SystemTime::UNIX_EPOCH + Duration::from_secs(theirs.latest_handshake);
    let apart = ours.duration_since(theirs).unwrap_or_else(|error| error.duration());
    assert!(apart < HANDSHAKE_TOLERANCE, "{apart:?} between the two times of the same handshake");
}
