//! Packets to an address that no peer has fail at once, not by a timeout of the sender.
//!
//! ```text
//!   client  wan 10.91.1.2 ─── router ─── 10.91.2.2 wan  server
//! ```

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weft_lab::routed::{End, Routed};
use weft_lab::{Namespace, here};

use crate::weft::{CLIENT, Pair, SERVER, inner_v4, inner_v6, options, routed};

/// In the network of the interface, and of no peer.
const ABSENT: u8 = 9;
/// Far less than the two minutes that TCP tries without an answer, and than the first second after which it
/// repeats.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(from: &Namespace, to: std::net::IpAddr) -> ErrorKind {
    from.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, 1), PATIENCE)).unwrap_err().kind()
}

#[test]
fn an_address_that_no_peer_has_is_unreachable_at_once() {
    let Some(lab) = routed() else { return };
    let pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    for absent in [inner_v4(ABSENT), inner_v6(ABSENT)] {
        assert_eq!(connect(&lab.client, absent), ErrorKind::HostUnreachable, "{absent}");
    }
    let stats = pair.client.snapshot().tunnel;
    assert!(stats.icmp_sent >= 2, "{stats:?}");
    // While the one that a peer has is reached.
    for peer in [inner_v4(SERVER), inner_v6(SERVER)] {
        assert_eq!(connect(&lab.client, peer), ErrorKind::ConnectionRefused, "{peer}");
    }
}

#[test]
fn a_peer_that_was_never_heard_of_is_unreachable_at_once() {
    let Some(lab) = routed() else { return };
    let _pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    // The server does not know where the client is, and the client has nothing to say yet.
    for client in [inner_v4(CLIENT), inner_v6(CLIENT)] {
        assert_eq!(connect(&lab.server, client), ErrorKind::HostUnreachable, "{client}");
    }
}

/// A host behind the client learns it as well: the answer goes on to where the packet came from, past the
/// strict check of sources.
#[test]
fn a_host_behind_the_client_learns_it_too() {
    let Some(lab) = routed() else { return };
    let host = Namespace::new("host").unwrap();
    let link = weft_lab::link::LinkOptions {
        name_b: "lan".to_owned(),
        addresses_a: vec!["10.93.0.2/24".parse().unwrap(), "fd93::2/64".parse().unwrap()],
        addresses_b: vec!["10.93.0.1/24".parse().unwrap(), "fd93::1/64".parse().unwrap()],
        ..Default::default()
    };
    weft_lab::link::join(&host, &lab.client, &link).unwrap();
    for (network, router) in [("10.77.0.0/24", "10.93.0.1"), ("fd77::/64", "fd93::1")] {
        weft_lab::link::add_route(&host, network.parse().unwrap(), router.parse().unwrap()).unwrap();
    }
    let sysctls = [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "1"),
    ];
    for (name, value) in sysctls {
        if let Err(error) = lab.client.set_sysctl(name, value) {
            return here::not_run(&error.to_string());
        }
    }
    let _pair = Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), None, &options());
    for absent in [inner_v4(ABSENT), inner_v6(ABSENT)] {
        assert_eq!(connect(&host, absent), ErrorKind::HostUnreachable, "{absent}");
    }
}
