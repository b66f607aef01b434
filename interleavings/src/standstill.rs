//! Event loops that stand still while something changes hands, and one of them that may call it off.

use std::task::Waker;
use std::time::{Duration, Instant};

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use crate::barrier::{Barrier, Left, Next, Participant};
use crate::explore;

const LOOPS: u16 = 2;
/// Packets that are read at once. They are sealed one in each turn.
const BATCH: u32 = 5;

struct World {
    barrier: Arc<Barrier<u32>>,
    /// The packets that are under way to each loop.
    inboxes: [Mutex<u32>; LOOPS as usize],
    /// The owner of the address, as each loop knows it. It moves to the other loop.
    owners: [AtomicUsize; LOOPS as usize],
    moves_to: usize,
}

/// Turns a loop until the barrier is behind it. Returns whether that was passed.
fn take_part(world: &World, number: u16, is_hasty: bool) -> bool {
    let own = usize::from(number);
    let start = Instant::now();
    let mut participant = Participant::new(Arc::clone(&world.barrier), number, start, Waker::noop().clone());
    let mut may_read = 2;
    for turn in 0.. {
        // Time passes only where the loop has no patience.
        let now = if is_hasty && turn == 5 { start + Duration::from_secs(2) } else { start };
        let left = || Left { in_device: *world.inboxes[own].lock().unwrap() > 0, in_loop: false };
        let (mut reads, mut halts) = (true, false);
        match participant.advance(now, left) {
            Next::GoOn => {}
            Next::ReadNothing => reads = false,
            Next::Halt => halts = true,
            Next::Lead => {
                halts = true;
                if let Err(returned) = participant.pass(Some(7)) {
                    assert_eq!(returned, Some(7), "what is not handed on comes back");
                }
            }
            Next::Passed => {
                // The other one adopts what the leader handed on.
                if number == 0 || participant.take_cargo() == Some(7) {
                    // The other one may be ahead, and have handed over what is for this one from now on.
                    let left = *world.inboxes[own].lock().unwrap();
                    assert!(left == 0 || world.moves_to == own, "a packet finds no peer");
                    world.owners[own].store(world.moves_to, Ordering::SeqCst);
                    return true;
                }
                halts = true;
            }
            Next::CalledOff => return false,
        }
        if !halts {
            // What another loop handed over is for an address that this one has.
            let mut inbox = world.inboxes[own].lock().unwrap();
            if *inbox > 0 {
                assert_eq!(world.owners[own].load(Ordering::SeqCst), own, "a packet finds no peer");
                *inbox -= 1;
            }
            drop(inbox);
            if reads && may_read > 0 {
                may_read -= 1;
                let owner = world.owners[own].load(Ordering::SeqCst);
                if owner != own {
                    *world.inboxes[owner].lock().unwrap() += BATCH;
                }
            }
        }
        thread::yield_now();
    }
    unreachable!()
}

fn model(moves_to: usize, is_hasty: bool) {
    let owner = || AtomicUsize::new(1 - moves_to);
    let world = Arc::new(World {
        barrier: Arc::new(Barrier::new(LOOPS.into(), 0)),
        inboxes: Default::default(),
        owners: [owner(), owner()],
        moves_to,
    });
    let loops = (0..LOOPS).map(|number| {
        let world = Arc::clone(&world);
        thread::spawn(move || take_part(&world, number, is_hasty && number == 1))
    });
    let passed: Vec<bool> = loops.collect::<Vec<_>>().into_iter().map(|of| of.join().unwrap()).collect();
    assert!(passed.iter().all(|of| *of == world.barrier.conclude()), "all or none: {passed:?}");
    assert!(is_hasty || passed[0]);
}

#[test]
fn no_packet_is_under_way_when_a_barrier_is_passed() {
    explore(|| model(1, false));
    explore(|| model(0, false));
}

#[test]
fn a_barrier_is_passed_by_all_event_loops_or_by_none() {
    explore(|| model(1, true));
    explore(|| model(0, true));
}
