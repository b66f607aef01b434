//! The query string of a request, and the peers that it selects.

use std::cmp::Reverse;

use weft_report::PeerReport;

/// Maximum number of peers that a query may ask for.
const MOST_NAMED: usize = 1000;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Number of the busiest peers to return; `None` means all.
    pub(super) peers: Option<usize>,
    /// Selects peers with this text in name, key, endpoint or allowed-ips; in lower case.
    pub(super) filter: String,
}

impl Query {
    /// Parses `peers=100&filter=text` or `peers=off`. Unknown parts are ignored.
    pub(super) fn parse(text: Option<&str>) -> Self {
        let mut query = Self::default();
        for part in text.unwrap_or_default().split('&') {
            match part.split_once('=') {
                Some(("peers", "off")) => query.peers = Some(0),
                Some(("peers", count)) => {
                    query.peers = count.parse().ok().map(|count: usize| count.min(MOST_NAMED));
                }
                Some(("filter", text)) => query.filter = decode(text).trim().to_lowercase(),
                _ => {}
            }
        }
        query
    }

    /// Reports whether the query selects all peers.
    pub(super) fn is_whole(&self) -> bool {
        self.peers.is_none() && self.filter.is_empty()
    }

    /// Returns the selected peers, and the number of peers that match the filter.
    pub(super) fn choose(&self, peers: &[PeerReport]) -> (Vec<PeerReport>, usize) {
        let all = peers.iter().enumerate();
        let mut chosen: Vec<(usize, &PeerReport)> = all.filter(|(_, peer)| self.matches(peer)).collect();
        let matching = chosen.len();
        if let Some(count) = self.peers {
            if count > 0 && count < matching {
                chosen.select_nth_unstable_by_key(count - 1, rank);
            }
            chosen.truncate(count);
            chosen.sort_unstable_by_key(rank);
        }
        (chosen.into_iter().map(|(_, peer)| peer.clone()).collect(), matching)
    }

    fn matches(&self, peer: &PeerReport) -> bool {
        let has = |text: &str| text.to_lowercase().contains(&self.filter);
        self.filter.is_empty()
            || peer.settings.friendly_name.as_deref().is_some_and(has)
            || has(&peer.public_key)
            || peer.endpoint.as_deref().is_some_and(has)
            || peer.allowed_ips.iter().any(|net| has(net))
    }
}

/// Sorts by current rate, then by total bytes; idle peers keep their order.
fn rank((place, peer): &(usize, &PeerReport)) -> (Reverse<u64>, Reverse<u64>, usize) {
    let rates = peer.rates.unwrap_or_default();
    let now = rates.tx_bytes_per_second.saturating_add(rates.rx_bytes_per_second);
    (Reverse(now), Reverse(peer.tx_bytes.saturating_add(peer.rx_bytes)), *place)
}

/// Decodes `%2B` and `+` (application/x-www-form-urlencoded).
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_report::Rates;

    fn peer(key: &str, rate: u64, total: u64) -> PeerReport {
        PeerReport {
            public_key: key.to_owned(),
            rx_bytes: total,
            rates: Some(Rates { tx_bytes_per_second: rate, rx_bytes_per_second: 0 }),
            ..PeerReport::default()
        }
    }

    #[test]
    fn a_query_is_read_and_nonsense_is_passed_over() {
        let query = Query::parse(Some("peers=100&filter=B%C3%BCro%2b+1%&x&peers"));
        assert_eq!(query, Query { peers: Some(100), filter: "büro+ 1%".to_owned() });
        assert_eq!(Query::parse(Some("peers=off")).peers, Some(0));
        assert_eq!(Query::parse(Some("peers=99999999")).peers, Some(MOST_NAMED));
        for text in [None, Some(""), Some("peers=-1"), Some("filter="), Some("filter=%20")] {
            assert!(Query::parse(text).is_whole(), "{text:?}");
        }
    }

    #[test]
    fn the_busiest_are_chosen_first_among_those_that_match() {
        let peers = [
            peer("Ka", 0, 9),
            peer("Kb", 5, 0),
            peer("Kc", 0, 0),
            peer("Ke", 0, 0),
            peer("x", 99, 99),
            peer("Kd", 7, 1),
        ];
        let keys = |query: &str| {
            let (chosen, matching) = Query::parse(Some(query)).choose(&peers);
            (chosen.into_iter().map(|peer| peer.public_key).collect::<Vec<_>>().join(" "), matching)
        };
        assert_eq!(keys("peers=3&filter=k"), ("Kd Kb Ka".to_owned(), 5));
        assert_eq!(keys("peers=9"), ("x Kd Kb Ka Kc Ke".to_owned(), 6));
        assert_eq!(keys("peers=off"), (String::new(), 6));
        assert_eq!(keys("filter=kb"), ("Kb".to_owned(), 1));
    }
}
