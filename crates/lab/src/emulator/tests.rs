//! A real emulator between two namespaces. Times are lower bounds only: a link is never early, however busy
//! the machine is.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::*;
use crate::PATIENCE;
use crate::traffic::{Amount, TcpReceiver, TcpSenders};

struct Lab {
    // Fields drop in this order.
    emulator: Emulator,
    a: Namespace,
    b: Namespace,
}

/// Returns `None`, after reporting it, where the lab cannot be created.
fn lab(spec: &str) -> Option<Lab> {
    if !crate::here::tun_permitted() {
        return None;
    }
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let options = LinkOptions {
        addresses_a: vec!["192.0.2.1/24".parse().unwrap(), "fd00::1/64".parse().unwrap()],
        addresses_b: vec!["192.0.2.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()],
        ..LinkOptions::default()
    };
    let emulator = Emulator::between(&a, &b, &options, &spec.parse().unwrap()).unwrap();
    Some(Lab { emulator, a, b })
}

fn socket(namespace: &Namespace, address: &str) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind((address, 0))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_round_trip_takes_both_delays_over_ipv4_and_ipv6() {
    let Some(lab) = lab("delay=15ms") else { return };
    for (from, to) in [("192.0.2.1", "192.0.2.2"), ("fd00::1", "fd00::2")] {
        let (near, far) = (socket(&lab.a, from), socket(&lab.b, to));
        let start = Instant::now();
        near.send_to(b"ping", far.local_addr().unwrap()).unwrap();
        let (len, source) = far.recv_from(&mut [0; 8]).unwrap();
        assert_eq!((len, source), (4, near.local_addr().unwrap()));
        far.send_to(b"pong", source).unwrap();
        near.recv(&mut [0; 8]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30), "{:?}", start.elapsed());
    }
}

#[test]
fn a_stream_crosses_complete_and_not_faster_than_the_rate() {
    const BYTES: u64 = 2_000_000;
    let Some(lab) = lab("rate=100mbit,delay=1ms") else { return };
    let address: SocketAddr = "192.0.2.2:0".parse().unwrap();
    let receiver = lab.b.run(|| TcpReceiver::listen(address)).unwrap();
    let start = Instant::now();
    let senders = TcpSenders::start(&lab.a, receiver.local_addr(), 1, Amount::Count(BYTES), 5).unwrap();
    let sent = senders.finish();
    let elapsed = start.elapsed();
    assert_eq!((sent[0].confirmed, &sent[0].error), (BYTES, &None));
    assert_eq!(receiver.finish()[0].first_mismatch, None);
    assert!(elapsed >= Duration::from_secs_f64(BYTES as f64 * 8.0 / 100e6), "{elapsed:?}");
    let [there, _] = lab.emulator.counters();
    assert!(lab.emulator.cpu_time().is_some_and(|time| time > Duration::ZERO));
    // Each frame by itself: no super-packet crossed as one.
    assert!(there.frames >= BYTES / 1448, "{there:?}");
    assert!(there.bytes >= BYTES + there.frames * 14, "{there:?}");
}

#[test]
fn what_is_lost_on_purpose_does_not_arrive_and_is_counted() {
    let Some(lab) = lab("loss=100%") else {
        return;
    };
    let near = socket(&lab.a, "192.0.2.1");
    // A broadcast needs no answer to an ARP request.
    near.set_broadcast(true).unwrap();
    let far = socket(&lab.b, "0.0.0.0");
    let before = lab.emulator.counters()[0].lost;
    near.send_to(b"x", ("192.0.2.255", far.local_addr().unwrap().port())).unwrap();
    let start = Instant::now();
    while lab.emulator.counters()[0].lost == before {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    far.set_nonblocking(true).unwrap();
    assert!(far.recv(&mut [0; 8]).is_err());
}

#[test]
fn the_interfaces_go_with_the_emulator() {
    let Some(lab) = lab("") else { return };
    let Lab { emulator, a, b } = lab;
    let has_link = |namespace: &Namespace| {
        crate::counters::Counters::read(namespace).unwrap().interfaces.contains_key("eth0")
    };
    assert!(has_link(&a) && has_link(&b) && emulator.is_running());
    drop(emulator);
    assert!(!has_link(&a) && !has_link(&b));
}
