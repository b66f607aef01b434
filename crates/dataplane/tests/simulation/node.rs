//! The daemon of a node, from the side of its control thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Instant, SystemTime};

use weft_dataplane::{Command, DataplaneError, EventLoop, Snapshot};
use weft_tunnel::{
    Change, PeerConfig, PeerSnapshot, PrivateKey, REJECT_AFTER_TIME, Remembered, Tunnel, TunnelConfig,
};

use crate::network::Network;
use crate::promises::check_bounds;
use crate::system;
use crate::tun::SimulatedTun;
use crate::udp::SimulatedUdp;

pub(crate) const MTU: u16 = 1420;
/// Bytes that may wait for sessions in a tunnel.
pub(crate) const STAGING: usize = 256 << 10;

/// What wakes the world.
pub(crate) type WorldWaker = Arc<Mutex<Option<Waker>>>;

/// Whether an event loop is to be polled.
struct Flag {
    is_set: AtomicBool,
    world: WorldWaker,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Relaxed);
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*world {
            waker.wake_by_ref();
        }
    }
}

type Running = Pin<Box<dyn Future<Output = Result<(), DataplaneError>>>>;

/// A peer that a daemon leaves to the next one.
struct LeftPeer {
    config: PeerConfig,
    snapshot: PeerSnapshot,
    last_handshake: Option<SystemTime>,
}

impl LeftPeer {
    fn of(config: &PeerConfig, snapshot: PeerSnapshot) -> Self {
        let config = PeerConfig { endpoint: snapshot.endpoint, ..config.clone() };
        let age = snapshot.last_handshake.map(|at| at.elapsed());
        let last_handshake = age.and_then(|age| SystemTime::now().checked_sub(age));
        Self { config, snapshot, last_handshake }
    }

    /// Returns what the tunnel of the next daemon has to know, as `daemon/src/carried_over/state.rs` does.
    fn changes(self) -> [Change; 2] {
        let age = self.last_handshake.map(|at| at.elapsed().unwrap_or_default());
        let remembered = Remembered {
            last_handshake: age.and_then(|age| Instant::now().checked_sub(age)),
            source: self.snapshot.source,
            sent_bytes: self.snapshot.sent_bytes,
            received_bytes: self.snapshot.received_bytes,
            has_session: age.is_some_and(|age| age < REJECT_AFTER_TIME),
        };
        let peer = self.config.public_key;
        [Change::AddPeer(Box::new(self.config)), Change::Restore { peer, remembered }]
    }
}

pub(crate) struct Node {
    number: usize,
    network: Rc<RefCell<Network>>,
    key: PrivateKey,
    /// The settings of its peers, by node.
    pub(crate) peers: BTreeMap<usize, PeerConfig>,
    event_loop: Running,
    flag: Arc<Flag>,
    commands: tokio::sync::mpsc::Sender<Command>,
    snapshots: Option<mpsc::Receiver<Snapshot>>,
    /// The last one.
    pub(crate) snapshot: Option<Snapshot>,
    /// What a daemon left, while none runs.
    left: Option<Vec<LeftPeer>>,
    /// How far its wall clock is ahead, in seconds.
    pub(crate) ahead: i64,
}

impl Node {
    /// Returns a node whose daemon runs.
    pub(crate) fn new(
        number: usize,
        network: &Rc<RefCell<Network>>,
        key: PrivateKey,
        peers: BTreeMap<usize, PeerConfig>,
        world: WorldWaker,
    ) -> Self {
        let mut node = Self {
            number,
            network: Rc::clone(network),
            key,
            peers,
            event_loop: Box::pin(std::future::pending()),
            flag: Arc::new(Flag { is_set: AtomicBool::new(false), world }),
            commands: tokio::sync::mpsc::channel(1).0,
            snapshots: None,
            snapshot: None,
            left: None,
            ahead: 0,
        };
        node.start();
        node
    }

    /// Starts a daemon, in place of the one that ran.
    pub(crate) fn start(&mut self) {
        let add = |peer: &PeerConfig| Change::AddPeer(Box::new(peer.clone()));
        let changes = self.peers.values().map(add).collect();
        self.start_with(changes);
    }

    /// Starts a daemon with what the last one left, if none runs.
    pub(crate) fn take_over(&mut self) {
        system::set_ahead(self.ahead);
        if let Some(left) = self.left.take() {
            self.start_with(left.into_iter().flat_map(LeftPeer::changes).collect());
        }
    }

    /// Ends the daemon, which leaves its state, in its next turn.
    pub(crate) fn hand_over(&mut self) {
        self.ask();
        self.command(Command::Stop);
    }

    pub(crate) fn runs(&self) -> bool {
        self.left.is_none()
    }

    fn start_with(&mut self, changes: Vec<Change>) {
        self.left = None;
        self.event_loop = Box::pin(std::future::pending());
        let tunnel = Tunnel::new(self.key.clone(), TunnelConfig { mtu: MTU, staging_bytes: STAGING });
        let (commands, queue) = tokio::sync::mpsc::channel(64);
        let (number, network) = (self.number, Rc::clone(&self.network));
        let stats = move || vec![network.borrow().kernels[number].tun_stats];
        let tun = SimulatedTun::new(Rc::clone(&self.network), number);
        let udp = SimulatedUdp { network: Rc::clone(&self.network), node: number };
        let mut event_loop = EventLoop::new(tunnel, tun, udp, queue, stats);
        event_loop.configure(changes);
        self.event_loop = Box::pin(event_loop.run());
        self.commands = commands;
        self.snapshots = None;
        self.snapshot = None;
        self.flag.is_set.store(true, Relaxed);
    }

    /// Reports whether a turn is due, which has to follow.
    pub(crate) fn take_turn(&self) -> bool {
        self.flag.is_set.swap(false, Relaxed)
    }

    /// Runs a turn of the event loop.
    pub(crate) fn turn(&mut self) {
        system::set_ahead(self.ahead);
        let waker = Waker::from(Arc::clone(&self.flag));
        let polled = self.event_loop.as_mut().poll(&mut Context::from_waker(&waker));
        if let Some(snapshot) = self.snapshots.as_ref().and_then(|it| it.try_recv().ok()) {
            check_bounds(&snapshot);
            self.snapshot = Some(snapshot);
        }
        match polled {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.leave(),
            Poll::Ready(Err(error)) => panic!("an event loop ended: {error}"),
        }
    }

    fn leave(&mut self) {
        self.event_loop = Box::pin(std::future::pending());
        self.network.borrow_mut().kernels[self.number].hand_over();
        let snapshot = self.snapshot.take().expect("a daemon that ends as it was told to");
        let of_key = |key| self.peers.values().find(|peer| peer.public_key == key);
        let left = |peer: PeerSnapshot| Some(LeftPeer::of(of_key(peer.public_key)?, peer));
        self.left = Some(snapshot.peers.into_iter().filter_map(left).collect());
    }

    pub(crate) fn command(&mut self, command: Command) {
        // A full queue is a control thread that waits; it has nothing else to do here.
        let _ = self.commands.try_send(command);
    }

    pub(crate) fn change(&mut self, changes: Vec<Change>) {
        let answer = mpsc::sync_channel(1).0;
        self.command(Command::Change { changes, answer });
    }

    /// Asks for a snapshot.
    pub(crate) fn ask(&mut self) {
        let (answer, answered) = mpsc::sync_channel(1);
        self.command(Command::Snapshot { peers: Vec::with_capacity(8), answer });
        self.snapshots = Some(answered);
        self.snapshot = None;
    }
}
