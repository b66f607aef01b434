//! An interface that is moved to another network namespace; its UDP socket stays where it was made.

use std::os::fd::AsRawFd as _;

use weft_lab::traffic::Amount;
use weft_lab::{Namespace, Transfer, link, until};

use crate::support::{NAME, Pair, inner};

/// Moves the interface from one namespace to another, where it has no address and is down.
fn move_to(from: &Namespace, to: &Namespace) {
    let target = format!("/proc/{}/fd/{}", std::process::id(), to.as_raw_fd());
    let status = from.command("ip").args(["link", "set", "dev", NAME, "netns", &target]).status().unwrap();
    assert!(status.success());
}

/// Gives the interface machine a's address in the tunnel, and sets it up.
fn configure(namespace: &Namespace) {
    link::add_address(namespace, NAME, format!("{}/24", inner(1)).parse().unwrap()).unwrap();
    link::set_up(namespace, NAME).unwrap();
}

#[test]
fn an_interface_goes_on_where_it_is_moved_to() {
    let Some(pair) = Pair::new() else { return };
    let stream = pair.stream();
    let before = pair.last_handshake();
    let elsewhere = Namespace::new("elsewhere").unwrap();
    // The stream's own end stays behind: it is cut off.
    move_to(&pair.a.namespace, &elsewhere);
    configure(&elsewhere);
    assert!(!pair.a.has_link(NAME));
    let amount = Amount::Count(5_000_000);
    let transfer = Transfer::start(&elsewhere, &pair.b.namespace, inner(2), 1, amount).unwrap();
    assert_eq!(transfer.finish(), 5_000_000);
    // The same session, the same socket, and wg(8) where it was.
    assert_eq!(pair.last_handshake(), before);
    pair.a.wg(&format!("set {NAME} listen-port 4567"));
    let sockets = pair.a.run("cat", &["/proc/net/udp"]);
    assert!(sockets.contains(&format!(":{:04X} ", 4567)), "{sockets}");
    drop(stream);
    // And its end is noticed there.
    let mut daemons = pair.daemons;
    link::remove(&elsewhere, NAME).unwrap();
    assert_eq!(daemons[0].wait().code(), Some(0), "{}", daemons[0].log());
    until("its socket is gone", || !pair.a.has_socket(NAME));
}

#[test]
fn a_stream_survives_a_move_and_back() {
    let Some(pair) = Pair::new() else { return };
    let stream = pair.stream();
    let elsewhere = Namespace::new("elsewhere").unwrap();
    // Without the address there: a packet for the stream that came meanwhile would be answered with a reset.
    move_to(&pair.a.namespace, &elsewhere);
    move_to(&elsewhere, &pair.a.namespace);
    configure(&pair.a.namespace);
    stream.goes_on();
    stream.end();
}
