//! Connections that a peer has begun and not completed: small records, bounded in all and for each source, of
//! which the oldest gives way (RFC 4987, section 3.4).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::Limits;
use crate::secret::Tuple;
use crate::slots::Slots;
use crate::tcp::Handshake;
use crate::timers::Timers;

/// Times that a SYN-ACK is sent again: as Linux, until 31 s have gone.
const RETRIES: u32 = 5;
const SECOND: u64 = 1_000_000_000;

/// A record.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(crate) tuple: Tuple,
    /// The slot of the listener.
    pub(crate) listener: u32,
    pub(crate) handshake: Handshake,
    pub(crate) sent_at: u64,
    pub(crate) retries: u32,
}

/// The next step of a record that is due.
pub(crate) enum Due {
    Again(u32),
    GiveUp(u32),
}

/// The records.
#[derive(Debug, Default)]
pub(crate) struct HalfOpens {
    records: Slots<HalfOpen>,
    timers: Timers,
    /// The records by age, with those that are gone since.
    by_age: VecDeque<(u32, u32)>,
    by_source: HashMap<IpAddr, VecDeque<(u32, u32)>>,
}

impl HalfOpens {
    /// Adds a record. Returns its slot, and the slot of one that has to be removed for it.
    pub(crate) fn insert(&mut self, record: HalfOpen, limits: &Limits) -> (u32, Option<u32>) {
        let (records, source) = (&self.records, record.tuple.peer);
        let ages = self.by_source.entry(source).or_default();
        ages.retain(|(index, generation)| records.has(*index, *generation));
        let mut evicted = None;
        if ages.len() >= limits.half_open_per_source.max(1) as usize {
            evicted = ages.front().copied();
        } else if records.len() >= limits.half_open.max(1) as usize {
            while self.by_age.pop_front_if(|(index, generation)| !records.has(*index, *generation)).is_some()
            {
            }
            evicted = self.by_age.front().copied();
        }
        let deadline = record.sent_at + SECOND;
        let number = self.records.insert(record);
        self.by_age.push_back(number);
        if self.by_age.len() > 2 * limits.half_open as usize {
            let records = &self.records;
            self.by_age.retain(|(index, generation)| records.has(*index, *generation));
        }
        if let Some(ages) = self.by_source.get_mut(&source) {
            ages.push_back(number);
        }
        self.timers.set(number.0, deadline);
        (number.0, evicted.map(|(index, _)| index))
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<HalfOpen> {
        let record = self.records.remove(index)?;
        self.timers.remove(index);
        if let Some(ages) = self.by_source.get_mut(&record.tuple.peer) {
            ages.retain(|(other, _)| *other != index);
            if ages.is_empty() {
                self.by_source.remove(&record.tuple.peer);
            }
        }
        Some(record)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&HalfOpen> {
        self.records.get(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Returns the next record that is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<Due> {
        let index = self.timers.pop(now)?;
        let record = self.records.get_mut(index)?;
        if record.retries >= RETRIES {
            return Some(Due::GiveUp(index));
        }
        record.retries += 1;
        self.timers.set(index, now + (SECOND << record.retries));
        Some(Due::Again(index))
    }

    /// Returns the slots of the records of a listener.
    pub(crate) fn of_listener(&self, listener: u32) -> Vec<u32> {
        self.records
            .iter()
            .filter(|(_, record)| record.listener == listener)
            .map(|(index, _)| index)
            .collect()
    }
}
