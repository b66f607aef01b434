//! The thread that looks endpoints' names up again, so that nobody waits for name servers.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use weft_tun::thread_guard::EndProcessOnPanic;
use weft_tunnel::PublicKey;

use super::names::{Name, Names, Watched};

/// Looks names up for as long as it lives.
///
/// A look-up under way when it is dropped ends later, on its own, and has no effect.
#[derive(Debug)]
pub struct Resolver {
    handle: Handle,
}

/// Tells a [`Resolver`] what happened. No call waits; clones tell the same one.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    told: Mutex<Told>,
    changed: Condvar,
}

/// What was told since the thread last looked: no more than one thing a peer.
#[derive(Debug, Default)]
struct Told {
    peers: Option<Vec<Watched>>,
    news: HashMap<PublicKey, News>,
    network_changed: bool,
    stop: bool,
}

#[derive(Debug)]
enum News {
    Stale,
    Unanswered(u32),
    Heard(Option<SocketAddr>),
}

impl Told {
    /// The latest counts.
    fn note(&mut self, peer: PublicKey, news: News) {
        self.news.insert(peer, news);
    }

    fn is_empty(&self) -> bool {
        self.peers.is_none() && self.news.is_empty() && !self.network_changed && !self.stop
    }
}

impl Resolver {
    /// Starts the thread, in the namespaces of the calling one, without a peer. `on_change` is called on it with
    /// every peer that has to be sent to another address, and must not wait for the resolver.
    pub fn start(on_change: impl FnMut(PublicKey, SocketAddr) + Send + 'static) -> io::Result<Self> {
        Self::start_with(look_up, on_change)
    }

    /// The same with another source of addresses.
    pub fn start_with(
        look_up: impl FnMut(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
        on_change: impl FnMut(PublicKey, SocketAddr) + Send + 'static,
    ) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let worker = Worker {
            inbox: inbox.clone(),
            names: Names::new(rand::random()),
            look_up,
            on_change,
            failing: HashMap::new(),
        };
        thread::Builder::new().name("weft-names".to_owned()).spawn(move || {
            let _guard = EndProcessOnPanic;
            worker.run();
        })?;
        Ok(Self { handle: Handle { inbox } })
    }

    /// For those who know what happens.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.handle.tell(|told| told.stop = true);
    }
}

impl Handle {
    /// These peers are watched from now on, and no others. Peers whose endpoint is an address are passed over; a
    /// name without a current address is looked up at once, and again until it has one.
    pub fn set_peers(&self, peers: Vec<Watched>) {
        self.tell(|told| told.peers = Some(peers));
    }

    /// The peer does not answer handshakes although there is something to send: its handshake failed
    /// ([`weft_tunnel::Event::HandshakeFailed`]), or the last one is older than 180 s. To be told again while it
    /// lasts.
    pub fn stale(&self, peer: PublicKey) {
        self.tell(|told| told.note(peer, News::Stale));
    }

    /// So many handshake initiations to the peer remained without an answer until now
    /// ([`weft_tunnel::Event::HandshakeUnanswered`]). To be told again while it lasts.
    pub fn unanswered(&self, peer: PublicKey, initiations: u32) {
        self.tell(|told| {
            // That it failed altogether says more.
            if !matches!(told.news.get(&peer), Some(News::Stale)) {
                told.note(peer, News::Unanswered(initiations));
            }
        });
    }

    /// The peer's handshake came through.
    pub fn handshake(&self, peer: PublicKey) {
        self.tell(|told| {
            // Where it moved to is not forgotten.
            if !matches!(told.news.get(&peer), Some(News::Heard(_))) {
                told.note(peer, News::Heard(None));
            }
        });
    }

    /// The peer was heard from another address than before, or was given one by hand.
    pub fn moved(&self, peer: PublicKey, to: SocketAddr) {
        self.tell(|told| told.note(peer, News::Heard(Some(to))));
    }

    /// Addresses, routes or name servers of this machine changed.
    pub fn network_changed(&self) {
        self.tell(|told| told.network_changed = true);
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.inbox.lock());
        self.inbox.changed.notify_one();
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was told, when there is something or it is time.
    fn wait(&self, until: Option<Instant>) -> Told {
        let told = self.lock();
        let mut told = match until {
            Some(until) => {
                let pause = until.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout_while(told, pause, |told| told.is_empty());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                self.changed.wait_while(told, |told| told.is_empty()).unwrap_or_else(PoisonError::into_inner)
            }
        };
        std::mem::take(&mut told)
    }
}

struct Worker<L, C> {
    inbox: Arc<Inbox>,
    names: Names,
    look_up: L,
    on_change: C,
    /// Names whose last look-up failed, and with what: each failure is told once.
    failing: HashMap<Name, String>,
}

impl<L, C> Worker<L, C>
where
    L: FnMut(&str, u16) -> io::Result<Vec<SocketAddr>>,
    C: FnMut(PublicKey, SocketAddr),
{
    fn run(mut self) {
        loop {
            let told = self.inbox.wait(self.names.poll_timeout());
            if !self.handle(told) {
                return;
            }
            self.report();
            let Some(name) = self.names.poll_lookup(Instant::now()) else { continue };
            let answer = (self.look_up)(&name.host, name.port);
            // What happened meanwhile counts: a peer that speaks again stays where it is.
            let told = std::mem::take(&mut *self.inbox.lock());
            if !self.handle(told) {
                return;
            }
            let addresses = self.judge(&name, answer);
            self.names.handle_answer(&name, &addresses, Instant::now());
            self.report();
        }
    }

    /// Says whether to go on.
    fn handle(&mut self, told: Told) -> bool {
        let now = Instant::now();
        if let Some(peers) = told.peers {
            self.names.set_peers(peers, now);
        }
        if told.network_changed {
            self.names.handle_network_change(now);
        }
        for (peer, news) in told.news {
            match news {
                News::Stale => self.names.handle_stale(&peer, now),
                News::Unanswered(initiations) => self.names.handle_unanswered(&peer, initiations, now),
                News::Heard(from) => self.names.handle_heard(&peer, from),
            }
        }
        !told.stop
    }

    fn report(&mut self) {
        while let Some((peer, address)) = self.names.poll_change() {
            tracing::info!(%peer, %address, "the peer's endpoint was resolved to another address");
            (self.on_change)(peer, address);
        }
    }

    fn judge(&mut self, name: &Name, answer: io::Result<Vec<SocketAddr>>) -> Vec<SocketAddr> {
        let problem = match answer {
            Ok(addresses) if !addresses.is_empty() => {
                if self.failing.remove(name).is_some() {
                    tracing::info!("the endpoint {}:{} resolves again", name.host, name.port);
                }
                return addresses;
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        if self.failing.get(name) != Some(&problem) {
            tracing::warn!("cannot resolve the endpoint {}:{}: {problem}; trying on", name.host, name.port);
            self.failing.insert(name.clone(), problem);
        }
        Vec::new()
    }
}

/// All addresses, as the system orders them (RFC 6724), none twice.
fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for address in (host, port).to_socket_addrs()? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use weft_config::Endpoint;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn watched(byte: u8, current: Option<&str>) -> Watched {
        Watched {
            peer: PublicKey::from_bytes([byte; 32]),
            endpoint: Endpoint::Name { host: format!("peer{byte}.example"), port: 7 },
            current: current.map(|current| current.parse().unwrap()),
        }
    }

    #[test]
    fn an_unresolved_name_is_looked_up_without_anybody_waiting() {
        let (asked, questions) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let (change, changes) = mpsc::channel();
        let look_up = move |host: &str, port| {
            let _ = asked.send((host.to_owned(), port));
            answers.recv().map_err(io::Error::other)
        };
        let resolver = Resolver::start_with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        })
        .unwrap();
        let handle = resolver.handle();
        handle.set_peers(vec![watched(1, None)]);
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), ("peer1.example".to_owned(), 7));
        // The look-up is under way, and what is told does not wait for it.
        handle.network_changed();
        answer.send(vec!["192.0.2.1:7".parse().unwrap()]).unwrap();
        let change = changes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(change, (watched(1, None).peer, "192.0.2.1:7".parse().unwrap()));
    }

    #[test]
    fn a_peer_that_speaks_during_the_look_up_stays_where_it_is() {
        let (asked, questions) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let (change, changes) = mpsc::channel();
        let look_up = move |host: &str, _| {
            let _ = asked.send(host.to_owned());
            answers.recv().map_err(io::Error::other)
        };
        let resolver = Resolver::start_with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        })
        .unwrap();
        let handle = resolver.handle();
        let (roaming, waiting) = (watched(1, Some("192.0.2.1:7")), watched(2, None));
        handle.set_peers(vec![roaming.clone()]);
        handle.stale(roaming.peer);
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), "peer1.example");
        handle.moved(roaming.peer, "198.51.100.9:9".parse().unwrap());
        answer.send(vec!["192.0.2.2:7".parse().unwrap()]).unwrap();
        // The next answer's change is the first there is.
        handle.set_peers(vec![roaming, waiting.clone()]);
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), "peer2.example");
        answer.send(vec!["192.0.2.3:7".parse().unwrap()]).unwrap();
        let change = changes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(change, (waiting.peer, "192.0.2.3:7".parse().unwrap()));
    }

    #[test]
    fn dropping_it_ends_the_thread_and_a_late_answer_changes_nothing() {
        let (asked, questions) = mpsc::channel();
        let (answer, answers) = mpsc::channel::<Vec<SocketAddr>>();
        let (change, changes) = mpsc::channel();
        let look_up = move |_: &str, _| {
            let _ = asked.send(());
            answers.recv().map_err(io::Error::other)
        };
        let resolver = Resolver::start_with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        })
        .unwrap();
        resolver.handle().set_peers(vec![watched(1, None)]);
        questions.recv_timeout(PATIENCE).unwrap();
        drop(resolver);
        answer.send(vec!["192.0.2.1:7".parse().unwrap()]).unwrap();
        // The thread's end of the channel goes with the thread.
        assert_eq!(changes.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
