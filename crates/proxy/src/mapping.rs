//! UDP mappings: which addresses exchange datagrams, and since when they have not.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// A mapping ends after this time without a datagram (RFC 4787, section 4.3: at least 2 minutes).
pub(crate) const MAPPING_TIMEOUT: Duration = Duration::from_secs(120);
/// Mappings of a client.
pub(crate) const MAPPINGS: usize = 1024;

/// What a mapping is about and when it was last used. Bounded: the one that was not used for longest gives
/// way to a new one.
#[derive(Debug)]
pub(crate) struct LastUsed<K>(HashMap<K, Instant>);

impl<K> Default for LastUsed<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

/// The addresses that a socket has sent to, and that may send to it (address and port-dependent filtering,
/// RFC 4787, section 5).
pub(crate) type Peers = LastUsed<SocketAddr>;

impl<K: Copy + Eq + std::hash::Hash> LastUsed<K> {
    /// Records a use now. Returns the mapping that gave way, if there were too many.
    pub(crate) fn insert(&mut self, key: K) -> Option<K> {
        let now = Instant::now();
        let is_new = self.0.insert(key, now).is_none();
        if !is_new || self.0.len() <= MAPPINGS {
            return None;
        }
        let oldest = self.0.iter().filter(|(other, _)| **other != key).min_by_key(|(_, used)| **used);
        let oldest = oldest.map(|(key, _)| *key)?;
        self.0.remove(&oldest);
        Some(oldest)
    }

    /// Records a use now of a mapping that exists. Reports whether it does.
    pub(crate) fn refresh(&mut self, key: K) -> bool {
        let now = Instant::now();
        let used = self.0.get_mut(&key).filter(|used| now.duration_since(**used) < MAPPING_TIMEOUT);
        used.map(|used| *used = now).is_some()
    }

    /// Removes the mappings that have ended, calls `ended` with each, and reports whether none is left.
    pub(crate) fn expire(&mut self, mut ended: impl FnMut(K)) -> bool {
        let now = Instant::now();
        self.0.retain(|key, used| {
            let is_current = now.duration_since(*used) < MAPPING_TIMEOUT;
            if !is_current {
                ended(*key);
            }
            is_current
        });
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_mapping_ends_two_minutes_after_its_last_datagram() {
        let mut peers = Peers::default();
        let (a, b) = ("192.0.2.1:53".parse().unwrap(), "192.0.2.1:54".parse().unwrap());
        peers.insert(a);
        assert!(peers.refresh(a) && !peers.refresh(b));
        tokio::time::advance(MAPPING_TIMEOUT - Duration::from_millis(1)).await;
        assert!(peers.refresh(a) && !peers.expire(|_| ()));
        tokio::time::advance(MAPPING_TIMEOUT).await;
        assert!(!peers.refresh(a), "it had ended");
        let mut ended = Vec::new();
        assert!(peers.expire(|peer| ended.push(peer)));
        assert_eq!(ended, [a]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_mapping_that_was_not_used_for_longest_gives_way() {
        let mut peers = LastUsed::<usize>::default();
        for number in 0..MAPPINGS {
            assert_eq!(peers.insert(number), None);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(peers.refresh(0));
        assert_eq!(peers.insert(MAPPINGS), Some(1));
        assert_eq!(peers.insert(MAPPINGS), None, "it is there already");
        assert!(peers.refresh(0) && !peers.refresh(1) && peers.refresh(2));
    }
}
