//! Executes a world: event loops on one thread, in virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Sleep;

use crate::chance::Chance;
use crate::kernel::Turn;
use crate::network::{HELD_BACK, Network};
use crate::node::Node;
use crate::plan::{BEGIN, Event, Flow, Plan, secs};
use crate::system;
use crate::threads::WorldWaker;

/// Turns of all event loops at one instant, after which time goes on.
const TURNS_OF_A_MILLISECOND: usize = 500;
/// How long one of several packet threads waits for a processor.
const LONGEST_WAIT: Duration = Duration::from_millis(4);
/// Turns of all event loops in a world: many times as many as in the busiest one.
const MOST_TURNS: u64 = 100_000;
/// How long there may be so many without a pause: more would be a loop that spins.
const BUSY_MILLISECONDS: usize = 20;
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

impl Outcome {
    /// Adds what happened in another world.
    pub(crate) fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.messages += other.messages;
        self.turns += other.turns;
        self.duration += other.duration;
        self.longest_turn = self.longest_turn.max(other.longest_turn);
    }
}

pub(crate) struct World {
    pub(crate) network: Rc<RefCell<Network>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) events: BTreeMap<(Duration, u64), (usize, Event)>,
    scheduled: u64,
    pub(crate) flows: Vec<Flow>,
    /// Nodes and their peers that were removed.
    pub(crate) removed: BTreeSet<(usize, usize)>,
    pub(crate) chance: Chance,
    length: Duration,
    waker: WorldWaker,
    began: tokio::time::Instant,
    timer: Pin<Box<Sleep>>,
    turns: u64,
    longest_turn: Turn,
    turns_now: usize,
    /// Milliseconds without a pause so far.
    busy: usize,
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
        let Plan { length, sites, delay, faults, flows, events } = Plan::draw(&mut chance);
        let (mut kernels, mut daemons) = (Vec::new(), Vec::new());
        for site in sites {
            kernels.push(site.kernel);
            daemons.push((site.key, site.peers));
        }
        let network = Network::new(chance.next(), BEGIN, delay, faults, kernels);
        let network = Rc::new(RefCell::new(network));
        let waker = WorldWaker::default();
        let node = |(number, (key, peers))| Node::new(number, &network, key, peers, waker.clone());
        let nodes = daemons.into_iter().enumerate().map(node).collect();
        Self {
            network,
            nodes,
            scheduled: events.len() as u64,
            events,
            flows,
            removed: BTreeSet::new(),
            chance,
            length,
            waker,
            began: tokio::time::Instant::now(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            turns: 0,
            longest_turn: Turn::default(),
            turns_now: 0,
            busy: 0,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.network.borrow().now
    }

    async fn live(mut self) -> Outcome {
        self.run_until(BEGIN + self.length).await;
        self.heal();
        self.run_until(self.now() + secs(60)).await;
        self.agrees().await;
        self.carries().await;
        // What the network holds back may divert a peer to an old address, until it is heard again.
        self.run_until(self.now() + HELD_BACK).await;
        self.agrees().await;
        self.rearranges().await;
        self.hands_over().await;
        self.falls_silent().await;
        self.widens().await;
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

    pub(crate) fn schedule(&mut self, at: Duration, node: usize, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), (node, event));
    }

    /// Runs everything that happens before `end`.
    pub(crate) async fn run_until(&mut self, end: Duration) {
        poll_fn(|cx| self.poll(cx, end)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>, end: Duration) -> Poll<()> {
        self.wakes(None);
        let now = BEGIN + self.began.elapsed();
        if now > self.now() {
            self.turns_now = 0;
        }
        self.network.borrow_mut().now = now;
        system::set_now(now);
        let mut waiting;
        let is_busy = loop {
            while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
                let (node, event) = entry.remove();
                self.happen(node, event);
            }
            self.network.borrow_mut().deliver();
            let mut has_commands = false;
            for node in &mut self.nodes {
                has_commands |= node.advance(&mut self.chance);
            }
            let each = self.nodes.iter().enumerate();
            let each = each.flat_map(|(node, of)| {
                of.threads.awake().into_iter().map(move |(thread, since)| (node, thread, since))
            });
            let (awake, later): (Vec<_>, Vec<_>) = each.partition(|(_, _, since)| *since <= now);
            waiting = later.into_iter().map(|(_, _, until)| until).min();
            if awake.is_empty() && has_commands {
                continue;
            }
            // Whichever is first on its processor.
            let Some((node, thread, _)) = awake.first().map(|_| *self.chance.one_of(&awake)) else {
                break false;
            };
            if self.chance.happens(3) {
                self.nodes[node].threads.wait_until(thread, now + self.chance.up_to(LONGEST_WAIT));
            }
            if self.turns_now >= TURNS_OF_A_MILLISECOND {
                break true;
            }
            self.turn(node, thread);
        };
        if now >= end {
            return Poll::Ready(());
        }
        let event = self.events.keys().next().map(|(at, _)| *at);
        let arrival = self.network.borrow().next_arrival();
        let mut next = [event, arrival, waiting, Some(end)].into_iter().flatten().min().unwrap_or(end);
        self.busy = if is_busy { self.busy + 1 } else { 0 };
        if is_busy {
            assert!(self.busy <= BUSY_MILLISECONDS, "an event loop spins");
            next = next.min(now + Duration::from_millis(1));
        }
        self.wakes(Some(cx.waker().clone()));
        self.timer.as_mut().reset(self.began + (next - BEGIN));
        if self.timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Makes event loops wake the world or not.
    fn wakes(&self, waker: Option<Waker>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker;
    }

    /// Runs a turn of a packet thread.
    fn turn(&mut self, node: usize, thread: usize) {
        self.turns += 1;
        assert!(self.turns <= MOST_TURNS, "messages go round and round");
        self.turns_now += 1;
        self.network.borrow_mut().kernels[node].books.turn = Turn::default();
        self.nodes[node].turn(thread);
        let turn = self.network.borrow().kernels[node].books.turn;
        self.longest_turn = self.longest_turn.max(turn);
        turn.check();
        if !self.nodes[node].runs() {
            // No process starts within the 20 ms in which a peer answers one initiation only.
            let pause = self.chance.up_to(secs(2)).max(Duration::from_millis(20));
            let later = self.now() + pause;
            self.schedule(later, node, Event::TakeOver);
        }
    }
}
