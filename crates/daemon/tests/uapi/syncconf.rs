//! `wg syncconf`: sessions survive it.

use crate::support::{NAME, Pair, public_key};

#[test]
fn the_same_configuration_again_changes_nothing() {
    let Some(pair) = Pair::new() else { return };
    let stream = pair.stream();
    let before = pair.last_handshake();
    let file = pair.a.file("same", &Pair::config(1, 2));
    for _ in 0..5 {
        pair.a.wg(&format!("syncconf {NAME} {file}"));
        stream.goes_on();
    }
    assert_eq!(pair.last_handshake(), before);
    stream.end();
}

#[test]
fn other_peers_come_and_go_beside_a_session() {
    let Some(pair) = Pair::new() else { return };
    let stream = pair.stream();
    let before = pair.last_handshake();
    let other =
        |number: u8| format!("[Peer]\nPublicKey = {}\nAllowedIPs = 10.{number}.0.0/16\n", public_key(number));
    let peers = || pair.a.wg(&format!("show {NAME} peers"));
    for more in [other(3), other(3) + &other(4), other(4), String::new()] {
        let file = pair.a.file("conf", &(Pair::config(1, 2) + &more));
        pair.a.wg(&format!("syncconf {NAME} {file}"));
        assert_eq!(peers().lines().count(), 1 + more.matches("[Peer]").count());
        stream.goes_on();
    }
    assert_eq!(pair.last_handshake(), before);
    // So it is with setconf: a peer that stays keeps its session.
    let file = pair.a.file("conf", &Pair::config(1, 2));
    pair.a.wg(&format!("setconf {NAME} {file}"));
    stream.goes_on();
    assert_eq!(pair.last_handshake(), before);
    stream.end();
}
