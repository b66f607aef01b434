//! Deadlines of connections: an indexed heap with one entry a connection, its earliest deadline. A deadline
//! that moves later does not touch the heap: the entry fires early, and is set again.

/// The place of a key without an entry.
const NONE: u32 = u32::MAX;

/// A heap of deadlines by key.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(u64, u32)>,
    /// Where in `heap` a key is.
    places: Vec<u32>,
}

impl Timers {
    /// Makes sure that the key fires at `deadline` or before.
    pub(crate) fn set(&mut self, key: u32, deadline: u64) {
        let index = key as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, NONE);
        }
        let place = self.places[index];
        if place == NONE {
            self.places[index] = self.heap.len() as u32;
            self.heap.push((deadline, key));
            self.up(self.heap.len() - 1);
        } else if let Some(entry) = self.heap.get_mut(place as usize)
            && deadline < entry.0
        {
            entry.0 = deadline;
            self.up(place as usize);
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// Removes and returns the next key whose deadline is not after `now`.
    pub(crate) fn pop(&mut self, now: u64) -> Option<u32> {
        let (deadline, key) = *self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove(key);
        Some(key)
    }

    pub(crate) fn remove(&mut self, key: u32) {
        let Some(place) = self.places.get_mut(key as usize) else { return };
        let at = std::mem::replace(place, NONE) as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if let Some((_, moved)) = self.heap.get(at) {
            self.places[*moved as usize] = at as u32;
            self.up(at);
            self.down(at);
        }
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].0 <= self.heap[at].0 {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let children = (2 * at + 1)..(2 * at + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child].0) else { return };
            if self.heap[at].0 <= self.heap[least].0 {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_the_order_of_their_deadlines() {
        let mut timers = Timers::default();
        let deadlines: Vec<u64> = (0..200_u64).map(|n| n * 7919 % 211 + 1).collect();
        for (key, deadline) in deadlines.iter().enumerate() {
            timers.set(key as u32, deadline + 50);
            timers.set(key as u32, *deadline);
            timers.set(key as u32, deadline + 9);
        }
        for key in (0..200).step_by(3) {
            timers.remove(key);
            timers.remove(key);
        }
        let mut last = 0;
        let mut count = 0;
        while let Some(deadline) = timers.next() {
            assert_eq!(timers.pop(deadline - 1), None);
            let key = timers.pop(deadline).unwrap();
            assert_eq!(deadlines[key as usize], deadline);
            assert!(deadline >= last && key % 3 != 0);
            (last, count) = (deadline, count + 1);
        }
        assert_eq!(count, 133);
    }
}
