//! Sessions between two ends.

use super::*;
use crate::shard::Shard;

/// One end: its keys and its session with the other end.
struct End {
    identity: Identity,
    indices: PeerIndex,
    session: Session,
    message: [u8; MAX_CONTROL_MESSAGE],
}

impl End {
    fn new() -> Self {
        Self {
            identity: Identity::new(PrivateKey::generate().unwrap()),
            indices: PeerIndex::new(Shard::ONLY),
            session: Session::new(None),
            message: [0; MAX_CONTROL_MESSAGE],
        }
    }

    /// Gives up as when the peer does not answer. Returns whether the state of the handshake is kept.
    fn gives_up(&mut self) -> bool {
        self.session.drop_unless_used(&mut self.indices);
        self.session.is_built()
    }
}

fn initiate(from: &mut End, to_key: PublicKey, now: Instant) -> usize {
    let End { identity, indices, session, message } = from;
    let mut context = SessionContext { identity, indices, peer: PeerId::new(0), key: to_key };
    session.initiate(&mut context, now, message).unwrap()
}

/// Agrees on a session, and returns its index at `from`.
fn shake_hands(from: &mut End, to: &mut End, now: Instant) -> u32 {
    let (from_key, to_key) = (from.identity.public_key, to.identity.public_key);
    let len = initiate(from, to_key, now);
    let End { identity, indices, session, message } = to;
    let mut context = SessionContext { identity, indices, peer: PeerId::new(0), key: from_key };
    let len = session.answer(&mut context, &from.message[..len], now, message).unwrap();
    let End { identity, indices, session, message } = from;
    let mut context = SessionContext { identity, indices, peer: PeerId::new(0), key: to_key };
    let (_, index) = session.routes().next().unwrap();
    session.conclude(&mut context, index, &to.message[..len], now, message).unwrap();
    index
}

#[test]
fn counters_that_no_session_has_are_refused_before_boringtun_counts_them() {
    let (mut from, mut to, now) = (End::new(), End::new(), Instant::now());
    let index = shake_hands(&mut from, &mut to, now);
    let mut open = |counter: u64| {
        let mut datagram = [[4, 0, 0, 0], index.to_le_bytes()].concat();
        datagram.extend(counter.to_le_bytes());
        datagram.extend([0; 16]);
        from.session.open(index, &mut datagram, now, &mut [0; 64]).unwrap_err()
    };
    // Whitepaper, section 6.1.
    let first = u64::MAX - (1 << 13);
    for counter in [first, u64::MAX - 1023, u64::MAX] {
        assert_eq!(open(counter), DropReason::Replayed, "{counter:#x}");
    }
    assert_eq!(open(first - 1), DropReason::InvalidTag);
}

#[test]
fn a_handshake_that_is_given_up_leaves_state_only_of_a_peer_that_was_there() {
    let (mut from, mut to, now) = (End::new(), End::new(), Instant::now());
    initiate(&mut from, to.identity.public_key, now);
    assert!(from.session.is_built());
    assert!(!from.gives_up() && from.session.routes().count() == 0 && from.indices.iter().count() == 0);

    shake_hands(&mut from, &mut to, now);
    // A copy of an older initiation is refused by what is kept.
    assert!(from.gives_up() && to.gives_up() && from.session.can_seal(now));
}
