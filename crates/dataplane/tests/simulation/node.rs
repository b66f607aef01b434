//! The daemon of a node: its packet threads, and what its control thread asks of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, mpsc};
use std::time::{Instant, SystemTime};

use ipnet::IpNet;
use weft_control::Handle;
use weft_dataplane::{Command, EventLoop, Siblings, Snapshot};
use weft_sched::flow::FlowHasher;
use weft_tunnel::{
    Change, CookieRoot, PeerConfig, PeerSnapshot, PrivateKey, REJECT_AFTER_TIME, Remembered, Shard, Tunnel,
    TunnelConfig,
};
use weft_udp::UdpConfig;

use crate::chance::Chance;
use crate::control::ControlThread;
use crate::network::Network;
use crate::promises::check_bounds;
use crate::system;
use crate::threads::{Threads, WorldWaker};
use crate::tun::SimulatedTun;
use crate::udp::SimulatedUdp;

pub(crate) const MTU: u16 = 1420;
/// Bytes that may wait for sessions in the tunnels of a daemon.
pub(crate) const STAGING: usize = 256 << 10;

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

/// How a daemon gets commands.
enum Control {
    /// There is one packet thread, which answers later.
    Direct(Option<mpsc::Receiver<Snapshot>>),
    Thread(Box<ControlThread>),
}

pub(crate) struct Node {
    number: usize,
    network: Rc<RefCell<Network>>,
    world: WorldWaker,
    key: PrivateKey,
    /// The settings of its peers, by node.
    pub(crate) peers: BTreeMap<usize, PeerConfig>,
    pub(crate) threads: Rc<Threads>,
    commands: Vec<tokio::sync::mpsc::Sender<Command>>,
    control: Control,
    /// The last one.
    pub(crate) snapshot: Option<Snapshot>,
    /// Whether the daemon was told to end.
    is_leaving: bool,
    /// What a daemon left, while none runs.
    left: Option<Vec<LeftPeer>>,
    /// How far its wall clock is ahead, in seconds.
    pub(crate) ahead: i64,
}

impl Node {
    /// Returns a node with a running daemon.
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
            world,
            key,
            peers,
            threads: Rc::default(),
            commands: Vec::new(),
            control: Control::Direct(None),
            snapshot: None,
            is_leaving: false,
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

    fn start_with(&mut self, changes: Vec<Change>) {
        self.end();
        (self.left, self.snapshot, self.is_leaving) = (None, None, false);
        let count = self.network.borrow().kernels[self.number].ends.len();
        let (handle, queues) = Handle::of_several(count, UdpConfig::default());
        let (cookies, hasher) = (CookieRoot::generate(Instant::now()), FlowHasher::random());
        let each = Siblings::of(count).into_iter().zip(handle.configure(changes));
        for (thread, (siblings, changes)) in each.enumerate() {
            let config = TunnelConfig { mtu: MTU, staging_bytes: STAGING / count };
            let shard = Shard::new(thread as u16, count as u16);
            let tunnel = Tunnel::of_shard(self.key.clone(), config, shard, &cookies);
            let (number, network) = (self.number, Rc::clone(&self.network));
            // The first one reports for all.
            let stats = move || match thread {
                0 => vec![network.borrow().kernels[number].tun_stats],
                _ => Vec::new(),
            };
            let (network, threads) = (&self.network, Rc::downgrade(&self.threads));
            let tun = SimulatedTun::new(Rc::clone(network), number, thread, Weak::clone(&threads), hasher);
            let udp = SimulatedUdp { network: Rc::clone(network), node: number, thread, threads };
            let (commands, queue) = tokio::sync::mpsc::channel(64);
            let mut event_loop = EventLoop::new(tunnel, tun, udp, queue, stats);
            if count > 1 {
                event_loop.join(siblings);
            }
            event_loop.configure(changes);
            self.commands.push(commands);
            self.threads.start(event_loop.run(), Arc::clone(&self.world));
        }
        if count > 1 {
            let control = ControlThread::start(self.number as u64, handle, queues);
            self.control = Control::Thread(Box::new(control));
        }
    }

    /// Ends the daemon at once.
    fn end(&mut self) {
        self.threads = Rc::default();
        self.commands.clear();
        self.control = Control::Direct(None);
    }

    /// Ends the daemon, which leaves its state, in its next turn.
    pub(crate) fn hand_over(&mut self) {
        self.ask();
        self.is_leaving = true;
        match &mut self.control {
            Control::Direct(_) => self.command(Command::Stop),
            Control::Thread(control) => control.call(|handle| {
                handle.stop();
                None
            }),
        }
    }

    pub(crate) fn runs(&self) -> bool {
        self.left.is_none()
    }

    /// Runs a turn of a packet thread.
    pub(crate) fn turn(&mut self, number: usize) {
        system::set_ahead(self.ahead);
        self.threads.turn(number);
        if self.threads.have_ended() {
            self.leave();
        }
    }

    /// Lets the control thread go on. Returns whether it has to be called again.
    pub(crate) fn advance(&mut self, chance: &mut Chance) -> bool {
        let (snapshot, has_commands) = match &mut self.control {
            Control::Direct(asked) => (asked.as_ref().and_then(|asked| asked.try_recv().ok()), false),
            Control::Thread(control) => {
                let snapshot = control.advance(&self.commands, chance).map(|snapshot| *snapshot);
                (snapshot, control.has_commands())
            }
        };
        self.record(snapshot);
        has_commands
    }

    fn record(&mut self, snapshot: Option<Snapshot>) {
        if let Some(snapshot) = snapshot {
            check_bounds(&snapshot);
            self.snapshot = Some(snapshot);
        }
    }

    fn leave(&mut self) {
        if let Control::Direct(asked) = &self.control {
            let snapshot = asked.as_ref().and_then(|asked| asked.try_recv().ok());
            self.record(snapshot);
        }
        self.end();
        self.network.borrow_mut().kernels[self.number].hand_over();
        let snapshot = self.snapshot.take().expect("a daemon that ends as it was told to");
        let of_key = |key| self.peers.values().find(|peer| peer.public_key == key);
        let left = |peer: PeerSnapshot| Some(LeftPeer::of(of_key(peer.public_key)?, peer));
        self.left = Some(snapshot.peers.into_iter().filter_map(left).collect());
    }

    /// Sends a command to the only packet thread.
    fn command(&mut self, command: Command) {
        // A full queue is a control thread that waits; it has nothing else to do here.
        let _ = self.commands.first().map(|commands| commands.try_send(command));
    }

    pub(crate) fn change(&mut self, changes: Vec<Change>) {
        match &mut self.control {
            Control::Direct(_) => {
                let answer = mpsc::sync_channel(1).0;
                self.command(Command::Change { changes, answer });
            }
            Control::Thread(control) => control.call(|handle| {
                let _ = handle.change(changes);
                None
            }),
        }
    }

    pub(crate) fn rebind(&mut self, port: u16) {
        let answer = mpsc::sync_channel(1).0;
        self.command(Command::Rebind { port: Some(port), fwmark: None, answer });
    }

    /// Asks for a snapshot.
    pub(crate) fn ask(&mut self) {
        if self.is_leaving {
            return;
        }
        let peers = self.peers.len();
        match &mut self.control {
            Control::Direct(asked) => {
                let (answer, answered) = mpsc::sync_channel(1);
                *asked = Some(answered);
                self.command(Command::Snapshot { peers: Vec::with_capacity(peers), answer });
            }
            Control::Thread(control) => control.call(move |handle| handle.snapshot(peers).ok().map(Box::new)),
        }
    }

    /// Gives addresses to a peer, which the peer that has them loses.
    pub(crate) fn reroute(&mut self, other: usize, addresses: Vec<IpNet>) {
        for peer in self.peers.values_mut() {
            peer.allowed_ips.retain(|prefix| !addresses.contains(prefix));
        }
        let peer = self.peers.get_mut(&other).unwrap();
        peer.allowed_ips.extend(&addresses);
        let peer = peer.public_key;
        self.change(vec![Change::AllowedIps { peer, add: addresses, remove: Vec::new() }]);
    }

    /// Moves a peer to a packet thread.
    pub(crate) fn move_peer(&mut self, other: usize, to: u16) {
        let key = self.peers[&other].public_key;
        if let Control::Thread(control) = &mut self.control {
            control.call(move |handle| {
                let _ = handle.move_peer(key, to);
                None
            });
        }
    }
}
