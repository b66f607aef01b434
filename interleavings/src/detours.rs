//! Messages of a peer that moved: those of its last session arrive at the packet thread that had it, which
//! hands them over, those of the next session at the thread that has it. They are opened in order, and none
//! waits for ever.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use crate::detours_of_product::{Detours, Passage, Taken};
use crate::explore;
use crate::flushes::Flushes;
use crate::siblings::{HandedOver, Message, Siblings};
use crate::stand_in::{PEER, RecvMeta, Tunnel};

/// The receiver indices of the sessions.
const LAST: u32 = 1;
const NEXT: u32 = 2;
/// Packet threads: the one that had the peer, the one that has it.
const HAD: u16 = 0;
const HAS: u16 = 1;
/// Messages of each session, and those that a turn receives and opens.
const MESSAGES: u32 = 5;
const RECEIVED: usize = 3;
/// More or fewer than it receives.
const OPENED: [usize; 2] = [1, 4];

struct World {
    /// In the kernel, of each packet thread.
    sockets: [Mutex<VecDeque<HandedOver>>; 2],
    siblings: Siblings,
}

fn source() -> SocketAddr {
    ([192, 0, 2, 1], 7).into()
}

fn send(world: &World) {
    for number in 0..2 * MESSAGES {
        let (socket, index) = if number < MESSAGES { (HAD, LAST) } else { (HAS, NEXT) };
        let meta = RecvMeta { source: source(), len: Tunnel::message(index, number).len() };
        let message = HandedOver::new(&meta, &Tunnel::message(index, number));
        world.sockets[usize::from(socket)].lock().unwrap().push_back(message);
    }
}

/// Receives as a turn does. Returns whether the socket is empty.
fn receive(world: &World, shard: u16, buffers: &mut VecDeque<HandedOver>) -> bool {
    for _ in 0..RECEIVED {
        let Some(message) = world.sockets[usize::from(shard)].lock().unwrap().pop_front() else {
            return true;
        };
        buffers.push_back(message);
    }
    false
}

/// The thread that had the peer, until it has answered.
fn hand_over(world: &World) {
    let (mut buffers, mut flushes) = (VecDeque::new(), Flushes::default());
    for budget in OPENED.into_iter().cycle() {
        if let Some(Message::Flush { peer, source, from }) = world.siblings.next_message() {
            flushes.ask(peer, source, from);
        }
        if receive(world, HAD, &mut buffers) {
            flushes.mark_received();
        }
        for message in buffers.drain(..buffers.len().min(budget)) {
            world.siblings.hand_over(HAD, message);
        }
        let waits_here = |of| buffers.iter().any(|message: &HandedOver| message.meta.source == of);
        assert!(flushes.answer(&world.siblings, waits_here));
        if world.siblings.has_answered() {
            return;
        }
        thread::yield_now();
    }
}

/// The thread that has the peer, until it has opened everything. Returns the messages in that order.
fn open(world: &World) -> Vec<u32> {
    let (tunnel, now) = (Tunnel, Instant::now());
    let (mut detours, mut buffers, mut opened) = (Detours::default(), VecDeque::new(), Vec::new());
    detours.begin(PEER, HAD, vec![LAST], now);
    for budget in OPENED.into_iter().cycle() {
        receive(world, HAS, &mut buffers);
        while let Some(data) = world.siblings.next_data() {
            let taken = detours.take(&tunnel, data, now);
            match taken {
                Taken::Done => {}
                Taken::Other(message) => buffers.push_back(message),
                Taken::Dropped => panic!("a message is dropped"),
            }
        }
        for _ in 0..budget {
            if let Some(message) = detours.next_ready() {
                opened.push(Tunnel::number(&message.bytes));
            } else if let Some(message) = buffers.pop_front() {
                match detours.passage(&tunnel, &message.meta, &message.bytes, now) {
                    Passage::Open => opened.push(Tunnel::number(&message.bytes)),
                    Passage::Waits => {}
                    Passage::Drop => panic!("a message is dropped"),
                }
            }
        }
        detours.turn(now, &world.siblings);
        if opened.len() == 2 * MESSAGES as usize {
            break;
        }
        thread::yield_now();
    }
    opened
}

fn model() {
    let world = Arc::new(World { sockets: Default::default(), siblings: Siblings::default() });
    let [sender, had] = [send, hand_over].map(|run: fn(&World)| {
        let world = Arc::clone(&world);
        thread::spawn(move || run(&world))
    });
    assert_eq!(open(&world), (0..2 * MESSAGES).collect::<Vec<_>>());
    for thread in [sender, had] {
        thread.join().unwrap();
    }
}

#[test]
fn the_next_session_of_a_peer_that_moved_waits_for_the_last_one_and_never_for_ever() {
    explore(model);
}

fn message(index: u32, number: u32) -> HandedOver {
    let bytes = Tunnel::message(index, number);
    HandedOver::new(&RecvMeta { source: source(), len: bytes.len() }, &bytes)
}

/// The thread that has the peer, alone: what it receives, what is handed over to it, and how time passes.
struct Bench {
    detours: Detours,
    siblings: Siblings,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let (mut detours, now) = (Detours::default(), Instant::now());
        detours.begin(PEER, HAD, vec![LAST], now);
        Self { detours, siblings: Siblings::default(), now }
    }

    /// Receives a message of a session.
    fn receive(&mut self, index: u32, number: u32) -> Passage {
        self.receive_bytes(&message(index, number).bytes)
    }

    fn receive_bytes(&mut self, bytes: &[u8]) -> Passage {
        let meta = RecvMeta { source: source(), len: bytes.len() };
        self.detours.passage(&Tunnel, &meta, bytes, self.now)
    }

    /// Receives long messages of the next session until one is dropped. Returns how many wait.
    fn fill(&mut self) -> usize {
        let mut long = message(NEXT, 0).bytes.into_vec();
        long.resize(60_000, 0);
        let passages = std::iter::repeat_with(|| self.receive_bytes(&long));
        passages.take(1024).take_while(|passage| *passage == Passage::Waits).count()
    }

    /// Takes what the thread `from` hands over.
    fn take(&mut self, from: u16, message: HandedOver) -> Taken {
        self.siblings.hand_over(from, message);
        self.take_next()
    }

    /// Takes the answer of the thread that had the peer.
    fn take_answer(&mut self) -> Taken {
        self.siblings.answer_flush(HAS, PEER);
        self.take_next()
    }

    fn take_next(&mut self) -> Taken {
        self.detours.take(&Tunnel, self.siblings.next_data().unwrap(), self.now)
    }

    fn turn(&mut self) -> bool {
        self.detours.turn(self.now, &self.siblings)
    }

    /// Lets time pass until the next deadline, and all but a nanosecond of it at first.
    fn reach_deadline(&mut self, just_before: impl FnOnce(&mut Self)) {
        let at = self.detours.deadline().unwrap();
        self.now = at - Duration::from_nanos(1);
        assert!(self.turn());
        just_before(self);
        self.now = at;
    }

    /// Returns the numbers of the messages that come before anything else.
    fn ready(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.detours.next_ready()).map(|of| Tunnel::number(&of.bytes)).collect()
    }
}

/// Locks of shuttle are for its threads alone.
fn alone(test: fn(Bench)) {
    shuttle::check_random(move || test(Bench::new()), 1);
}

/// An answer that was given before the session changed, and comes after it.
#[test]
fn an_answer_that_comes_too_late_does_not_end_a_move() {
    alone(|mut bench| {
        // The kernel gave it to this thread.
        assert_eq!(bench.receive(LAST, 0), Passage::Waits);
        bench.reach_deadline(|_| {});
        bench.turn();
        assert_eq!(bench.ready(), [0]);
        assert_eq!(bench.receive(NEXT, 2), Passage::Open);
        assert!(matches!(bench.take_answer(), Taken::Done));
        assert!(matches!(bench.take(HAD, message(LAST, 1)), Taken::Dropped));
    });
}

#[test]
fn what_waits_is_opened_when_no_answer_comes_and_what_is_older_is_dropped_then() {
    alone(|mut bench| {
        assert_eq!(bench.receive(NEXT, 1), Passage::Waits);
        bench.reach_deadline(|bench| assert_eq!(bench.ready(), []));
        assert!(!bench.turn(), "there is something to open");
        assert_eq!(bench.ready(), [1]);
        assert!(bench.turn());
        assert_eq!(bench.receive(NEXT, 2), Passage::Open);
        assert_eq!(bench.receive(LAST, 0), Passage::Drop);
        assert!(matches!(bench.take(HAD, message(LAST, 0)), Taken::Dropped));
        assert!(matches!(bench.take(HAD, message(NEXT, 3)), Taken::Done));
        assert_eq!(bench.ready(), [3]);
    });
}

#[test]
fn a_question_that_finds_no_room_is_asked_again_and_only_once_when_it_does() {
    alone(|mut bench| {
        bench.receive(NEXT, 0);
        bench.siblings.is_full = true;
        assert!(!bench.turn() && !bench.turn());
        bench.siblings.is_full = false;
        assert!(bench.turn() && bench.turn());
        assert_eq!(std::iter::from_fn(|| bench.siblings.next_message()).count(), 1);
    });
}

#[test]
fn the_next_session_waits_for_a_later_answer_than_the_last_one_did() {
    alone(|mut bench| {
        assert_eq!(bench.receive(LAST, 0), Passage::Waits);
        bench.take_answer();
        assert_eq!((bench.ready(), bench.receive(LAST, 1)), (vec![0], Passage::Open));
        assert_eq!(bench.receive(NEXT, 3), Passage::Waits);
        assert!(matches!(bench.take(HAD, message(LAST, 2)), Taken::Done));
        bench.take_answer();
        assert_eq!(bench.ready(), [2, 3]);
        assert!(!bench.detours.has(&PEER));
    });
}

#[test]
fn a_move_is_forgotten_when_its_sessions_have_ended() {
    alone(|mut bench| {
        bench.reach_deadline(|bench| assert!(bench.detours.has(&PEER)));
        assert!(bench.turn());
        assert!(!bench.detours.has(&PEER) && !bench.detours.are_any());
        assert_eq!(bench.receive(NEXT, 0), Passage::Open);
    });
}

#[test]
fn what_waits_is_not_forgotten_with_its_move() {
    alone(|mut bench| {
        bench.reach_deadline(|bench| assert_eq!(bench.receive(NEXT, 0), Passage::Waits));
        assert!(bench.turn() && bench.detours.are_any());
        assert!(matches!(bench.take_answer(), Taken::Done));
        assert_eq!(bench.ready(), [0]);
    });
}

#[test]
fn a_peer_that_moved_without_a_session_waits_for_nothing() {
    alone(|mut bench| {
        bench.detours = Detours::default();
        bench.detours.begin(PEER, HAD, Vec::new(), bench.now);
        assert!(!bench.detours.are_any());
        assert_eq!(bench.receive(NEXT, 0), Passage::Open);
    });
}

#[test]
fn keepalives_do_not_wait() {
    alone(|mut bench| {
        assert_eq!(bench.receive(NEXT, 0), Passage::Waits);
        assert_eq!(bench.receive_bytes(&message(NEXT, 1).bytes[..32]), Passage::Open);
    });
}

#[test]
fn what_waits_is_bounded_and_makes_room_when_it_is_opened_or_dropped() {
    alone(|mut bench| {
        let mut first = message(LAST, 0).bytes.into_vec();
        first.resize(60_000, 0);
        assert_eq!(bench.receive_bytes(&first), Passage::Waits);
        let waiting = bench.fill();
        assert!((64..1024).contains(&waiting), "{waiting} messages of 60,000 bytes");
        // The answer lets the first one go, and the others wait for the next answer.
        bench.take_answer();
        assert_eq!((bench.ready().len(), bench.fill()), (1, 1));
        bench.take_answer();
        assert_eq!(bench.ready().len(), waiting + 1);

        let mut other = Bench::new();
        assert_eq!(other.fill(), waiting + 1);
        assert_eq!(other.detours.drop_all(), waiting as u64 + 1);
        assert_eq!(other.fill(), waiting + 1);
    });
}

#[test]
fn what_a_stalled_tun_drops_is_counted_and_does_not_come_later() {
    alone(|mut bench| {
        for number in 0..3 {
            assert!(matches!(bench.take(HAD, message(LAST, number)), Taken::Done));
        }
        assert!(bench.detours.has_ready());
        for number in 3..5 {
            assert_eq!(bench.receive(NEXT, number), Passage::Waits);
        }
        assert_eq!(bench.detours.drop_all(), 5);
        assert!(!bench.detours.has_ready());
        bench.take_answer();
        assert_eq!(bench.ready(), []);
    });
}

#[test]
fn what_is_handed_over_stays_with_the_other_thread_while_much_of_it_is_not_opened() {
    alone(|mut bench| {
        let mut taken = 0;
        while bench.detours.have_room() {
            bench.take(HAD, message(LAST, taken));
            taken += 1;
            assert!(taken < 100_000);
        }
        assert!(taken > 0);
        assert!(bench.detours.next_ready().is_some() && bench.detours.have_room());
    });
}
