//! The thread that looks up the names of endpoints, so that no other thread waits for name servers.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use weft_confine::EndProcessOnPanic;
use weft_tunnel::PublicKey;

use super::names::{Name, Names, Watched};

/// Looks names up until it is dropped.
///
/// A lookup that is under way at that time ends later, and has no effect.
#[derive(Debug)]
pub struct Resolver {
    handle: Handle,
}

/// Reports events to a [`Resolver`]. No call waits. Clones report to the same resolver.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    pending: Mutex<Pending>,
    changed: Condvar,
}

/// The events since the thread last took them: at most one event per peer.
#[derive(Debug, Default)]
struct Pending {
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

impl Pending {
    /// Records an event of a peer, which replaces an earlier one.
    fn note(&mut self, peer: PublicKey, news: News) {
        self.news.insert(peer, news);
    }

    fn is_empty(&self) -> bool {
        self.peers.is_none() && self.news.is_empty() && !self.network_changed && !self.stop
    }
}

impl Resolver {
    /// Starts the thread, in the namespaces of the calling thread and without peers. The thread calls
    /// `on_change` with each peer and its new address; the function must not wait for the resolver.
    pub fn start(on_change: impl FnMut(PublicKey, SocketAddr) + Send + 'static) -> io::Result<Self> {
        Self::start_with(look_up, on_change)
    }

    /// Starts the thread like [`Self::start`], with another function that looks up addresses.
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
            weft_confine::thread(weft_confine::Role::Names);
            worker.run();
        })?;
        Ok(Self { handle: Handle { inbox } })
    }

    /// Returns a handle, by which events are reported.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.handle.tell(|pending| pending.stop = true);
    }
}

impl Handle {
    /// Replaces the watched peers. Peers with an address as their endpoint are ignored. A name without a
    /// current address is looked up at once, and again until it has an address.
    pub fn set_peers(&self, peers: Vec<Watched>) {
        self.tell(|pending| pending.peers = Some(peers));
    }

    /// Reports that the peer does not answer handshakes although there is something to send: its handshake
    /// failed ([`weft_tunnel::Event::HandshakeFailed`]), or the last one is older than 180 s. To be reported
    /// again while it lasts.
    pub fn stale(&self, peer: PublicKey) {
        self.tell(|pending| pending.note(peer, News::Stale));
    }

    /// Reports the number of handshake initiations to the peer that have no answer until now
    /// ([`weft_tunnel::Event::HandshakeUnanswered`]). To be reported again while it lasts.
    pub fn unanswered(&self, peer: PublicKey, initiations: u32) {
        self.tell(|pending| {
            // A report of a failed handshake says more, and is kept.
            if !matches!(pending.news.get(&peer), Some(News::Stale)) {
                pending.note(peer, News::Unanswered(initiations));
            }
        });
    }

    /// Reports a completed handshake with the peer.
    pub fn handshake(&self, peer: PublicKey) {
        self.tell(|pending| {
            // An earlier report of a new address is kept.
            if !matches!(pending.news.get(&peer), Some(News::Heard(_))) {
                pending.note(peer, News::Heard(None));
            }
        });
    }

    /// Reports that the peer was heard from another address than before, or that its address was set by hand.
    pub fn moved(&self, peer: PublicKey, to: SocketAddr) {
        self.tell(|pending| pending.note(peer, News::Heard(Some(to))));
    }

    /// Reports that addresses, routes or name servers of this machine changed.
    pub fn network_changed(&self) {
        self.tell(|pending| pending.network_changed = true);
    }

    fn tell(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.inbox.lock());
        self.inbox.changed.notify_one();
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for events, at most until `until`, and takes them.
    fn wait(&self, until: Option<Instant>) -> Pending {
        let pending = self.lock();
        let mut pending = match until {
            Some(until) => {
                let pause = until.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout_while(pending, pause, |pending| pending.is_empty());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self
                .changed
                .wait_while(pending, |pending| pending.is_empty())
                .unwrap_or_else(PoisonError::into_inner),
        };
        std::mem::take(&mut pending)
    }
}

struct Worker<L, C> {
    inbox: Arc<Inbox>,
    names: Names,
    look_up: L,
    on_change: C,
    /// Names with the error of their last lookup, if it failed: the same error is logged once.
    failing: HashMap<Name, String>,
}

impl<L, C> Worker<L, C>
where
    L: FnMut(&str, u16) -> io::Result<Vec<SocketAddr>>,
    C: FnMut(PublicKey, SocketAddr),
{
    fn run(mut self) {
        loop {
            let pending = self.inbox.wait(self.names.poll_timeout());
            if !self.handle(pending) {
                return;
            }
            self.report();
            let Some(name) = self.names.poll_lookup(Instant::now()) else { continue };
            let answer = (self.look_up)(&name.host, name.port);
            // Events during the lookup come first: a peer that was heard again keeps its address.
            let pending = std::mem::take(&mut *self.inbox.lock());
            if !self.handle(pending) {
                return;
            }
            let addresses = self.judge(&name, answer);
            self.names.handle_answer(&name, &addresses, Instant::now());
            self.report();
        }
    }

    /// Handles events. Returns whether the thread continues.
    fn handle(&mut self, pending: Pending) -> bool {
        let now = Instant::now();
        if let Some(peers) = pending.peers {
            self.names.set_peers(peers, now);
        }
        if pending.network_changed {
            self.names.handle_network_change(now);
        }
        for (peer, news) in pending.news {
            match news {
                News::Stale => self.names.handle_stale(&peer, now),
                News::Unanswered(initiations) => self.names.handle_unanswered(&peer, initiations, now),
                News::Heard(from) => self.names.handle_heard(&peer, from),
            }
        }
        !pending.stop
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

/// Returns all addresses in the system's order (RFC 6724), without duplicates.
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
    fn an_unresolved_name_is_looked_up_in_the_background() {
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
        // The lookup is under way, and a report does not wait for it.
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
        // The first change comes from the next answer.
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
