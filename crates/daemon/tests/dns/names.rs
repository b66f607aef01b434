//! Names that change their addresses, and the C library that looks them up.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;

use weft_config::Endpoint;
use weft_host::resolve::{Cancel, LookUp, Resolver, Retries, Tunnel, Watched, resolve};
use weft_lab::{Namespace, PATIENCE, here, mounts};
use weft_tunnel::PublicKey;

use crate::name_server::{Records, serve, set};
use crate::support::{Machine, bind};

const PEER: [u8; 32] = [1; 32];

/// Runs `work` where names are looked up at a server with these records only.
pub(crate) fn with_name_server(records: &Records, work: impl FnOnce() + Send) {
    if !here::namespaces_permitted() {
        return;
    }
    let machine = Machine::new();
    fs::write(machine.resolv_conf(), "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n").unwrap();
    fs::write(machine.path("etc/nsswitch.conf"), "hosts: dns\n").unwrap();
    Namespace::new("names").unwrap().run(|| {
        if let Err(error) = mounts::separate().and_then(|()| mounts::empty("/var/run")) {
            return here::not_run(&format!("cannot make a mount namespace: {error}"));
        }
        for (name, place) in [("resolv.conf", "/etc/resolv.conf"), ("nsswitch.conf", "/etc/nsswitch.conf")] {
            if !fs::exists(place).unwrap() {
                return here::not_run(&format!("there is no {place} to mount over"));
            }
            bind(&machine.path("etc").join(name), place.as_ref());
        }
        serve((Ipv4Addr::LOCALHOST, 53), records);
        work();
    });
}

fn endpoint() -> Endpoint {
    Endpoint::Name { host: "vpn.weft.example".to_owned(), port: 51820 }
}

fn watched(current: Option<SocketAddr>) -> Watched {
    Watched { peer: PublicKey::from_bytes(PEER), endpoint: endpoint(), current }
}

fn at(last: u8) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, last), 51820).into()
}

#[test]
fn a_name_that_changes_is_followed_once_its_peer_falls_silent() {
    let records = Records::default();
    set(&records, &[1]);
    with_name_server(&records, || {
        let first =
            resolve(&endpoint(), Retries::Limited(3), &Cancel::default(), &LookUp::by_system()).unwrap();
        assert_eq!(first, at(1));

        let (sender, changes) = mpsc::channel();
        let resolver = Resolver::new(move |peer, to| {
            let _ = sender.send((peer, to));
        });
        let peer = PublicKey::from_bytes(PEER);
        resolver.set_peers(vec![watched(Some(first))]);
        set(&records, &[2]);
        resolver.stale(peer);
        assert_eq!(changes.recv_timeout(PATIENCE).unwrap(), (peer, at(2)));
        resolver.handshake(peer);
        // Another network, in which the name means something else.
        set(&records, &[3]);
        resolver.network_changed();
        assert_eq!(changes.recv_timeout(PATIENCE).unwrap(), (peer, at(3)));
    });
}

#[test]
fn an_address_with_a_zone_is_no_name() {
    let records = Records::default();
    // The answer to every question.
    set(&records, &[1]);
    with_name_server(&records, || {
        let interface = "wg0".parse().unwrap();
        let tunnel = Tunnel { interface, index: None, mark: 0, carries_look_ups: true };
        for look_up in [LookUp::by_system(), LookUp::past(Some(tunnel))] {
            let found = look_up.addresses("fe80::1%lo", 7).unwrap();
            assert_eq!(found, ["[fe80::1%1]:7".parse().unwrap()]);
        }
    });
}

#[test]
fn a_name_that_does_not_exist_yet_is_found_when_it_does() {
    let records = Records::default();
    with_name_server(&records, || {
        // As wg-quick: with patience, and an error in the end.
        let error =
            resolve(&endpoint(), Retries::Limited(0), &Cancel::default(), &LookUp::by_system()).unwrap_err();
        assert!(error.to_string().contains("vpn.weft.example:51820"), "{error}");

        let (sender, changes) = mpsc::channel();
        let resolver = Resolver::new(move |peer, to| {
            let _ = sender.send((peer, to));
        });
        resolver.set_peers(vec![watched(None)]);
        set(&records, &[4]);
        assert_eq!(changes.recv_timeout(PATIENCE).unwrap(), (PublicKey::from_bytes(PEER), at(4)));
    });
}
