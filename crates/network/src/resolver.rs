//! Looks up names at the DNS servers of the configuration, through a [`Network`] and nowhere else: never at
//! the host's servers, in its files, or by its library.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};
use weft_config::Domain;
use weft_dns_message::{Answer, Pair, Query};

use crate::datagram;
use crate::network::{LookUpError, Network};

/// How long each server has for an answer, in rounds over all servers. The first query of a session may have
/// to wait for a handshake, which is tried again after 5 s.
const ROUNDS: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(5)];
/// How long the answer of one family waits for that of the other (RFC 8305, section 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// Names in the cache.
const CACHED: usize = 1024;
/// An address is looked up again after this time at the latest.
const MAX_TTL: Duration = Duration::from_secs(300);
/// A burst of connections to one name needs one query, even if the name must not be cached, or has none.
const MIN_TTL: Duration = Duration::from_secs(1);
/// The port of DNS servers.
const PORT: u16 = 53;

/// The DNS servers of a configuration, and what they answered.
#[derive(Debug, Default)]
pub struct Resolver {
    servers: Vec<SocketAddr>,
    search: Vec<Domain>,
    cache: Mutex<HashMap<String, Known>>,
}

/// What is known of a name. Locked while its servers are asked: all who want it wait for one answer.
type Known = Arc<tokio::sync::Mutex<Option<Cached>>>;

#[derive(Clone, Debug)]
struct Cached {
    found: Result<Vec<IpAddr>, LookUpError>,
    until: Instant,
}

impl Resolver {
    /// Creates a resolver that asks these servers in order. Short names get the domains in `search` appended.
    pub fn new(servers: &[IpAddr], search: &[Domain]) -> Self {
        Self::with_ports(servers.iter().map(|server| (*server, PORT).into()).collect(), search)
    }

    pub(crate) fn with_ports(servers: Vec<SocketAddr>, search: &[Domain]) -> Self {
        Self { servers, search: search.to_vec(), cache: Mutex::default() }
    }

    /// Creates a resolver that knows `localhost` alone.
    pub fn without_servers() -> Self {
        Self::default()
    }

    /// Returns the addresses of a name, at least one. The network carries the queries.
    ///
    /// # Errors
    /// Those of [`LookUpError`].
    pub async fn look_up(&self, network: &dyn Network, name: &str) -> Result<Vec<IpAddr>, LookUpError> {
        let bare = name.strip_suffix('.').unwrap_or(name);
        // RFC 6761, section 6.3: never asked for.
        if bare == "localhost" || bare.ends_with(".localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        if self.servers.is_empty() {
            return Err(LookUpError::NoServers { name: name.to_owned() });
        }
        let mut result = Err(LookUpError::NotFound { name: name.to_owned() });
        for candidate in self.candidates(name) {
            result = self.look_up_one(network, &candidate).await;
            if !matches!(result, Err(LookUpError::NotFound { .. } | LookUpError::NoAddress { .. })) {
                break;
            }
        }
        result
    }

    /// A name with a dot is complete; a short one may be meant in each of the search domains.
    fn candidates(&self, name: &str) -> Vec<String> {
        let is_complete = name.contains('.');
        let domains = self.search.iter().filter(|domain| !is_complete && !domain.is_root());
        weft_dns_message::candidates(name, domains.map(Domain::as_str), 1)
    }

    async fn look_up_one(&self, network: &dyn Network, name: &str) -> Result<Vec<IpAddr>, LookUpError> {
        let known = self.known(name);
        let mut known = known.lock().await;
        if let Some(cached) = &*known
            && cached.until > Instant::now()
        {
            return cached.found.clone();
        }
        let mut ttl = MIN_TTL;
        let found = self.ask_all(network, name).await.and_then(|answer| {
            let name = name.to_owned();
            match (answer.addresses.is_empty(), answer.exists) {
                (true, true) => Err(LookUpError::NoAddress { name }),
                (true, false) => Err(LookUpError::NotFound { name }),
                (false, _) => {
                    ttl = answer.ttl;
                    Ok(answer.addresses)
                }
            }
        });
        let until = Instant::now() + ttl.clamp(MIN_TTL, MAX_TTL);
        *known = Some(Cached { found: found.clone(), until });
        found
    }

    fn cache(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is known of a name, or room for it.
    fn known(&self, name: &str) -> Known {
        let mut cache = self.cache();
        if cache.len() >= CACHED && !cache.contains_key(name) {
            let now = Instant::now();
            // One that is locked is being asked for.
            let is_wanted = |known: &Known| {
                known.try_lock().map_or(true, |known| known.as_ref().is_some_and(|cached| cached.until > now))
            };
            cache.retain(|_, known| is_wanted(known));
            if cache.len() >= CACHED {
                cache.clear();
            }
        }
        Arc::clone(cache.entry(name.to_owned()).or_default())
    }

    async fn ask_all(&self, network: &dyn Network, name: &str) -> Result<Answer, LookUpError> {
        let mut result = Err(LookUpError::NoServers { name: name.to_owned() });
        for patience in ROUNDS {
            for server in &self.servers {
                let failed = match ask(network, *server, name, patience).await {
                    Ok(answer) => return Ok(answer),
                    Err(failed) => failed,
                };
                let reason = match failed.kind() {
                    io::ErrorKind::TimedOut => "no answer".to_owned(),
                    io::ErrorKind::NetworkUnreachable => {
                        "no route to it in the tunnel; is it in the AllowedIPs of a peer?".to_owned()
                    }
                    _ => failed.to_string(),
                };
                result = Err(LookUpError::NoAnswer { name: name.to_owned(), server: server.ip(), reason });
            }
        }
        result
    }
}

/// Asks a server for the addresses of both families at once.
async fn ask(
    network: &dyn Network,
    server: SocketAddr,
    name: &str,
    patience: Duration,
) -> io::Result<Answer> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A port for each name, chosen by the system (RFC 5452, section 9).
    let socket = network.udp((any, 0).into())?;
    let mut pair = Pair::new(name)?;
    for query in pair.queries() {
        datagram::send(&*socket, query.bytes(), server).await?;
    }
    let mut deadline = Instant::now() + patience;
    while !pair.is_complete() {
        let Ok(received) = timeout_at(deadline, datagram::receive(&*socket, 0)).await else { break };
        let (bytes, from) = received?;
        if from != server {
            continue;
        }
        let Some(place) = pair.answered_by(&bytes) else { continue };
        let query = &pair.queries()[place];
        let whole = if weft_dns_message::is_truncated(&bytes) {
            let patience = deadline.saturating_duration_since(Instant::now());
            timeout(patience, ask_by_tcp(network, server, query))
                .await
                .unwrap_or_else(|late| Err(late.into()))
        } else {
            query.read(&bytes)
        };
        if pair.put(place, whole) {
            deadline = deadline.min(Instant::now() + RESOLUTION_DELAY);
        }
    }
    // Where IPv6 is not reachable, the next address is tried.
    pair.end()
}

/// Asks again for an answer that did not fit into a datagram (RFC 7766).
async fn ask_by_tcp(network: &dyn Network, server: SocketAddr, query: &Query) -> io::Result<Answer> {
    let mut stream = network.connect(server).await?;
    let len = u16::try_from(query.bytes().len()).unwrap_or(u16::MAX);
    stream.write_all(&[&len.to_be_bytes(), query.bytes()].concat()).await?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    if query.is_answered_by(&bytes) { query.read(&bytes) } else { Err(weft_dns_message::unusable()) }
}
