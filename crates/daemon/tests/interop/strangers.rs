//! A sender that is no peer gets no answer, and disturbs no peer.

use std::net::UdpSocket;

use weft_lab::until;
use weft_tunnel::DropReason;

use crate::conversation::{Conversation, MIB};
use crate::end::End;
use crate::topology::{Cable, Family, weft_endpoint};
use crate::weft_end::Weft;
use crate::wireguard_go::WireguardGo;

#[test]
fn a_stranger_gets_no_answer_while_a_peer_is_served() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    conversation.wait_for_more(MIB);

    // A second interface beside the peer's, with a key that weft does not know.
    let mut stranger = End::new(66, 51866);
    stranger.addresses.clear();
    let mut victim = lab.weft.as_peer(Some(weft_endpoint(Family::V4)));
    victim.allowed_ips = vec!["10.66.0.0/24".parse().unwrap()];
    victim.persistent_keepalive = Some(1);
    stranger.peers.push(victim);
    let stranger_go = WireguardGo::start(&lab.go_side, &stranger);
    let refused = || weft.snapshot().drops.get(DropReason::UnknownPeer);
    until("an initiation of the stranger is refused", || refused() >= 1);
    conversation.wait_for_more(MIB);

    let view = stranger_go.peer(&lab.weft.public_key());
    assert_eq!((view.rx_bytes, view.latest_handshake), (0, 0), "{view:?}");
    assert!(view.tx_bytes > 0);
    let snapshot = weft.snapshot();
    assert_eq!((snapshot.peers.len(), snapshot.tunnel.handshakes, snapshot.tunnel.cookies_sent), (1, 1, 0));
    conversation.finish();
    assert!(go.peer(&lab.weft.public_key()).latest_handshake > 0);
}

#[test]
fn datagrams_that_are_no_messages_get_no_answer() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let _go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    let socket = lab.go_side.run(|| UdpSocket::bind("192.0.2.2:0")).unwrap();
    let dropped = || {
        let snapshot = weft.snapshot();
        let reasons =
            [DropReason::InvalidMac, DropReason::UnknownReceiverIndex, DropReason::MalformedDatagram];
        let [invalid, unknown, no_message] = reasons.map(|reason| snapshot.drops.get(reason));
        // What has not even the shape of a message does not get past the kernel where weft has a filter
        // there.
        let is_filtered = !cfg!(feature = "portable");
        [if is_filtered { snapshot.udp.junk_dropped } else { no_message }, invalid, unknown]
    };
    let before = dropped();
    let mut datagrams: Vec<Vec<u8>> = (1..=4u8).map(|kind| vec![kind, 0, 0, 0]).collect();
    for (datagram, len) in datagrams.iter_mut().zip([148, 92, 64, 1452]) {
        // The right length for its kind, and no content.
        datagram.resize(len, 0xaa);
    }
    datagrams.extend([vec![0], vec![4, 0, 0, 0], vec![1; 148], vec![0xff; 1472], vec![4, 1, 0, 0, 0]]);
    for datagram in &datagrams {
        socket.send_to(datagram, weft_endpoint(Family::V4)).unwrap();
    }
    let total = |counts: [u64; 3]| counts.iter().sum::<u64>();
    until("every one of them is dropped", || total(dropped()) >= total(before) + datagrams.len() as u64);
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.recv(&mut [0; 256]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    conversation.wait_for_more(MIB);
    conversation.finish();
}
