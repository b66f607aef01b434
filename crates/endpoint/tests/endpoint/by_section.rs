//! What the RFCs ask for, segment by segment. The numbers in names are those of RFCs.

mod other_rfcs;
mod rfc_9293;

use std::net::SocketAddr;
use std::time::Duration;

use weft_endpoint::{ConnectError, Event, Limits, StreamError, StreamState};
use weft_tunnel::ip;

use crate::wire::*;
use crate::world::{address, config};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// MSS 1,380, SACK permitted, window scale 7, without timestamps.
const SACK: [u8; 12] = [2, 4, 5, 100, 1, 1, 4, 2, 1, 3, 3, 7];
/// MSS 1,000 and nothing else.
const PLAIN: [u8; 4] = [2, 4, 3, 232];

fn listening(wire: &mut Wire) -> weft_endpoint::ListenerId {
    wire.end.listen(SocketAddr::new(address(0, true), 80), 4).unwrap()
}

/// Completes a handshake that the peer begins.
fn accepted(options: &[u8]) -> Wire {
    let mut wire = Wire::new();
    let listener = listening(&mut wire);
    let answer = wire.send(&[Seg::new(SYN, wire.seq, 0).options(options)]).remove(0);
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, wire.seq.wrapping_add(1)));
    (wire.seq, wire.ack) = (wire.seq.wrapping_add(1), answer.seq.wrapping_add(1));
    let ack = wire.ack();
    assert_eq!(wire.send(&[ack]), []);
    assert!(wire.events.contains(&Event::Acceptable(listener)));
    wire.id = wire.end.accept(listener);
    assert_eq!(wire.state(), StreamState::Established);
    wire
}
