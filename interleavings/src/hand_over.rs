//! A packet of a flow is in the queue of one packet thread when the kernel moves the flow to the queue of its
//! owner. The owner holds the next packet back until it has the first one, and sleeps until then.

use std::collections::VecDeque;

use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use crate::explore;
use crate::progress::Progress;

struct World {
    reader: Progress,
    owner: Progress,
    /// The queue of the reader, in the kernel.
    queue: Mutex<VecDeque<u32>>,
    /// What wakes the owner: packets, and empty messages.
    inbox: Mutex<VecDeque<Option<u32>>>,
    arrived: Condvar,
}

impl World {
    fn send(&self, message: Option<u32>) {
        self.owner.push();
        self.inbox.lock().unwrap().push_back(message);
        self.arrived.notify_all();
    }

    /// One turn of the reader.
    fn read(&self) {
        self.reader.begin();
        let packet = self.queue.lock().unwrap().pop_front();
        if let Some(packet) = packet {
            self.send(Some(packet));
        }
        self.reader.settle();
        if self.owner.take_wish() {
            self.send(None);
        }
    }

    fn take(&self, taken: &mut Vec<u32>) -> bool {
        let message = self.inbox.lock().unwrap().pop_front();
        if message.is_some() {
            self.owner.take();
        }
        taken.extend(message.flatten());
        message.is_some()
    }

    /// Whether what is held may go on: as the reorder guard asks.
    fn has_all(&self) -> bool {
        self.queue.lock().unwrap().is_empty() && self.owner.has_all_of(&self.reader)
    }

    /// The owner, which holds packet 2 of the flow back.
    fn own(&self) -> Vec<u32> {
        let mut taken = Vec::new();
        loop {
            while self.take(&mut taken) {}
            if self.has_all() {
                break;
            }
            self.owner.want_wake();
            // Packets of others may come again: it asks once more.
            if self.has_all() {
                break;
            }
            let mut inbox = self.inbox.lock().unwrap();
            while inbox.is_empty() {
                inbox = self.arrived.wait(inbox).unwrap();
            }
        }
        taken.push(2);
        taken
    }
}

fn model() {
    let world = Arc::new(World {
        reader: Progress::new(),
        owner: Progress::new(),
        queue: Mutex::new(VecDeque::from([1])),
        inbox: Mutex::default(),
        arrived: Condvar::new(),
    });
    let reader = {
        let world = Arc::clone(&world);
        // In its last turns there is nothing to read.
        thread::spawn(move || (0..3).for_each(|_| world.read()))
    };
    assert_eq!(world.own(), [1, 2]);
    reader.join().unwrap();
}

#[test]
fn a_held_packet_waits_for_what_another_thread_has_read_and_never_for_ever() {
    explore(model);
}
