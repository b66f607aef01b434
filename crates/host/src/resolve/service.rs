//! The threads that look up the names of endpoints, so that no other thread waits for name servers.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use weft_confine::EndProcessOnPanic;
use weft_tunnel::PublicKey;

use super::look_up::LookUp;
use super::names::{Name, Names, Watched};

/// Maximum number of concurrent look-ups: a name without an answer takes some 10 s, and does not delay the
/// others.
const AT_ONCE: usize = 8;

/// Looks names up until it is dropped. No call waits for a look-up.
///
/// A look-up that is under way at the end ends later, and has no effect.
pub struct Resolver {
    desk: Arc<Desk>,
}

/// What the threads share.
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    look_up: Box<AskFor>,
    /// It is locked before the state, so that the changes of a peer are reported in their order.
    on_change: Mutex<Box<OnChange>>,
}

type AskFor = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;
type OnChange = dyn FnMut(PublicKey, SocketAddr) + Send;

struct State {
    names: Names,
    /// Names with the error of their last look-up, if it failed: the same error is logged once.
    failing: HashMap<Name, String>,
    threads: usize,
    is_stopped: bool,
}

impl Resolver {
    /// Makes one without peers, which looks names up by the system. A thread calls `on_change` with each peer
    /// and its new address.
    pub fn new(on_change: impl FnMut(PublicKey, SocketAddr) + Send + 'static) -> Self {
        Self::by(LookUp::by_system(), on_change)
    }

    /// Makes one like [`Self::new`], which looks names up in this way.
    pub fn by(look_up: LookUp, on_change: impl FnMut(PublicKey, SocketAddr) + Send + 'static) -> Self {
        Self::with(move |host, port| look_up.addresses(host, port), on_change)
    }

    fn with(
        look_up: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
        on_change: impl FnMut(PublicKey, SocketAddr) + Send + 'static,
    ) -> Self {
        let names = Names::new(rand::random());
        let state = State { names, failing: HashMap::new(), threads: 0, is_stopped: false };
        let desk = Desk {
            state: Mutex::new(state),
            changed: Condvar::new(),
            look_up: Box::new(look_up),
            on_change: Mutex::new(Box::new(on_change)),
        };
        Self { desk: Arc::new(desk) }
    }

    /// Replaces the watched peers. Peers with an address as their endpoint are ignored. A name without a
    /// current address is looked up at once, and again until it has an address. Threads are started in the
    /// namespaces of the calling thread, as many as there are names, at most 8.
    pub fn set_peers(&self, peers: Vec<Watched>) {
        let mut state = self.desk.lock();
        state.names.set_peers(peers, Instant::now());
        let State { names, failing, threads, .. } = &mut *state;
        failing.retain(|name, _| names.has(name));
        let missing = names.count().min(AT_ONCE).saturating_sub(*threads);
        drop(state);
        self.desk.changed.notify_one();
        for _ in 0..missing {
            if let Err(error) = Desk::start_thread(&self.desk) {
                tracing::warn!("cannot start a thread for names: {error}; they may not be looked up again");
                break;
            }
        }
    }

    /// Reports that the peer does not answer handshakes although there is something to send: its handshake
    /// failed ([`weft_tunnel::Event::HandshakeFailed`]), or the last one is older than 180 s. To be reported
    /// again while it lasts.
    pub fn stale(&self, peer: PublicKey) {
        self.tell(|names, now| names.handle_stale(&peer, now));
    }

    /// Reports the number of handshake initiations to the peer that have no answer until now
    /// ([`weft_tunnel::Event::HandshakeUnanswered`]). To be reported again while it lasts.
    pub fn unanswered(&self, peer: PublicKey, initiations: u32) {
        self.tell(|names, now| names.handle_unanswered(&peer, initiations, now));
    }

    /// Reports a completed handshake with the peer.
    pub fn handshake(&self, peer: PublicKey) {
        self.tell(|names, _| names.handle_heard(&peer, None));
    }

    /// Reports that the peer was heard from another address than before, or that its address was set by hand.
    pub fn moved(&self, peer: PublicKey, to: SocketAddr) {
        self.tell(|names, _| names.handle_heard(&peer, Some(to)));
    }

    /// Reports that addresses, routes or name servers of this machine changed.
    pub fn network_changed(&self) {
        self.tell(Names::handle_network_change);
    }

    fn tell(&self, change: impl FnOnce(&mut Names, Instant)) {
        change(&mut self.desk.lock().names, Instant::now());
        self.desk.changed.notify_one();
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.desk.lock().is_stopped = true;
        self.desk.changed.notify_all();
    }
}

impl Desk {
    fn start_thread(desk: &Arc<Self>) -> io::Result<()> {
        let own = Arc::clone(desk);
        thread::Builder::new().name("weft-names".to_owned()).spawn(move || {
            let _guard = EndProcessOnPanic;
            weft_confine::thread(weft_confine::Role::Names);
            own.work();
        })?;
        desk.lock().threads += 1;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(name) = self.next() {
            let answer = (self.look_up)(&name.host, name.port);
            let mut state = self.lock();
            let addresses = state.judge(&name, answer);
            state.names.handle_answer(&name, &addresses, Instant::now());
        }
    }

    /// Waits until a name has to be looked up, and reports changes meanwhile. Returns `None` at the end.
    fn next(&self) -> Option<Name> {
        loop {
            self.report();
            let mut state = self.lock();
            if state.is_stopped {
                return None;
            }
            if let Some(name) = state.names.poll_lookup(Instant::now()) {
                // There may be more names for another thread.
                self.changed.notify_one();
                return Some(name);
            }
            if state.names.has_change() {
                continue;
            }
            match state.names.poll_timeout() {
                Some(due) => {
                    let pause = due.saturating_duration_since(Instant::now());
                    drop(self.changed.wait_timeout(state, pause));
                }
                None => drop(self.changed.wait(state)),
            }
        }
    }

    fn report(&self) {
        let mut on_change = self.on_change.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut state = self.lock();
            let change = if state.is_stopped { None } else { state.names.poll_change() };
            drop(state);
            let Some((peer, address)) = change else { return };
            on_change(peer, address);
        }
    }
}

impl State {
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

    /// Where a test sends answers, and what waits for the next.
    fn answers()
    -> (mpsc::Sender<Vec<SocketAddr>>, impl Fn() -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) {
        let (answer, answers) = mpsc::channel();
        let answers = Mutex::new(answers);
        (answer, move || answers.lock().unwrap().recv().map_err(io::Error::other))
    }

    #[test]
    fn names_without_an_answer_do_not_delay_the_others() {
        let (never, silence) = answers();
        let (change, changes) = mpsc::channel();
        let look_up = move |host: &str, _| match host {
            "peer9.example" => Ok(vec!["192.0.2.9:7".parse().unwrap()]),
            _ => silence(),
        };
        let resolver = Resolver::with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        });
        // As many names as all threads but one look up, and another that comes when they do.
        let silent: Vec<Watched> = (1..8).map(|byte| watched(byte, None)).collect();
        resolver.set_peers(silent.clone());
        resolver.set_peers(silent.into_iter().chain([watched(9, None)]).collect());
        let change = changes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(change, (watched(9, None).peer, "192.0.2.9:7".parse().unwrap()));
        drop(never);
    }

    #[test]
    fn an_unresolved_name_is_looked_up_in_the_background() {
        let (asked, questions) = mpsc::channel();
        let (answer, answers) = answers();
        let (change, changes) = mpsc::channel();
        let look_up = move |host: &str, port| {
            let _ = asked.send((host.to_owned(), port));
            answers()
        };
        let resolver = Resolver::with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        });
        resolver.set_peers(vec![watched(1, None)]);
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), ("peer1.example".to_owned(), 7));
        // The lookup is under way, and a report does not wait for it.
        resolver.network_changed();
        answer.send(vec!["192.0.2.1:7".parse().unwrap()]).unwrap();
        let change = changes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(change, (watched(1, None).peer, "192.0.2.1:7".parse().unwrap()));
    }

    #[test]
    fn a_peer_that_speaks_during_the_look_up_stays_where_it_is() {
        let (asked, questions) = mpsc::channel();
        let (answer, answers) = answers();
        let (change, changes) = mpsc::channel();
        let look_up = move |host: &str, _| {
            let _ = asked.send(host.to_owned());
            answers()
        };
        let resolver = Resolver::with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        });
        let (roaming, waiting) = (watched(1, Some("192.0.2.1:7")), watched(2, None));
        resolver.set_peers(vec![roaming.clone()]);
        resolver.stale(roaming.peer);
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), "peer1.example");
        resolver.moved(roaming.peer, "198.51.100.9:9".parse().unwrap());
        answer.send(vec!["192.0.2.2:7".parse().unwrap()]).unwrap();
        // The first change comes from the next answer.
        resolver.set_peers(vec![roaming, waiting.clone()]);
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), "peer2.example");
        answer.send(vec!["192.0.2.3:7".parse().unwrap()]).unwrap();
        let change = changes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(change, (waiting.peer, "192.0.2.3:7".parse().unwrap()));
    }

    #[test]
    fn dropping_it_ends_the_thread_and_a_late_answer_changes_nothing() {
        let (asked, questions) = mpsc::channel();
        let (answer, answers) = answers();
        let (change, changes) = mpsc::channel();
        let look_up = move |_: &str, _| {
            let _ = asked.send(());
            answers()
        };
        let resolver = Resolver::with(look_up, move |peer, to| {
            let _ = change.send((peer, to));
        });
        resolver.set_peers(vec![watched(1, None)]);
        questions.recv_timeout(PATIENCE).unwrap();
        drop(resolver);
        answer.send(vec!["192.0.2.1:7".parse().unwrap()]).unwrap();
        // The thread's end of the channel goes with the thread.
        assert_eq!(changes.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
