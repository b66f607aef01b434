//! Looks up names of endpoints within a time limit: an operator waits meanwhile, or the packets of an
//! interface that is adopted.
//!
//! Names that are not resolved in time are resolved in the background (`resolve/service.rs`).

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use weft_config::{Config, Endpoint, KillSwitch, Peer};
use weft_confine::EndProcessOnPanic;
use weft_host::misrouted::leads_back;
use weft_host::resolve::{Cancel, LookUp, ResolveError, Retries, Tunnel};
use weft_host::routes::Netlink;
use weft_tunnel::PublicKey;

use crate::carried_over::PeerAddress;
use crate::service_manager::Starting;

/// Maximum number of concurrent look-ups.
const AT_ONCE: usize = 8;
/// How long a start or a reload waits for the answers: well within the time that `weft reload` waits
/// (`control_socket/client.rs` of `weft_report`).
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How long names are looked up before an adopted interface continues: its packets wait meanwhile. A resolver
/// that got no answer to its first query asks again after 5 s (resolv.conf(5), `timeout`).
const PATIENCE_WHILE_PACKETS_WAIT: Duration = Duration::from_secs(10);

type Answer = Result<SocketAddr, ResolveError>;

/// Returns the addresses of endpoints that are names, by `host:port`; `address` returns that of the peer at a
/// place of the configuration.
pub(super) fn addresses_of_names(
    config: &Config,
    address: impl Fn(usize, &PublicKey) -> Option<SocketAddr>,
) -> BTreeMap<String, SocketAddr> {
    let named = config.peers.iter().enumerate().filter_map(|(place, peer)| match &peer.endpoint {
        Some(name @ Endpoint::Name { .. }) => Some((name.to_string(), address(place, &peer.public_key)?)),
        _ => None,
    });
    named.collect()
}

/// Asks for all endpoints.
fn all(config: &Config) -> Vec<PeerAddress> {
    let all = config.peers.iter().map(|peer| match peer.endpoint {
        Some(_) => PeerAddress::LookUp { last: None },
        None => PeerAddress::None,
    });
    all.collect()
}

/// Reports whether look-ups may need the tunnel once it is up: its name servers, its default route (also as
/// two halves) or its kill switch leave no other way.
fn closes_the_way_to_name_servers(config: &Config) -> bool {
    let host = &config.interface.host;
    let mut prefixes = config.peers.iter().flat_map(|peer| &peer.allowed_ips);
    host.kill_switch != KillSwitch::Off
        || !host.dns.is_empty()
        || prefixes.any(|prefix| prefix.prefix_len() <= 1)
}

/// Asks for the address of an endpoint.
trait AskFor: Fn(&Endpoint) -> Answer + Clone + Send + 'static {}

impl<T: Fn(&Endpoint) -> Answer + Clone + Send + 'static> AskFor for T {}

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
    /// Looks up all names by the system, with one attempt each.
    pub(super) fn once(config: &Config, cancel: &Cancel) -> Self {
        let look_up = LookUp::by_system();
        let by = move |endpoint: &Endpoint| look_up.endpoint(endpoint);
        Self::with(config, &all(config), PATIENCE, cancel, by)
    }

    /// Looks up all names for a start, which waits and tries again until all resolve, if look-ups may need
    /// the tunnel from then on. Otherwise it waits only if every peer has a name, until one of them resolves,
    /// and the rest is resolved in the background: one name that is gone must not keep a gateway down.
    ///
    /// # Errors
    /// When a name that the start waits for has no address after all retries, or when the start is
    /// cancelled.
    pub(super) fn at_start(config: &Config, retries: Retries, cancel: &Cancel) -> Result<Self, ResolveError> {
        Self::at_start_with(config, retries, |config| Self::once(config, cancel), |pause| cancel.wait(pause))
    }

    fn at_start_with(
        config: &Config,
        retries: Retries,
        mut once: impl FnMut(&Config) -> Self,
        mut wait: impl FnMut(Duration) -> bool,
    ) -> Result<Self, ResolveError> {
        let has_name = |peer: &Peer| matches!(peer.endpoint, Some(Endpoint::Name { .. }));
        let needs_one = config.peers.iter().all(has_name);
        let needs_all = closes_the_way_to_name_servers(config);
        let mut failures = 0;
        loop {
            let mut found = once(config);
            let is_reachable = !needs_one || found.endpoints.iter().any(Option::is_some);
            if found.in_vain.is_empty() || (is_reachable && !needs_all) {
                return Ok(found);
            }
            let InVain { error, .. } = found.in_vain.swap_remove(0);
            if error.lacks_interface() {
                return Err(error);
            }
            failures += 1;
            let Some(pause) = retries.pause_after(failures) else { return Err(error) };
            tracing::warn!("{error}; trying again in {} s", pause.as_secs());
            if wait(pause) {
                let (ResolveError::Failed { endpoint, .. } | ResolveError::Cancelled { endpoint }) = error;
                return Err(ResolveError::Cancelled { endpoint });
            }
        }
    }

    /// Looks up the names that `addresses` asks for, with one attempt each and all within `patience`.
    pub(super) fn of(
        config: &Config,
        addresses: &[PeerAddress],
        patience: Duration,
        look_up: &LookUp,
    ) -> Self {
        let look_up = look_up.clone();
        let by = move |endpoint: &Endpoint| look_up.endpoint(endpoint);
        Self::with(config, addresses, patience, &Cancel::default(), by)
    }

    fn with(
        config: &Config,
        addresses: &[PeerAddress],
        patience: Duration,
        cancel: &Cancel,
        by: impl AskFor,
    ) -> Self {
        let peers = || config.peers.iter().zip(addresses);
        let wanted = peers().map(|(peer, place)| match place {
            PeerAddress::LookUp { .. } => peer.endpoint.clone(),
            PeerAddress::Known(_) | PeerAddress::None => None,
        });
        let answers = look_up(wanted.collect(), patience, cancel, by);
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

/// What a daemon that crashed has left and look-ups have to know, from before it is undone.
pub(super) struct BeforeStart {
    /// Its tunnel.
    tunnel: Option<Tunnel>,
    /// The last addresses of names, if its kill switch is still in force.
    remembered: BTreeMap<String, SocketAddr>,
}

impl BeforeStart {
    pub(super) fn of(directory: &Path, config: &Config) -> Self {
        let interface = &config.interface.name;
        let tunnel = Tunnel::left_behind(directory, interface);
        Self { tunnel, remembered: weft_host::remembered(directory, interface) }
    }

    /// Returns the endpoints of the peers at the start. If a daemon left a kill switch in force, which blocks
    /// what the system looks up, a name that is not found keeps its last address.
    pub(super) fn resolve_endpoints(self, config: &Config, cancel: &Cancel) -> Result<Found, ResolveError> {
        let Self { tunnel, remembered } = self;
        if remembered.is_empty() {
            let has_names =
                config.peers.iter().any(|peer| matches!(peer.endpoint, Some(Endpoint::Name { .. })));
            let _patience =
                if has_names { Starting::waiting_for("looking up the peers' endpoints") } else { None };
            return Found::at_start(config, Retries::from_environment(), cancel);
        }
        let address = |endpoint: &Endpoint| PeerAddress::LookUp {
            last: remembered.get(&endpoint.to_string()).copied(),
        };
        let addresses: Vec<PeerAddress> = config
            .peers
            .iter()
            .map(|peer| peer.endpoint.as_ref().map_or(PeerAddress::None, address))
            .collect();
        Ok(known_endpoints(config, &addresses, tunnel))
    }

    /// Returns the endpoints of the peers of an interface that goes on, as far as they are known.
    /// A peer at an address within the tunnel, where its packets would go round in circles, is looked for at
    /// the endpoint of the file.
    pub(super) fn known_endpoints(&self, config: &Config, addresses: &[PeerAddress]) -> Found {
        let elsewhere = |(peer, place): (&Peer, &PeerAddress)| match place {
            PeerAddress::Known(here) if is_elsewhere(peer, *here) => Some(*here),
            _ => None,
        };
        let moved: Vec<SocketAddr> = config.peers.iter().zip(addresses).filter_map(elsewhere).collect();
        let strays = self.tunnel.as_ref().map_or_else(HashSet::new, |tunnel| leading_back(tunnel, &moved));
        let places = config.peers.iter().zip(addresses).map(|(peer, place)| match place {
            PeerAddress::Known(here) if is_elsewhere(peer, *here) && strays.contains(here) => {
                PeerAddress::LookUp { last: None }
            }
            place => *place,
        });
        known_endpoints(config, &places.collect::<Vec<_>>(), self.tunnel.clone())
    }
}

/// Reports whether a peer is elsewhere than at the endpoint of the file.
pub(super) fn is_elsewhere(peer: &Peer, here: SocketAddr) -> bool {
    peer.endpoint.as_ref().is_some_and(|of_file| *of_file != Endpoint::Address(here))
}

/// Returns those of these endpoints to which a tunnel's own packets leave through its device.
fn leading_back(tunnel: &Tunnel, endpoints: &[SocketAddr]) -> HashSet<SocketAddr> {
    let netlink = (!endpoints.is_empty()).then(Netlink::open).and_then(Result::ok);
    let Some(netlink) = netlink else { return HashSet::new() };
    let leads_back = |to: &&SocketAddr| leads_back(&netlink, tunnel.interface.as_str(), **to, tunnel.mark);
    endpoints.iter().filter(leads_back).copied().collect()
}

/// Returns the endpoints of the peers of an interface that is adopted, or started behind the kill switch of
/// one, as far as they are known. Names are looked up once here, past what was left of the tunnel, and again
/// in the background. If the name servers are only reachable through this tunnel, which forwards nothing at
/// this point, the peers keep their last addresses; the tunnel that comes up with these leads to the name
/// servers.
fn known_endpoints(config: &Config, addresses: &[PeerAddress], left: Option<Tunnel>) -> Found {
    let found = Found::of(config, addresses, PATIENCE_WHILE_PACKETS_WAIT, &LookUp::past(left));
    for InVain { peer, last, error } in &found.in_vain {
        match last {
            Some(last) => {
                tracing::warn!(%peer, "{error}; it is tried again in the background, and the peer is looked for at {last}");
            }
            None => tracing::warn!(
                %peer,
                "{error}; it is tried again in the background: where the name servers are reached through this tunnel \
                 alone, stop the interface and start it again"
            ),
        }
    }
    found
}

/// Returns the answers in the order of `endpoints`. Look-ups that run longer than `patience`, or are
/// cancelled, end later, with no effect.
fn look_up(
    endpoints: Vec<Option<Endpoint>>,
    patience: Duration,
    cancel: &Cancel,
    by: impl AskFor,
) -> Vec<Option<Answer>> {
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
    let mut missing = names.len();
    let threads = missing.min(AT_ONCE);
    let names = Arc::new(Mutex::new(names));
    for _ in 0..threads {
        let (names, answer, by) = (Arc::clone(&names), answer.clone(), by.clone());
        let next = move || names.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = move || {
            let _guard = EndProcessOnPanic;
            weft_confine::thread(weft_confine::Role::Names);
            while let Some((place, name)) = next() {
                if answer.send(Some((place, by(&name)))).is_err() {
                    // The caller no longer waits.
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("weft-look-up".to_owned()).spawn(work) {
            tracing::warn!("cannot start a thread to look names up: {error}");
        }
    }
    if missing > 0 {
        cancel.then(move || drop(answer.send(None)));
    }
    while missing > 0
        && let Ok(Some((place, found))) = answered.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        answers[place] = Some(found);
        missing -= 1;
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
        let answers = look_up(wanted, Duration::from_secs(3), &Cancel::default(), by);
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
        let answers = look_up(wanted, Duration::from_secs(120), &Cancel::default(), by);
        let found: Vec<SocketAddr> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
        assert_eq!(found, (0..u8::try_from(3 * AT_ONCE).unwrap()).map(at).collect::<Vec<_>>());
    }

    fn config(endpoints: &[&str]) -> Config {
        let key = |seed| PrivateKey::from_bytes([seed; 32]);
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *key(99).to_base64());
        for (seed, endpoint) in (1..).zip(endpoints) {
            text += &format!("[Peer]\nPublicKey = {}\n{endpoint}\n", key(seed).public_key());
        }
        weft_config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config
    }

    /// A start when only those names resolve which `is_known` says after so many failures. Returns the
    /// endpoints and the pauses.
    fn start(
        config: &Config,
        is_known: impl Fn(&str, usize) -> bool + Clone + Send + 'static,
    ) -> (Result<Found, ResolveError>, Vec<u64>) {
        let pauses = std::cell::RefCell::new(Vec::new());
        let once = |config: &Config| {
            let (is_known, failures) = (is_known.clone(), pauses.borrow().len());
            let by = move |endpoint: &Endpoint| match endpoint {
                Endpoint::Name { host, .. } if is_known(host, failures) => Ok(at(7)),
                _ => {
                    Err(ResolveError::Failed { endpoint: endpoint.clone(), error: io::Error::other("none") })
                }
            };
            Found::with(config, &all(config), Duration::from_secs(120), &Cancel::default(), by)
        };
        let wait = |pause: Duration| {
            pauses.borrow_mut().push(pause.as_secs());
            false
        };
        let found = Found::at_start_with(config, Retries::Limited(3), once, wait);
        (found, pauses.into_inner())
    }

    #[test]
    fn a_start_waits_until_a_name_resolves_and_goes_on_without_those_that_do_not() {
        let names = config(&["Endpoint = a.example:7", "Endpoint = b.example:7"]);
        let (found, pauses) = start(&names, |host, failures| host == "b.example" && failures == 2);
        let found = found.unwrap();
        assert_eq!((found.endpoints, pauses), (vec![None, Some(at(7))], vec![1, 2]));
        assert_eq!(found.in_vain.len(), 1);
        let (none, pauses) = start(&names, |_, _| false);
        assert!(none.unwrap_err().to_string().contains("a.example:7: none"));
        assert_eq!(pauses, [1, 2, 4]);
    }

    #[test]
    fn a_start_does_not_wait_for_an_interface_that_an_endpoint_is_on() {
        let (none, pauses) = start(&config(&["Endpoint = [fe80::1%no-such-link]:7"]), |_, _| false);
        let told = none.unwrap_err().to_string();
        assert!(told.contains("behind the %") && !told.contains("name servers"), "{told}");
        assert!(pauses.is_empty(), "{pauses:?}");
    }

    #[test]
    fn a_start_waits_for_all_names_if_they_could_not_be_looked_up_later() {
        let peers = ["Endpoint = a.example:7", "Endpoint = b.example:7", "Endpoint = 192.0.2.9:7"];
        let late = |host: &str, failures: usize| host == "a.example" || failures == 2;
        let plain = config(&peers);
        let mut closed = [plain.clone(), plain.clone(), plain.clone()];
        closed[0].interface.host.kill_switch = KillSwitch::AllowLocal;
        closed[1].interface.host.dns.servers.push(at(53).ip());
        closed[2].peers[2].allowed_ips.push("128.0.0.0/1".parse().unwrap());
        for config in closed {
            let (found, pauses) = start(&config, late);
            assert_eq!((found.unwrap().in_vain.len(), pauses), (0, vec![1, 2]));
            let (without, _) = start(&config, |host, _| host == "a.example");
            assert!(without.unwrap_err().to_string().contains("b.example:7: none"));
        }
        assert_eq!(start(&plain, late).0.unwrap().in_vain.len(), 1);
    }

    #[test]
    fn a_start_does_not_wait_for_names_if_a_peer_needs_none() {
        for other in ["", "Endpoint = 192.0.2.9:7"] {
            let (found, pauses) = start(&config(&["Endpoint = a.example:7", other]), |_, _| false);
            let found = found.unwrap();
            assert_eq!((found.endpoints[0], found.in_vain.len(), pauses.len()), (None, 1, 0), "{other}");
        }
    }

    #[test]
    fn a_peer_that_is_not_found_is_where_it_was() {
        let key = |seed| PrivateKey::from_bytes([seed; 32]).public_key();
        let config = config(&["Endpoint = vpn.example:7"; 4]);
        let last = Some(at(3));
        let addresses = [
            PeerAddress::Known(at(1)),
            PeerAddress::None,
            PeerAddress::LookUp { last },
            PeerAddress::LookUp { last: None },
        ];
        let by = |endpoint: &Endpoint| Err(ResolveError::Cancelled { endpoint: endpoint.clone() });
        let found = Found::with(&config, &addresses, Duration::from_secs(120), &Cancel::default(), by);
        assert_eq!(found.endpoints, [Some(at(1)), None, last, None]);
        let in_vain: Vec<_> = found.in_vain.iter().map(|name| (name.peer, name.last)).collect();
        assert_eq!(in_vain, [(key(3), last), (key(4), None)]);
    }
}
