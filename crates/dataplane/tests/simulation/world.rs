//! A gateway and its clients: event loops on one thread, in virtual time, and what happens to them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Sleep;
use weft_dataplane::{Command, DataplaneError, EventLoop, Snapshot};
use weft_tunnel::{
    Change, DropReason, PeerConfig, PeerSettings, PresharedKey, PrivateKey, PublicKey, Tunnel, TunnelConfig,
};

use crate::chance::Chance;
use crate::network::{Faults, Kernel, Network, Translator, Turn, Wait};
use crate::packet::{Label, inner};
use crate::system;
use crate::tun::SimulatedTun;
use crate::udp::SimulatedUdp;

/// Time since the start of the machine when a world begins: boringtun's clock must not stand at zero.
pub(crate) const BEGIN: Duration = Duration::from_secs(1000);
const GATEWAY: usize = 0;
const MTU: u16 = 1420;
/// Bytes that may wait for sessions in a tunnel.
const STAGING: usize = 256 << 10;
/// Turns of all event loops at one instant: more would be a loop that spins.
const TURNS_AT_ONE_INSTANT: usize = 2_000;
/// The most that a turn does in each direction: the budgets of the event loop, the packets that waited for
/// the sessions of all peers, and a batch beyond.
const LONGEST_TURN: Turn =
    Turn { bytes_read: 1 << 20, bytes_sent: 1 << 20, bytes_received: 1280 << 10, bytes_written: 256 << 10 };
/// Within this time two ends that hear each other have a session (docs/RELIABILITY.md).
const AGREEMENT: u64 = 45;
/// After this time without traffic nothing is sent any more: Reject-After-Time three times.
const EXPIRY: Duration = Duration::from_secs(540);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long things happen in a world.
const LENGTHS: [Duration; 8] =
    [secs(20), secs(20), secs(60), secs(300), secs(300), secs(1200), secs(4000), secs(7 * 86_400)];
/// From this length on there are no keepalives, which would be most of the work.
const LONG: Duration = secs(86_400);

/// What happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// A number of everything that was sent or arrived, with its time.
    pub(crate) trace: u64,
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) turns: u64,
    /// The most that one turn did.
    pub(crate) longest_turn: Turn,
    pub(crate) duration: Duration,
}

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Programs send packets.
    Burst,
    /// A program sends a packet for no peer, or with another source address than its own.
    Stray,
    TunIsFull(bool),
    SocketIsFull(bool),
    /// A share of the system calls fails.
    Errors(u64),
    Cut(bool),
    /// The address translator chooses another port.
    Translator,
    /// Another listening port.
    Port,
    /// The process ends at once, and starts again.
    Restart,
    /// The wall clock is set forward.
    Clock,
    /// A peer is removed, and added again later.
    Remove(usize),
    Add(usize),
    Keepalive,
    Snapshot,
    /// A stranger sends bytes that may look like messages.
    Junk,
}

/// Whether an event loop is to be polled.
struct Flag {
    is_set: AtomicBool,
    world: Arc<Mutex<Option<Waker>>>,
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

struct Node {
    key: PrivateKey,
    /// The settings of its peers, by node.
    peers: BTreeMap<usize, PeerConfig>,
    event_loop: Running,
    flag: Arc<Flag>,
    commands: tokio::sync::mpsc::Sender<Command>,
    snapshots: Option<mpsc::Receiver<Snapshot>>,
    /// How far its wall clock is ahead, in seconds.
    ahead: i64,
}

struct Flow {
    from: usize,
    to: usize,
    number: u32,
    places: u32,
}

pub(crate) struct World {
    length: Duration,
    network: Rc<RefCell<Network>>,
    nodes: Vec<Node>,
    events: BTreeMap<(Duration, u64), (usize, Event)>,
    flows: Vec<Flow>,
    /// Nodes and their peers that were removed.
    removed: BTreeSet<(usize, usize)>,
    chance: Chance,
    waker: Arc<Mutex<Option<Waker>>>,
    began: tokio::time::Instant,
    timer: Pin<Box<Sleep>>,
    turns: u64,
    longest_turn: Turn,
    turns_now: usize,
}

impl World {
    /// Runs the world of a seed to its end, and checks it.
    pub(crate) fn run(seed: u64) -> Outcome {
        let world = move || {
            system::begin(seed, BEGIN);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async { Self::new(seed).live().await })
        };
        // A thread of its own: what the standard library and `rand` keep for each thread is new.
        let thread = std::thread::Builder::new().name(format!("world {seed}")).spawn(world).unwrap();
        match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => {
                eprintln!(
                    "the world of seed {seed} broke a promise: WEFT_SIMULATION_SEED={seed} runs it alone"
                );
                std::panic::resume_unwind(panic)
            }
        }
    }

    fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let length = LENGTHS[chance.below(LENGTHS.len())];
        let clients = 1 + chance.below(4);
        let kernels = (0..=clients).map(|node| {
            let mut kernel = Kernel::new(SocketAddr::from(([192, 0, 2, node as u8 + 1], 51820)));
            if node != GATEWAY && chance.happens(50) {
                let outside = SocketAddr::from(([198, 51, 100, node as u8], 1024));
                kernel.translator = Some(Translator { outside });
            }
            kernel.has_handshake_socket = chance.happens(50);
            kernel.joins = chance.happens(50);
            kernel
        });
        let kernels: Vec<_> = kernels.collect();
        let keys: Vec<_> = (0..=clients).map(|_| PrivateKey::generate().unwrap()).collect();
        let public: Vec<PublicKey> = keys.iter().map(PrivateKey::public_key).collect();
        let secrets: Vec<_> = (0..=clients)
            .map(|node| chance.happens(30).then(|| PresharedKey::from_bytes([node as u8 + 1; 32])))
            .collect();
        let peer = |of: usize, other: usize, keepalive: bool| {
            let is_known = of != GATEWAY || kernels[other].translator.is_none();
            PeerConfig {
                public_key: public[other],
                endpoint: is_known.then_some(kernels[other].address),
                allowed_ips: vec![ipnet::IpNet::from(std::net::IpAddr::from(inner(other)))],
                settings: PeerSettings {
                    preshared_key: secrets[of.max(other)].clone(),
                    persistent_keepalive: NonZeroU16::new(25).filter(|_| keepalive),
                    ..PeerSettings::default()
                },
            }
        };
        let waker = Arc::<Mutex<Option<Waker>>>::default();
        let mut nodes = Vec::new();
        for (node, key) in keys.into_iter().enumerate() {
            let others = if node == GATEWAY { 1..clients + 1 } else { 0..1 };
            let peers =
                others.map(|other| (other, peer(node, other, length < LONG && chance.happens(30)))).collect();
            nodes.push(Node {
                key,
                peers,
                event_loop: Box::pin(std::future::pending()),
                flag: Arc::new(Flag { is_set: AtomicBool::new(false), world: Arc::clone(&waker) }),
                commands: tokio::sync::mpsc::channel(1).0,
                snapshots: None,
                ahead: 0,
            });
        }
        let network = Rc::new(RefCell::new(Network::new(chance.next(), BEGIN, kernels)));
        let mut world = Self {
            length,
            network,
            nodes,
            events: BTreeMap::new(),
            flows: Vec::new(),
            removed: BTreeSet::new(),
            chance,
            waker,
            began: tokio::time::Instant::now(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            turns: 0,
            longest_turn: Turn::default(),
            turns_now: 0,
        };
        (0..=clients).for_each(|node| world.start(node));
        world
    }

    /// Starts the daemon of a node.
    fn start(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let tunnel = Tunnel::new(node.key.clone(), TunnelConfig { mtu: MTU, staging_bytes: STAGING });
        let (commands, queue) = tokio::sync::mpsc::channel(64);
        let network = Rc::clone(&self.network);
        let stats = move || vec![network.borrow().kernels[number].tun_stats];
        let tun = SimulatedTun::new(Rc::clone(&self.network), number);
        let udp = SimulatedUdp { network: Rc::clone(&self.network), node: number };
        let mut event_loop = EventLoop::new(tunnel, tun, udp, queue, stats);
        event_loop
            .configure(node.peers.values().map(|peer| Change::AddPeer(Box::new(peer.clone()))).collect());
        node.event_loop = Box::pin(event_loop.run());
        node.commands = commands;
        node.snapshots = None;
        node.flag.is_set.store(true, Relaxed);
    }

    fn now(&self) -> Duration {
        self.network.borrow().now
    }

    async fn live(mut self) -> Outcome {
        let length = self.length;
        self.plan(length);
        self.run_until(BEGIN + length).await;
        self.heal();
        self.run_until(self.now() + secs(60)).await;
        self.agrees().await;
        self.falls_silent().await;
        self.check_books().await;
        let network = self.network.borrow();
        Outcome {
            trace: network.trace(),
            packets: network.delivered,
            messages: network.messages,
            turns: self.turns,
            longest_turn: self.longest_turn,
            duration: network.now - BEGIN,
        }
    }

    /// Decides what happens when.
    fn plan(&mut self, length: Duration) {
        let nodes = self.nodes.len();
        let mut network = self.network.borrow_mut();
        network.delay = self.chance.up_to(Duration::from_secs(1)).max(Duration::from_millis(1));
        if self.chance.happens(70) {
            network.faults = Faults {
                loss_percent: self.chance.next() % 20,
                duplication_percent: self.chance.next() % 10,
                damage_percent: self.chance.next() % 5,
                repeat_percent: (self.chance.next() % 10).saturating_sub(4),
            };
        }
        drop(network);
        for from in 0..nodes {
            for _ in 0..=self.chance.below(3) {
                let to = if from == GATEWAY { 1 + self.chance.below(nodes - 1) } else { GATEWAY };
                self.flows.push(Flow { from, to, number: self.flows.len() as u32, places: 0 });
            }
        }
        for _ in 0..20 + self.chance.below(80) {
            let node = self.chance.below(nodes);
            let at = BEGIN + Duration::from_micros(self.chance.next() % length.as_micros() as u64);
            let length = self.chance.up_to(secs(120));
            let (event, end) = match self.chance.below(40) {
                0..22 => (Event::Burst, None),
                22..24 => (Event::Stray, None),
                24..26 => (Event::TunIsFull(true), Some(Event::TunIsFull(false))),
                26..28 => (Event::SocketIsFull(true), Some(Event::SocketIsFull(false))),
                28 => (Event::Errors(self.chance.next() % 50), Some(Event::Errors(0))),
                29 => (Event::Cut(true), Some(Event::Cut(false))),
                30 | 31 => (Event::Translator, None),
                32 => (Event::Port, None),
                33 => (Event::Restart, None),
                34 => (Event::Clock, None),
                35 => {
                    let peers: Vec<_> = self.nodes[node].peers.keys().copied().collect();
                    let peer = *self.chance.one_of(&peers);
                    (Event::Remove(peer), Some(Event::Add(peer)))
                }
                36 => (Event::Keepalive, None),
                37 | 38 => (Event::Snapshot, None),
                _ => (Event::Junk, None),
            };
            self.schedule(at, node, event);
            if let Some(end) = end {
                self.schedule(at + length, node, end);
            }
            // Others are at work meanwhile.
            for _ in 0..self.chance.below(3) {
                let at = at + self.chance.up_to(length);
                let node = self.chance.below(nodes);
                self.schedule(at, node, Event::Burst);
            }
        }
    }

    fn schedule(&mut self, at: Duration, node: usize, event: Event) {
        let serial = self.events.len() as u64;
        self.events.insert((at, serial), (node, event));
    }

    fn happen(&mut self, node: usize, event: Event) {
        match event {
            Event::Burst => self.burst(node),
            Event::Stray => {
                let label = Label { number: 0, from: node as u32, to: 0, flow: 0, place: 0 };
                let (source, destination) = if self.chance.happens(50) {
                    (inner(node), inner(200))
                } else {
                    (inner(100), inner(if node == GATEWAY { 1 } else { GATEWAY }))
                };
                let kernel = &mut self.network.borrow_mut().kernels[node];
                kernel.given.push_back(label.packet(source, destination, 100));
                kernel.wake(Wait::Packets);
            }
            Event::TunIsFull(is_full) => {
                let kernel = &mut self.network.borrow_mut().kernels[node];
                kernel.tun_is_full = is_full;
                kernel.wake(Wait::TunRoom);
            }
            Event::SocketIsFull(is_full) => {
                let mut network = self.network.borrow_mut();
                let now = network.now;
                network.kernels[node].fill_socket(is_full, now);
            }
            Event::Errors(percent) => self.network.borrow_mut().kernels[node].errors_percent = percent,
            Event::Cut(is_cut) => self.network.borrow_mut().cut[node] = is_cut,
            Event::Translator => {
                let mut network = self.network.borrow_mut();
                let now = network.now;
                let kernel = &mut network.kernels[node];
                if let Some(translator) = &mut kernel.translator {
                    translator.outside.set_port(translator.outside.port() + 1);
                    kernel.moved_at = now;
                }
            }
            Event::Port => {
                // Clients find the gateway at its port.
                if node != GATEWAY {
                    let port = 1024 + self.chance.below(60_000) as u16;
                    let answer = mpsc::sync_channel(1).0;
                    self.command(node, Command::Rebind { port: Some(port), fwmark: None, answer });
                }
            }
            Event::Restart => {
                self.nodes[node].event_loop = Box::pin(std::future::pending());
                let mut network = self.network.borrow_mut();
                let now = network.now;
                network.kernels[node].restart();
                network.kernels[node].moved_at = now;
                drop(network);
                self.removed.retain(|(of, _)| *of != node);
                self.start(node);
            }
            Event::Clock => self.nodes[node].ahead += self.chance.below(100_000) as i64,
            Event::Remove(other) if self.removed.insert((node, other)) => {
                let key = self.nodes[node].peers[&other].public_key;
                self.change(node, vec![Change::RemovePeer(key)]);
            }
            Event::Add(other) if self.removed.remove(&(node, other)) => {
                let config = Box::new(self.nodes[node].peers[&other].clone());
                self.change(node, vec![Change::AddPeer(config)]);
            }
            Event::Keepalive if self.length < LONG => {
                let interval = NonZeroU16::new(self.chance.below(30) as u16);
                for peer in self.nodes[node].peers.values_mut() {
                    peer.settings.persistent_keepalive = interval;
                }
                let peers = self.nodes[node].peers.values();
                let change =
                    |peer: &PeerConfig| Change::PersistentKeepalive { peer: peer.public_key, interval };
                let changes = peers.map(change).collect();
                self.change(node, changes);
            }
            Event::Remove(_) | Event::Add(_) | Event::Keepalive => {}
            Event::Snapshot => self.ask(node),
            Event::Junk => {
                let count = self.chance.below(300);
                for _ in 0..count {
                    let len: usize = *self.chance.one_of(&[0, 1, 31, 32, 64, 92, 148, 1000]);
                    let chance = &mut self.chance;
                    let mut bytes: Vec<u8> = (0..len).map(|_| chance.next() as u8).collect();
                    if len > 4 {
                        bytes[..4].copy_from_slice(&[1 + chance.below(4) as u8, 0, 0, 0]);
                    }
                    self.network.borrow_mut().stranger(node, bytes);
                }
            }
        }
    }

    fn burst(&mut self, node: usize) {
        let flows: Vec<_> = (0..self.flows.len()).filter(|flow| self.flows[*flow].from == node).collect();
        let flow = *self.chance.one_of(&flows);
        // Seldom more than a socket or a TUN can hold for a moment.
        let magnitude = if self.chance.happens(2) { 12 } else { self.chance.below(7) };
        let count = 1 + self.chance.below(1 << magnitude);
        // Packets of one size are joined on their way.
        let len = self.chance.below(usize::from(MTU));
        let is_even = self.chance.happens(50);
        for _ in 0..count {
            let len = if is_even { len } else { self.chance.below(usize::from(MTU)) };
            self.give(flow, len);
        }
    }

    /// Gives a packet of a flow to the TUN of its sender, and returns its number.
    fn give(&mut self, flow: usize, len: usize) -> u64 {
        let mut network = self.network.borrow_mut();
        let flow = &mut self.flows[flow];
        let label = Label {
            number: network.new_number(),
            from: flow.from as u32,
            to: flow.to as u32,
            flow: flow.number,
            place: flow.places,
        };
        flow.places += 1;
        let packet = label.packet(inner(flow.from), inner(flow.to), len);
        network.give(label, packet);
        label.number
    }

    fn command(&mut self, node: usize, command: Command) {
        // A full queue is a control thread that waits; it has nothing else to do here.
        let _ = self.nodes[node].commands.try_send(command);
    }

    fn change(&mut self, node: usize, changes: Vec<Change>) {
        let answer = mpsc::sync_channel(1).0;
        self.command(node, Command::Change { changes, answer });
    }

    fn ask(&mut self, node: usize) {
        let (answer, answered) = mpsc::sync_channel(1);
        self.command(node, Command::Snapshot { peers: Vec::with_capacity(8), answer });
        self.nodes[node].snapshots = Some(answered);
    }

    /// Runs everything that happens before `end`.
    async fn run_until(&mut self, end: Duration) {
        poll_fn(|cx| self.poll(cx, end)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>, end: Duration) -> Poll<()> {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        let now = BEGIN + self.began.elapsed();
        if now > self.now() {
            self.turns_now = 0;
        }
        self.network.borrow_mut().now = now;
        system::set_now(now);
        loop {
            while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
                let (node, event) = entry.remove();
                self.happen(node, event);
            }
            self.network.borrow_mut().deliver();
            let awake = self.nodes.iter().position(|node| node.flag.is_set.swap(false, Relaxed));
            let Some(node) = awake else { break };
            self.turn(node);
        }
        if now >= end {
            return Poll::Ready(());
        }
        let event = self.events.keys().next().map(|(at, _)| *at);
        let arrival = self.network.borrow().next_arrival();
        let next = [event, arrival, Some(end)].into_iter().flatten().min().unwrap_or(end);
        self.timer.as_mut().reset(self.began + (next - BEGIN));
        if self.timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Runs a turn of an event loop.
    fn turn(&mut self, number: usize) {
        self.turns += 1;
        self.turns_now += 1;
        assert!(self.turns_now <= TURNS_AT_ONE_INSTANT, "an event loop spins");
        self.network.borrow_mut().kernels[number].books.turn = Turn::default();
        let node = &mut self.nodes[number];
        system::set_ahead(node.ahead);
        let waker = Waker::from(Arc::clone(&node.flag));
        let polled = node.event_loop.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "an event loop ended: {polled:?}");
        let turn = self.network.borrow().kernels[number].books.turn;
        self.longest_turn = self.longest_turn.max(turn);
        assert!(turn.max(LONGEST_TURN) == LONGEST_TURN, "too much for a turn: {turn:?}");
        if let Some(snapshot) = self.nodes[number].snapshots.as_ref().and_then(|it| it.try_recv().ok()) {
            self.check_bounds(&snapshot);
        }
    }

    fn check_bounds(&self, snapshot: &Snapshot) {
        assert!(snapshot.tunnel.staged_bytes <= STAGING, "{:?}", snapshot.tunnel);
        let queues = &snapshot.queues;
        assert!(queues.control <= 256 && queues.transmit <= 8, "{queues:?}");
        assert!(queues.read_ahead_bytes <= 4 << 20, "{queues:?}");
    }

    /// Ends all faults.
    fn heal(&mut self) {
        self.events.clear();
        self.network.borrow_mut().faults = Faults::NONE;
        for node in 0..self.nodes.len() {
            for event in
                [Event::TunIsFull(false), Event::SocketIsFull(false), Event::Errors(0), Event::Cut(false)]
            {
                self.happen(node, event);
            }
        }
        for (node, peer) in self.removed.clone() {
            self.happen(node, Event::Add(peer));
        }
    }

    /// Packets pass between all again, both ways.
    async fn agrees(&mut self) {
        self.flows.clear();
        for client in 1..self.nodes.len() {
            for (from, to) in [(client, GATEWAY), (GATEWAY, client)] {
                let number = 1000 + self.flows.len() as u32;
                self.flows.push(Flow { from, to, number, places: 0 });
            }
        }
        for _ in 0..AGREEMENT {
            let numbers: Vec<_> = (0..self.flows.len()).map(|flow| self.give(flow, 100)).collect();
            self.run_until(self.now() + secs(3)).await;
            if numbers.iter().all(|number| self.network.borrow().has_arrived(*number)) {
                return;
            }
        }
        panic!("no agreement within {AGREEMENT} s");
    }

    /// Without traffic and keepalives, nothing is sent after a while.
    async fn falls_silent(&mut self) {
        for node in 0..self.nodes.len() {
            let peers = self.nodes[node].peers.values();
            let changes =
                peers.map(|peer| Change::PersistentKeepalive { peer: peer.public_key, interval: None });
            let changes = changes.collect();
            self.change(node, changes);
        }
        self.run_until(self.now() + EXPIRY).await;
        let before = self.network.borrow().messages;
        self.run_until(self.now() + secs(86_400)).await;
        assert_eq!(self.network.borrow().messages, before, "messages without a cause");
        assert!(self.network.borrow().is_empty());
    }

    async fn snapshot(&mut self, node: usize) -> Snapshot {
        let (answer, answered) = mpsc::sync_channel(1);
        self.command(node, Command::Snapshot { peers: Vec::with_capacity(8), answer });
        self.run_until(self.now() + secs(1)).await;
        answered.try_recv().unwrap()
    }

    /// Every packet and every datagram of the daemons that run is somewhere, or is counted once.
    async fn check_books(&mut self) {
        for number in 0..self.nodes.len() {
            let snapshot = self.snapshot(number).await;
            let network = self.network.borrow();
            let kernel = &network.kernels[number];
            let (books, tunnel, drops) = (kernel.books, &snapshot.tunnel, &snapshot.drops);
            let refused = books.data_refused + books.others_refused;
            assert_eq!(tunnel.sealed, books.data_sent + books.data_refused, "{books:?} {tunnel:?}");
            assert_eq!(drops.get(DropReason::UdpSendFailed), refused, "{books:?}");
            assert_eq!(tunnel.opened, books.packets_written + kernel.tun_stats.write_failures, "{books:?}");
            let later = [DropReason::UdpSendFailed, DropReason::TunWriteFailed, DropReason::ControlQueueFull];
            let later: u64 = later.iter().map(|reason| drops.get(*reason)).sum();
            let accounted = tunnel.sealed
                + tunnel.staged_segments
                + tunnel.opened
                + tunnel.keepalives_received
                + (drops.total() - later);
            let given = books.packets_read + books.received;
            let handshakes = given.checked_sub(accounted);
            assert!(
                handshakes.is_some_and(|handshakes| handshakes <= books.handshakes_received),
                "{given} in, {accounted} accounted for: {books:?} {tunnel:?} {drops:?}"
            );
        }
    }
}
