//! Connections in TIME-WAIT (RFC 9293, section 3.6.1): records that answer what comes late.

use std::collections::VecDeque;

use crate::secret::Tuple;
use crate::slots::Slots;

/// Twice the longest life of a segment, as Linux has it.
const LIFETIME: u64 = 60_000_000_000;

/// A record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub(crate) tuple: Tuple,
    /// SND.NXT and RCV.NXT.
    pub(crate) next: u32,
    pub(crate) receive_next: u32,
    /// The latest timestamp of the peer.
    pub(crate) timestamp: Option<u32>,
    pub(crate) until: u64,
}
const _: () = assert!(size_of::<TimeWait>() <= 64);

/// The records.
#[derive(Debug, Default)]
pub(crate) struct TimeWaits {
    records: Slots<TimeWait>,
    /// By deadline; a record that was prolonged is entered again when its entry is reached.
    by_age: VecDeque<(u32, u32, u64)>,
}

impl TimeWaits {
    pub(crate) fn insert(&mut self, mut record: TimeWait, now: u64) -> u32 {
        record.until = now + LIFETIME;
        let (index, generation) = self.records.insert(record);
        self.by_age.push_back((index, generation, record.until));
        index
    }

    pub(crate) fn get(&self, index: u32) -> Option<&TimeWait> {
        self.records.get(index)
    }

    /// The peer has sent its FIN again.
    pub(crate) fn prolong(&mut self, index: u32, now: u64) {
        if let Some(record) = self.records.get_mut(index) {
            record.until = now + LIFETIME;
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<TimeWait> {
        self.records.remove(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.by_age.front().map(|(.., until)| *until)
    }

    /// Removes and returns a record that is due, or the oldest one if there are more than `most`.
    pub(crate) fn expire(&mut self, now: u64, most: usize) -> Option<TimeWait> {
        while let Some((index, generation, until)) = self.by_age.front().copied() {
            let is_full = self.records.len() > most;
            if until > now && !is_full {
                return None;
            }
            self.by_age.pop_front();
            if !self.records.has(index, generation) {
                continue;
            }
            match self.records.get(index) {
                Some(record) if record.until > now && !is_full => {
                    self.by_age.push_back((index, generation, record.until));
                }
                _ => return self.records.remove(index),
            }
        }
        None
    }
}
