//! weft with two peers, each wireguard-go in a separate namespace, and a way between them through weft.
//!
//! ```text
//!   wireguard-go 10.7.0.2                weft0 10.7.0.1               wireguard-go 10.7.0.3
//!     eth0 192.0.2.2 ───────── 192.0.2.1 eth2   eth3 198.51.100.1 ───────── 198.51.100.3 eth0
//! ```

use std::net::{SocketAddr, UdpSocket};

use ipnet::IpNet;
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, counters, until};
use weft_tunnel::DropReason;

use crate::conversation::{Conversation, MIB};
use crate::end::{End, inner_v4};
use crate::topology::{GO_PORT, WEFT, WEFT_PORT};
use crate::weft_end::Weft;
use crate::wireguard_go::{WireguardGo, can_run};

struct Spoke {
    number: u8,
    namespace: Namespace,
    end: End,
    endpoint: SocketAddr,
    go: WireguardGo,
}

/// weft between two peers that reach each other through it. Only weft is told where they are.
fn star() -> Option<(Namespace, Weft, [Spoke; 2])> {
    if !can_run() {
        return None;
    }
    let hub = Namespace::new("hub").unwrap();
    hub.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    let mut weft_end = End::new(WEFT, WEFT_PORT);
    let spokes = [(2, "192.0.2"), (3, "198.51.100")].map(|(number, network)| {
        let namespace = Namespace::new("spoke").unwrap();
        let address = |host: u8| format!("{network}.{host}/24").parse::<IpNet>().unwrap();
        let options = LinkOptions {
            name_a: format!("eth{number}"),
            addresses_a: vec![address(1)],
            addresses_b: vec![address(number)],
            ..LinkOptions::default()
        };
        link::join(&hub, &namespace, &options).unwrap();
        let mut end = End::new(number, GO_PORT);
        let mut peer = weft_end.as_peer(None);
        peer.allowed_ips = vec!["10.7.0.0/24".parse().unwrap()];
        end.peers.push(peer);
        let endpoint = SocketAddr::new(address(number).addr(), GO_PORT);
        weft_end.peers.push(end.as_peer(Some(endpoint)));
        let go = WireguardGo::start(&namespace, &end);
        Spoke { number, namespace, end, endpoint, go }
    });
    let weft = Weft::start(&hub, &weft_end);
    Some((hub, weft, spokes))
}

#[test]
fn two_peers_talk_to_weft_and_through_it_to_each_other() {
    let Some((hub, weft, spokes)) = star() else { return };
    let with_weft = spokes
        .each_ref()
        .map(|spoke| Conversation::start((&hub, inner_v4(WEFT)), (&spoke.namespace, inner_v4(spoke.number))));
    let [a, b] = &spokes;
    let through_weft =
        Conversation::start((&a.namespace, inner_v4(a.number)), (&b.namespace, inner_v4(b.number)));
    through_weft.wait_for_more(2 * MIB);
    through_weft.finish();
    for conversation in with_weft {
        conversation.wait_for_more(MIB);
        conversation.finish();
    }
    for spoke in &spokes {
        let peer = weft.peer(&spoke.end.public_key());
        assert_eq!(peer.endpoint, Some(spoke.endpoint));
        assert!(spoke.go.peer(&spoke.end.peers[0].key).latest_handshake > 0);
    }
    assert_eq!(weft.snapshot().tunnel.handshakes, 2);
}

#[test]
fn a_peer_cannot_speak_for_the_other() {
    let Some((hub, weft, [a, b])) = star() else { return };
    let conversation = Conversation::start((&hub, inner_v4(WEFT)), (&a.namespace, inner_v4(a.number)));
    let in_hub = hub.run(|| UdpSocket::bind((inner_v4(WEFT), 0))).unwrap();
    // The address of the other peer, on an interface that takes it.
    link::add_address(&a.namespace, "lo", IpNet::from(inner_v4(b.number))).unwrap();
    let forger = a.namespace.run(|| UdpSocket::bind((inner_v4(b.number), 0))).unwrap();
    let refused = || weft.snapshot().drops.get(DropReason::SourceNotAllowed);
    for count in 1..=3 {
        forger.send_to(b"I am the other", in_hub.local_addr().unwrap()).unwrap();
        until("weft refuses it", || refused() >= count);
    }
    in_hub.set_nonblocking(true).unwrap();
    assert_eq!(in_hub.recv(&mut [0; 32]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(counters::Counters::read(&hub).unwrap().interface("weft0").rx_errors, 0);
    conversation.wait_for_more(MIB);
    conversation.finish();
}
