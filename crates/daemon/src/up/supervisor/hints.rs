//! Hints about peers for reports and the log: what ICMP says of one that does not answer, and whether its
//! endpoint goes back and forth. They change nothing of the tunnel.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_tunnel::PublicKey;
use weft_udp::Probe;

use crate::status::{Alternation, PeerHints, Refusal};

/// How long an answer of ICMP may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The number of endpoints that are asked about at once, and the pause between two of them.
const PROBES: usize = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// The number of endpoints of a peer that are remembered.
const PLACES: usize = 4;
/// How often a peer comes back to an endpoint until two machines are the likely reason, and within what time.
/// A phone between two networks changes less often.
const RETURNS: u32 = 4;
pub(super) const WINDOW: Duration = PeerHints::RECENT;
/// The number of peers that move of which the endpoints are remembered before old ones are forgotten.
const MOVING: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Hints {
    probes: Vec<Probing>,
    asked: Option<Instant>,
    moving: HashMap<PublicKey, Moves>,
}

#[derive(Debug)]
struct Probing {
    peer: PublicKey,
    endpoint: SocketAddr,
    probe: Probe,
    due: Instant,
}

/// The last endpoints of a peer, the newest last.
#[derive(Debug)]
struct Moves {
    endpoints: Vec<SocketAddr>,
    returns: u32,
    first: Instant,
    latest: Instant,
}

impl Hints {
    /// Reports whether another endpoint may be asked about now: thousands of peers may be silent.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        self.probes.len() < PROBES && self.asked.is_none_or(|asked| now.duration_since(asked) >= PAUSE)
    }

    /// Asks what ICMP says of an endpoint.
    pub(super) fn ask(&mut self, peer: PublicKey, endpoint: SocketAddr, fwmark: u32, now: Instant) {
        self.asked = Some(now);
        match Probe::send(endpoint, fwmark) {
            Ok(probe) => self.probes.push(Probing { peer, endpoint, probe, due: now + PATIENCE }),
            // What the kernel refuses to send of the tunnel is reported.
            Err(error) => tracing::debug!(%peer, %endpoint, %error, "cannot ask about an endpoint"),
        }
    }

    /// Returns what ICMP said of the endpoints of which the answers are due now, and when the next is due.
    pub(super) fn answers(&mut self, now: Instant) -> (Vec<(PublicKey, Refusal)>, Option<Instant>) {
        let due = self.probes.extract_if(.., |probing| probing.due <= now);
        let answers = due.filter_map(|Probing { peer, endpoint, probe, .. }| {
            let says = in_words(&probe.refusal()?);
            Some((peer, Refusal { endpoint, says, at: now }))
        });
        let answers = answers.collect();
        (answers, self.probes.iter().map(|probing| probing.due).min())
    }

    /// Records a new endpoint of a peer. Returns how it goes back and forth, if it does.
    pub(super) fn moved(
        &mut self,
        peer: PublicKey,
        endpoint: SocketAddr,
        now: Instant,
    ) -> Option<Alternation> {
        if self.moving.len() >= MOVING {
            self.moving.retain(|_, moves| now.duration_since(moves.latest) < WINDOW);
        }
        let fresh = || Moves { endpoints: Vec::new(), returns: 0, first: now, latest: now };
        let moves = self.moving.entry(peer).or_insert_with(fresh);
        if now.duration_since(moves.latest) >= WINDOW {
            *moves = fresh();
        }
        moves.latest = now;
        match moves.endpoints.iter().position(|known| *known == endpoint) {
            Some(place) => {
                moves.endpoints.remove(place);
                if moves.returns == 0 {
                    moves.first = now;
                }
                moves.returns += 1;
            }
            None if moves.endpoints.len() == PLACES => drop(moves.endpoints.remove(0)),
            None => {}
        }
        moves.endpoints.push(endpoint);
        let Moves { endpoints, returns, first, latest } = moves;
        (*returns >= RETURNS).then(|| Alternation {
            endpoints: endpoints.clone(),
            returns: *returns,
            first: *first,
            latest: *latest,
        })
    }
}

/// Returns an error of ICMP as a part of a sentence.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "its host answers that no program listens on this UDP port (ICMP port unreachable)".to_owned()
        }
        io::ErrorKind::HostUnreachable => "a router answers that the host is unreachable (ICMP)".to_owned(),
        io::ErrorKind::NetworkUnreachable => {
            "a router answers that the network is unreachable (ICMP)".to_owned()
        }
        _ => format!("the network answers: {error} (ICMP)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 51820))
    }

    /// Moves a peer through these endpoints, ten seconds apart, and returns what is told at the end.
    fn told(hosts: &[u8]) -> Option<Alternation> {
        let (mut hints, start) = (Hints::default(), Instant::now());
        let peer = PublicKey::from_bytes([1; 32]);
        let moves = hosts
            .iter()
            .zip(0..)
            .map(|(host, place)| hints.moved(peer, endpoint(*host), start + Duration::from_secs(10) * place));
        moves.last().flatten()
    }

    #[test]
    fn a_peer_that_goes_back_and_forth_is_told_from_one_that_roams() {
        let shared = told(&[1, 2, 1, 2, 1, 2]).unwrap();
        assert_eq!((shared.endpoints, shared.returns), (vec![endpoint(1), endpoint(2)], 4));
        assert_eq!(shared.latest - shared.first, Duration::from_secs(30));
        // Three machines.
        assert_eq!(told(&[1, 2, 3, 1, 2, 3, 1]).unwrap().returns, 4);
        assert!(told(&[1, 2, 1, 2, 1]).is_none(), "home, elsewhere, home");
        assert!(told(&(1..=40).collect::<Vec<_>>()).is_none(), "a NAT that gives other ports");
    }

    #[test]
    fn moves_of_long_ago_do_not_count() {
        let (mut hints, mut now) = (Hints::default(), Instant::now());
        let peer = PublicKey::from_bytes([1; 32]);
        for host in [1, 2].repeat(20) {
            assert!(hints.moved(peer, endpoint(host), now).is_none());
            now += WINDOW;
        }
    }
}
