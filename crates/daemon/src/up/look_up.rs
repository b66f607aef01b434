//! Looks up names of endpoints within a time limit, for an interface that runs or is adopted: its packets, or
//! its operator, wait meanwhile.
//!
//! Names that are not resolved in time are resolved in the background (`resolve/service.rs`).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use weft_config::{Config, Endpoint};
use weft_confine::EndProcessOnPanic;
use weft_host::resolve::{self, Cancel, ResolveError, Retries};
use weft_tunnel::PublicKey;

use crate::carried_over::PeerAddress;

/// Maximum number of concurrent look-ups.
const AT_ONCE: usize = 8;

type Answer = Result<SocketAddr, ResolveError>;

/// Asks the system for the address of an endpoint.
trait LookUp: Fn(&Endpoint) -> Answer + Clone + Send + 'static {}

impl<T: Fn(&Endpoint) -> Answer + Clone + Send + 'static> LookUp for T {}

/// Endpoints of the peers of a configuration.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Addresses of the peers in the order of the configuration, as far as they are known.
    pub(super) endpoints: Vec<Option<SocketAddr>>,
    /// Peers with a failed look-up, in the order of the configuration. They keep their last address, if
    /// known.
    pub(super) in_vain: Vec<InVain>,
}

/// A peer with a failed look-up.
#[derive(Debug)]
pub(super) struct InVain {
    pub(super) peer: PublicKey,
    /// The last known address.
    pub(super) last: Option<SocketAddr>,
    pub(super) error: ResolveError,
}

impl Found {
    /// Looks up the names that `addresses` asks for, with one attempt each and all within `patience`.
    pub(super) fn of(config: &Config, addresses: &[PeerAddress], patience: Duration) -> Self {
        let once = |endpoint: &Endpoint| resolve::resolve(endpoint, Retries::Limited(0), &Cancel::default());
        Self::with(config, addresses, patience, once)
    }

    fn with(config: &Config, addresses: &[PeerAddress], patience: Duration, by: impl LookUp) -> Self {
        let peers = || config.peers.iter().zip(addresses);
        let wanted = peers().map(|(peer, place)| match place {
            PeerAddress::LookUp { .. } => peer.endpoint.clone(),
            PeerAddress::Known(_) | PeerAddress::None => None,
        });
        let answers = look_up(wanted.collect(), patience, by);
        let mut found = Self::default();
        for ((peer, place), answer) in peers().zip(answers) {
            let address = match (*place, answer) {
                (PeerAddress::Known(address), _) | (PeerAddress::LookUp { .. }, Some(Ok(address))) => {
                    Some(address)
                }
                (PeerAddress::LookUp { last }, Some(Err(error))) => {
                    found.in_vain.push(InVain { peer: peer.public_key, last, error });
                    last
                }
                (PeerAddress::LookUp { .. }, None) | (PeerAddress::None, _) => None,
            };
            found.endpoints.push(address);
        }
        found
    }
}

/// Returns the answers in the order of `endpoints`. Look-ups that run longer than `patience` end later, with
/// no effect.
fn look_up(endpoints: Vec<Option<Endpoint>>, patience: Duration, by: impl LookUp) -> Vec<Option<Answer>> {
    let end = Instant::now() + patience;
    let mut answers: Vec<Option<Answer>> = endpoints.iter().map(|_| None).collect();
    let mut names = VecDeque::new();
    for (place, endpoint) in endpoints.iter().enumerate() {
        match endpoint {
            Some(Endpoint::Address(address)) => answers[place] = Some(Ok(*address)),
            Some(name @ Endpoint::Name { .. }) => names.push_back((place, name.clone())),
            None => {}
        }
    }
    let (answer, answered) = mpsc::channel();
    let threads = names.len().min(AT_ONCE);
    let names = Arc::new(Mutex::new(names));
    for _ in 0..threads {
        let (names, answer, by) = (Arc::clone(&names), answer.clone(), by.clone());
        let next = move || names.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = move || {
            let _guard = EndProcessOnPanic;
            weft_confine::thread(weft_confine::Role::Names);
            while let Some((place, name)) = next() {
                if answer.send((place, by(&name))).is_err() {
                    // The caller no longer waits.
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("weft-look-up".to_owned()).spawn(work) {
            tracing::warn!("cannot start a thread to look names up: {error}");
        }
    }
    drop(answer);
    while let Ok((place, found)) = answered.recv_timeout(end.saturating_duration_since(Instant::now())) {
        answers[place] = Some(found);
    }
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} s", patience.as_secs()));
    let late = |endpoint: Endpoint| Err(ResolveError::Failed { endpoint, error: late() });
    let all = answers.into_iter().zip(endpoints);
    all.map(|(answer, endpoint)| answer.or_else(|| endpoint.map(late))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weft_tunnel::PrivateKey;

    use super::*;

    fn name(host: &str) -> Option<Endpoint> {
        Some(Endpoint::Name { host: host.to_owned(), port: 7 })
    }

    fn at(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 7).into()
    }

    #[test]
    fn names_without_an_answer_do_not_delay_the_others() {
        let (never, silence) = mpsc::channel::<()>();
        let silence = Arc::new(Mutex::new(silence));
        let by = move |endpoint: &Endpoint| match endpoint.to_string().as_str() {
            "here.example:7" => Ok(at(1)),
            "refused.example:7" => Err(ResolveError::Cancelled { endpoint: endpoint.clone() }),
            _ => {
                let _ended = silence.lock().unwrap().recv();
                Ok(at(9))
            }
        };
        let mut wanted = vec![name("silent.example"), None, name("refused.example"), name("here.example")];
        wanted.extend([Some(Endpoint::Address(at(2))), name("silent.too.example")]);
        let answers = look_up(wanted, Duration::from_secs(3), by);
        drop(never);
        let told: Vec<String> = answers
            .into_iter()
            .map(|answer| match answer {
                None => "nothing".to_owned(),
                Some(Ok(address)) => address.to_string(),
                Some(Err(ResolveError::Failed { error, .. })) => error.to_string(),
                Some(Err(ResolveError::Cancelled { .. })) => "cancelled".to_owned(),
            })
            .collect();
        let late = "no answer in 3 s";
        assert_eq!(told, [late, "nothing", "cancelled", "192.0.2.1:7", "192.0.2.2:7", late]);
    }

    #[test]
    fn more_names_than_are_looked_up_at_once_are_all_looked_up() {
        let wanted = (0..3 * AT_ONCE).map(|number| name(&format!("{number}.example"))).collect();
        let by = |endpoint: &Endpoint| match endpoint {
            Endpoint::Name { host, .. } => Ok(at(host.split('.').next().unwrap().parse().unwrap())),
            Endpoint::Address(address) => Ok(*address),
        };
        let answers = look_up(wanted, Duration::from_secs(120), by);
        let found: Vec<SocketAddr> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
        assert_eq!(found, (0..u8::try_from(3 * AT_ONCE).unwrap()).map(at).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_that_is_not_found_is_where_it_was() {
        let key = |seed| PrivateKey::from_bytes([seed; 32]).public_key();
        let own = PrivateKey::from_bytes([9; 32]);
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *own.to_base64());
        for seed in 1..=4 {
            text += &format!("[Peer]\nPublicKey = {}\nEndpoint = vpn.example:7\n", key(seed));
        }
        let config = weft_config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config;
        let last = Some(at(3));
        let addresses = [
            PeerAddress::Known(at(1)),
            PeerAddress::None,
            PeerAddress::LookUp { last },
            PeerAddress::LookUp { last: None },
        ];
        let by = |endpoint: &Endpoint| Err(ResolveError::Cancelled { endpoint: endpoint.clone() });
        let found = Found::with(&config, &addresses, Duration::from_secs(120), by);
        assert_eq!(found.endpoints, [Some(at(1)), None, last, None]);
        let in_vain: Vec<_> = found.in_vain.iter().map(|name| (name.peer, name.last)).collect();
        assert_eq!(in_vain, [(key(3), last), (key(4), None)]);
    }
}
