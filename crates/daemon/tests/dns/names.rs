//! A name server whose answers change, and the C library that asks it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use weft::config::Endpoint;
use weft::lab::{self, Namespace, mounts};
use weft::resolve::{AtStart, Cancel, Resolver, Retries, Watched, first_addresses};
use weft_tunnel::PublicKey;

use crate::support::{Machine, bind};

const PATIENCE: Duration = Duration::from_secs(60);
const PEER: [u8; 32] = [1; 32];

/// The A records of every name; none: there is no such name.
pub(crate) type Records = Arc<Mutex<Vec<Ipv4Addr>>>;

/// Answers on the loopback interface of this thread's network namespace, for as long as the process lives.
fn serve(records: &Records) {
    let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
    let records = records.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..length], &records.lock().unwrap()) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

/// The answer to a question (RFC 1035, section 4), whose time to live is zero.
fn answer(question: &[u8], records: &[Ipv4Addr]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut end = HEADER;
    while *question.get(end)? != 0 {
        end += usize::from(question[end]) + 1;
    }
    let kind = question.get(end + 1..end + 3)?;
    let records = if kind == [0, 1] { records } else { &[] };
    // NXDOMAIN where there is nothing of any kind; the other kinds of a name that exists are empty.
    let code = if records.is_empty() && kind == [0, 1] { 3 } else { 0 };
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(records.len()).ok()?, 0, 0, 0, 0]);
    answer.extend(question.get(HEADER..end + 5)?);
    for record in records {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(record.octets());
    }
    Some(answer)
}

/// Runs `work` where names are looked up at a server with these records only.
pub(crate) fn with_name_server(test: &str, records: &Records, work: impl FnOnce() + Send) {
    if !lab::namespaces_permitted(test) {
        return;
    }
    let machine = Machine::new();
    fs::write(machine.resolv_conf(), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
    fs::write(machine.path("etc/nsswitch.conf"), "hosts: dns\n").unwrap();
    Namespace::new("names").unwrap().run(|| {
        if let Err(error) = mounts::separate() {
            return lab::not_run(test, &format!("no mount namespace of its own: {error}"));
        }
        for (name, place) in [("resolv.conf", "/etc/resolv.conf"), ("nsswitch.conf", "/etc/nsswitch.conf")] {
            if !fs::exists(place).unwrap() {
                return lab::not_run(test, &format!("there is no {place} to mount over"));
            }
            bind(&machine.path("etc").join(name), place.as_ref());
        }
        serve(records);
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

pub(crate) fn set(records: &Records, lasts: &[u8]) {
    *records.lock().unwrap() = lasts.iter().map(|&last| Ipv4Addr::new(192, 0, 2, last)).collect();
}

#[test]
fn a_name_that_changes_is_followed_once_its_peer_falls_silent() {
    let records = Records::default();
    set(&records, &[1]);
    with_name_server("a_name_that_changes_is_followed_once_its_peer_falls_silent", &records, || {
        let at_start = AtStart::Wait(Retries::Limited(3));
        let first = first_addresses([Some(&endpoint())], at_start, &Cancel::default()).unwrap();
        assert_eq!(first, [Some(at(1))]);

        let (sender, changes) = mpsc::channel();
        let resolver = Resolver::start(move |peer, to| {
            let _ = sender.send((peer, to));
        })
        .unwrap();
        let handle = resolver.handle();
        let peer = PublicKey::from_bytes(PEER);
        handle.set_peers(vec![watched(first[0])]);
        set(&records, &[2]);
        handle.stale(peer);
        assert_eq!(changes.recv_timeout(PATIENCE).unwrap(), (peer, at(2)));
        handle.handshake(peer);
        // Another network, in which the name means something else.
        set(&records, &[3]);
        handle.network_changed();
        assert_eq!(changes.recv_timeout(PATIENCE).unwrap(), (peer, at(3)));
    });
}

#[test]
fn a_name_that_does_not_exist_yet_is_found_when_it_does() {
    let records = Records::default();
    with_name_server("a_name_that_does_not_exist_yet_is_found_when_it_does", &records, || {
        // As wg-quick: with patience, and an error in the end.
        let at_start = AtStart::Wait(Retries::Limited(0));
        let error = first_addresses([Some(&endpoint())], at_start, &Cancel::default()).unwrap_err();
        assert!(error.to_string().contains("vpn.weft.example:51820"), "{error}");

        let first = first_addresses([Some(&endpoint())], AtStart::Background, &Cancel::default()).unwrap();
        assert_eq!(first, [None]);
        let (sender, changes) = mpsc::channel();
        let resolver = Resolver::start(move |peer, to| {
            let _ = sender.send((peer, to));
        })
        .unwrap();
        resolver.handle().set_peers(vec![watched(None)]);
        set(&records, &[4]);
        assert_eq!(changes.recv_timeout(PATIENCE).unwrap(), (PublicKey::from_bytes(PEER), at(4)));
    });
}
