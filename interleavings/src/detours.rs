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

/// An answer that was given before the session changed, and comes after it.
fn model_of_a_late_answer() {
    let (tunnel, siblings, mut now) = (Tunnel, Siblings::default(), Instant::now());
    let mut detours = Detours::default();
    detours.begin(PEER, HAD, vec![LAST], now);
    let message = |index, number| {
        let bytes = Tunnel::message(index, number);
        HandedOver::new(&RecvMeta { source: source(), len: bytes.len() }, &bytes)
    };
    // The kernel gave it to this thread.
    let first = message(LAST, 0);
    assert_eq!(detours.passage(&tunnel, &first.meta, &first.bytes, now), Passage::Waits);
    while detours.next_ready().is_none() {
        detours.turn(now, &siblings);
        now += Duration::from_secs(1);
    }
    assert!(siblings.answer_flush(HAS, PEER));
    let next = message(NEXT, 2);
    assert_eq!(detours.passage(&tunnel, &next.meta, &next.bytes, now), Passage::Open);
    siblings.hand_over(HAD, message(LAST, 1));
    let taken: Vec<_> =
        std::iter::from_fn(|| siblings.next_data()).map(|data| detours.take(&tunnel, data, now)).collect();
    assert!(matches!(taken[..], [Taken::Done, Taken::Dropped]), "{taken:?}");
}

#[test]
fn an_answer_that_comes_too_late_does_not_end_a_move() {
    shuttle::check_random(model_of_a_late_answer, 1);
}
