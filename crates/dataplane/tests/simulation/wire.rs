//! What a stranger on the wire can see of the messages of all nodes, and has to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// Reject-After-Time of the whitepaper, and twice the longest way.
const SESSION: Duration = Duration::from_secs(180 + 4);

#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// By node and receiver index: since when the node may have the session, and the counters that it used.
    sessions: HashMap<(usize, u32), (Duration, HashSet<u64>)>,
    /// Of each node, when it sent initiations in the last minute, by destination.
    initiations: HashMap<(usize, SocketAddr), VecDeque<Duration>>,
}

impl Wire {
    /// Checks a message that one of `nodes` nodes sends at `now`. Its socket was full until `room_since`.
    pub(crate) fn check(
        &mut self,
        now: Duration,
        room_since: Duration,
        nodes: usize,
        node: usize,
        destination: SocketAddr,
        bytes: &[u8],
    ) {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        match (bytes[0], bytes.len()) {
            (1, 148) | (2, 92) => {
                let index = word(4);
                // A new session of the node with this index.
                self.sessions.retain(|(sender, of), _| *sender == node || *of != index);
                for other in (0..nodes).filter(|other| *other != node) {
                    self.sessions.insert((other, index), (now, HashSet::new()));
                }
                if bytes[0] == 1 {
                    self.check_initiation(now, node, destination);
                } else if let Some((since, _)) = self.sessions.get_mut(&(node, word(8))) {
                    // The initiation may have been under way for long.
                    *since = now;
                }
            }
            (3, 64) => {}
            (4, len) if len >= 32 => {
                let counter = u64::from_le_bytes(*bytes[8..].first_chunk().unwrap());
                let session = self.sessions.get_mut(&(node, word(4)));
                let (since, counters) = session.expect("a session that no one announced");
                // What waited for room in the socket was sealed before.
                let is_backlog = now - room_since < Duration::from_secs(1);
                let age = now - *since;
                assert!(is_backlog || age <= SESSION, "a session of {age:?} is in use");
                assert!(counters.insert(counter), "the nonce {counter} is used twice");
            }
            other => panic!("that is no message: {other:?}"),
        }
    }

    /// A node asks the same peer at most once in five seconds, but for a change of the network or of the
    /// configuration.
    fn check_initiation(&mut self, now: Duration, node: usize, destination: SocketAddr) {
        let minute = now.saturating_sub(Duration::from_secs(60));
        let times = self.initiations.entry((node, destination)).or_default();
        times.push_back(now);
        while times.front().is_some_and(|at| *at < minute) {
            times.pop_front();
        }
        assert!(times.len() <= 24, "{} initiations in a minute", times.len());
    }

    /// A message arrives at a node.
    pub(crate) fn arrives(&mut self, now: Duration, node: usize, bytes: &[u8]) {
        if let (Some(2), Some(index)) = (bytes.first(), bytes.get(4..8))
            && let Some(index) = index.first_chunk()
            && let Some((since, counters)) = self.sessions.get_mut(&(node, u32::from_le_bytes(*index)))
            && counters.is_empty()
        {
            // A response that was under way for long.
            *since = now;
        }
    }
}
