//! Identifies the flow of a packet, and remembers the queue and the writer of each flow.
//!
//! A flow is (protocol, both addresses, both ports), the same in both directions. A packet without ports to
//! read (a fragment, ICMP, extension headers) belongs to a flow of its addresses and protocol.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::ops::Range;

use weft_tunnel::ip::{self, IpHeader};

/// The flow of a packet: a keyed 64-bit hash, the same in both directions. Two flows with the same hash share
/// their queue, which is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash {
    /// The hash; never 0.
    pub value: u64,
    /// Whether the hash covers the ports.
    pub has_ports: bool,
}

/// Hashes flows with a secret key, so that no peer can choose the queue of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowHasher {
    seed: u64,
}

impl FlowHasher {
    /// Returns a hasher with a random key.
    pub fn random() -> Self {
        Self { seed: RandomState::new().hash_one(0x7766_6574_u32) }
    }

    /// Returns a hasher with a known key, so that two runs of a benchmark do the same.
    #[cfg(feature = "bench-internals")]
    #[doc(hidden)]
    pub fn with_seed(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the flow of `packet`. All packets that are not IP belong to one flow.
    #[inline]
    pub fn hash(&self, packet: &[u8]) -> FlowHash {
        let Some(header) = IpHeader::parse(packet) else {
            return FlowHash { value: 1, has_ports: false };
        };
        let ports = match header.protocol {
            ip::TCP | ip::UDP if !header.is_fragment => packet[header.header_len..].first_chunk::<4>(),
            _ => None,
        };
        let [a, b, c, d] = ports.copied().unwrap_or_default();
        let source = (address_bits(header.source), u16::from_be_bytes([a, b]));
        let destination = (address_bits(header.destination), u16::from_be_bytes([c, d]));
        let (low, high) = if source <= destination { (source, destination) } else { (destination, source) };

        let key = 0x9fb2_1c65_1e98_df25 ^ self.seed.rotate_left(32);
        let ends = u64::from(low.1) << 32 | u64::from(high.1) << 16 | u64::from(header.protocol) << 8;
        // Mixed apart from the addresses: otherwise a bit of a port cancels one of an address out, and a peer
        // can choose flows that have the hash of another peer's.
        let mut state = mix(self.seed ^ ends ^ u64::from(ports.is_some()), key);
        for address in [low.0, high.0] {
            state = mix(state ^ address as u64, key ^ (address >> 64) as u64);
        }
        FlowHash { value: mix(state, 0xd6e8_feb8_6659_fd93).max(1), has_ports: ports.is_some() }
    }
}

#[inline]
fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Multiplies to 128 bits and folds the halves: every bit of the product depends on every bit below it.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Entries in a [`FlowTable`]: sixteen times the 4,096 flows that the kernel itself remembers, 1.5 MiB.
const ENTRIES: usize = 65_536;
/// Entries of a set. With 10,000 flows in the table, a set holds 1.2 of them on average.
const WAYS: usize = 8;

/// For how many batches, read and written, a flow counts as just staged: those of about two turns of an event
/// loop with eight queues.
const ANSWER_BATCHES: u32 = 24;

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Hash of the flow; 0 if the entry is free.
    flow: u64,
    /// Number of the writer's item that a packet of the flow was last staged in; 0 if none was.
    item: u64,
    /// [`FlowTable::clock`] at the last use.
    used: u32,
    /// Queue that the flow was last read from, plus 1; 0 if it was never read.
    read_from: u16,
    /// Writer that the flow was last staged for.
    writer: u16,
}

impl Entry {
    /// Reports whether the flow may be written to another queue: it was last read from the queue that it is
    /// written to, so that what is still there goes first, or it has no queue that it is written to.
    #[cold]
    fn may_move(&self) -> bool {
        self.item == 0 || self.read_from == self.writer + 1
    }

    /// Records that the flow was read from `queue`, for the first time since it was read from another one.
    #[cold]
    fn moved_to(&mut self, queue: u16, completed: impl Fn(u16) -> u64) {
        if self.read_from == self.writer + 1 && self.item <= completed(self.writer) {
            // The kernel has forgotten the queue that the flow was written to.
            self.item = 0;
        }
        self.read_from = queue + 1;
    }
}

/// Remembers for each flow the queue that it was last read from, and the writer that may still hold packets
/// of it. The size is fixed; an entry without packets in flight is evicted first.
#[derive(Clone)]
pub struct FlowTable {
    entries: Box<[Entry]>,
    /// The queues of the flows that were never read.
    own: Range<u16>,
    clock: u32,
}

impl FlowTable {
    /// Returns an empty table. A flow that was never read goes to one of the queues in `own`, which must not
    /// be empty; one that was read goes to the queue that it was last read from, also to another.
    pub fn new(own: Range<u16>) -> Self {
        Self { entries: vec![Entry::default(); ENTRIES].into_boxed_slice(), own, clock: 0 }
    }

    /// Starts a new batch: entries used in earlier batches count as older.
    pub fn tick(&mut self) {
        self.clock = self.clock.wrapping_add(1);
    }

    /// Returns the queue that the flow was last read from, if it is known.
    #[inline]
    pub fn read_queue(&self, flow: FlowHash) -> Option<u16> {
        let place = self.place(flow);
        self.entries[place..place + WAYS]
            .iter()
            .find(|entry| entry.flow == flow.value)?
            .read_from
            .checked_sub(1)
    }

    /// Reports whether the flow was never read, and `queue` is the writer that it was just staged for, at
    /// most a few batches ago (`ANSWER_BATCHES`).
    pub fn is_first_answer(&self, flow: FlowHash, queue: u16) -> bool {
        let place = self.place(flow);
        self.entries[place..place + WAYS].iter().any(|entry| {
            let is_recent = self.clock.wrapping_sub(entry.used) <= ANSWER_BATCHES;
            entry.flow == flow.value && entry.read_from == 0 && entry.writer == queue && is_recent
        })
    }

    /// Records that the flow was read from `queue`. `completed(writer)` returns the number of items that the
    /// writer has completed.
    #[inline]
    pub fn note_read(&mut self, flow: FlowHash, queue: u16, completed: impl Fn(u16) -> u64) {
        let clock = self.clock;
        let (entry, _) = self.entry(flow, &completed);
        entry.used = clock;
        if entry.read_from != queue + 1 {
            entry.moved_to(queue, completed);
        }
    }

    /// Returns the writer for the next packet of the flow: the previous writer while it holds packets of the
    /// flow, and until the flow was read from its queue, otherwise `choose(queue)`. `queue` is the queue that
    /// the flow was last read from, or for a flow that was never read a queue by its hash.
    ///
    /// The kernel delivers a flow to the queue that it is written to. So a flow that was written to another
    /// queue than it was read from goes back or on only after it was read there: packets that the kernel
    /// delivers later could be read before those in that queue.
    ///
    /// `next_item(writer)` returns the number of the item that the packet will be part of,
    /// `completed(writer)` the number of items that the writer has completed.
    #[inline]
    pub fn stage(
        &mut self,
        flow: FlowHash,
        choose: impl FnOnce(u16) -> u16,
        next_item: impl Fn(u16) -> u64,
        completed: impl Fn(u16) -> u64,
    ) -> u16 {
        let (clock, first, queues) = (self.clock, self.own.start, self.own.end - self.own.start);
        let (entry, evicted) = self.entry(flow, &completed);
        entry.used = clock;
        let by_hash = || first + (flow.value % u64::from(queues)) as u16;
        let wanted = entry.read_from.checked_sub(1).unwrap_or_else(by_hash);
        let in_flight = !evicted && entry.item > completed(entry.writer);
        if !in_flight {
            let chosen = choose(wanted);
            if chosen != entry.writer && entry.may_move() {
                entry.writer = chosen;
            }
        }
        entry.item = next_item(entry.writer);
        entry.writer
    }

    /// Takes over the queues of the flows that `other` knows, the table of another packet thread of the
    /// device. Flows move between these threads, and must stay on their queues. Where both tables know a
    /// flow, the thread that wrote it knows best, or the one that used it last. `completed` is that of
    /// [`Self::stage`].
    ///
    /// What `other` has staged must be written.
    pub fn inherit(&mut self, other: &Self, completed: impl Fn(u16) -> u64) {
        for (number, theirs) in other.entries.iter().enumerate().filter(|(_, theirs)| theirs.flow != 0) {
            let by_writer = if theirs.item == 0 { 0 } else { theirs.writer + 1 };
            let read_from = if theirs.read_from == 0 { by_writer } else { theirs.read_from };
            let place = number / WAYS * WAYS;
            let ways = &mut self.entries[place..place + WAYS];
            let age = other.clock.wrapping_sub(theirs.used);
            let used = self.clock.wrapping_sub(age);
            let own_age = |entry: &Entry| self.clock.wrapping_sub(entry.used);
            if let Some(own) = ways.iter_mut().find(|own| own.flow == theirs.flow) {
                let is_newer = if (own.item == 0) == (theirs.item == 0) {
                    own.read_from == 0 || age < own_age(own)
                } else {
                    own.item == 0
                };
                if is_newer && read_from != 0 {
                    own.read_from = read_from;
                    own.used = used;
                }
                continue;
            }
            let idle = ways.iter_mut().filter(|own| own.flow == 0 || own.item <= completed(own.writer));
            let victim = idle.max_by_key(|own| if own.flow == 0 { u32::MAX } else { own_age(own) });
            if let Some(victim) = victim.filter(|own| own.flow == 0 || own_age(own) > age)
                && read_from != 0
            {
                *victim = Entry { flow: theirs.flow, used, read_from, ..Entry::default() };
            }
        }
    }

    fn place(&self, flow: FlowHash) -> usize {
        // The low bits choose the queue. Other bits choose the set, otherwise the flows of one queue would
        // share sets.
        (flow.value >> 40) as usize % (ENTRIES / WAYS) * WAYS
    }

    /// Returns the entry of the flow, and whether it is new.
    #[inline]
    fn entry(&mut self, flow: FlowHash, completed: impl Fn(u16) -> u64) -> (&mut Entry, bool) {
        let place = self.place(flow);
        let clock = self.clock;
        let ways = &mut self.entries[place..place + WAYS];
        if let Some(known) = ways.iter().position(|entry| entry.flow == flow.value) {
            return (&mut ways[known], false);
        }
        let mut victim = 0;
        let mut best = (false, 0);
        for (way, entry) in ways.iter().enumerate() {
            let idle = entry.item <= completed(entry.writer);
            let age = if entry.flow == 0 { u32::MAX } else { clock.wrapping_sub(entry.used) };
            if (idle, age) > best {
                (victim, best) = (way, (idle, age));
            }
        }
        ways[victim] = Entry { flow: flow.value, used: clock, ..Entry::default() };
        (&mut ways[victim], true)
    }
}

impl std::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowTable").field("own", &self.own).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(value: u64) -> FlowHash {
        FlowHash { value, has_ports: true }
    }

    fn stay(queue: u16) -> u16 {
        queue
    }

    fn udp(version: u8, source: u8, destination: u8, ports: [u8; 4]) -> Vec<u8> {
        let header = if version == 4 { 20 } else { 40 };
        let mut packet = vec![0u8; header + 8];
        packet[0] = if version == 4 { 0x45 } else { 0x60 };
        if version == 4 {
            packet[3] = 28;
            packet[9] = ip::UDP;
            packet[15] = source;
            packet[19] = destination;
        } else {
            packet[5] = 8;
            packet[6] = ip::UDP;
            packet[23] = source;
            packet[39] = destination;
        }
        packet[header..header + 4].copy_from_slice(&ports);
        packet
    }

    proptest! {
        #[test]
        fn both_directions_are_one_flow(
            six in any::<bool>(), a in any::<u8>(), b in any::<u8>(), ports in any::<[u8; 4]>()
        ) {
            let version = if six { 6 } else { 4 };
            let hasher = FlowHasher::random();
            let there = udp(version, a, b, ports);
            let back = udp(version, b, a, [ports[2], ports[3], ports[0], ports[1]]);
            prop_assert_eq!(hasher.hash(&there), hasher.hash(&back));
        }
    }

    #[test]
    fn the_protocol_and_every_bit_of_an_address_and_a_port_tell_flows_apart() {
        let hasher = FlowHasher { seed: 0x0123_4567_89ab_cdef };
        for (version, parts) in [(4, 12..24), (6, 8..44)] {
            let mut packet = udp(version, 1, 2, [0, 1, 0, 2]);
            // The source is the lesser address, whichever bit changes.
            packet[parts.start] = 0x20;
            packet[parts.start + (parts.len() - 4) / 2] = 0xfd;
            let mut hashes = vec![hasher.hash(&packet).value];
            for bit in parts.start * 8..parts.end * 8 {
                let mut other = packet.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                hashes.push(hasher.hash(&other).value);
            }
            packet[if version == 4 { 9 } else { 6 }] = ip::TCP;
            hashes.push(hasher.hash(&packet).value);
            let count = hashes.len();
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), count, "IPv{version}");
        }
    }

    #[test]
    fn flows_spread_over_queues_and_sets() {
        let hasher = FlowHasher { seed: 0x0123_4567_89ab_cdef };
        let by_port =
            |number: u16| udp(4, 1, 2, [number.to_be_bytes(), [0, 80]].concat().try_into().unwrap());
        let by_address = |number: u16| {
            let mut packet = udp(6, 1, 2, [0, 1, 0, 2]);
            packet[20..22].copy_from_slice(&number.to_be_bytes());
            packet
        };
        for flows in [&by_port as &dyn Fn(u16) -> Vec<u8>, &by_address] {
            let mut table = FlowTable::new(0..8);
            let hashes: Vec<_> = (0..8000).map(|number| hasher.hash(&flows(number))).collect();
            let mut queues = [0; 8];
            for hash in &hashes {
                queues[usize::from(table.stage(*hash, stay, |_| 1, |_| 1))] += 1;
            }
            assert!(queues.iter().all(|count| (900..1100).contains(count)), "{queues:?}");
            for hash in &hashes {
                table.note_read(*hash, 3, |_| 1);
            }
            assert!(hashes.iter().all(|hash| table.read_queue(*hash) == Some(3)), "no flow was evicted");
            // Nor is one lost on its way to another table.
            let mut other = FlowTable::new(0..8);
            other.inherit(&table, |_| 1);
            assert!(hashes.iter().all(|hash| other.read_queue(*hash) == Some(3)));
        }
    }

    #[test]
    fn fragments_of_a_datagram_are_one_flow_whatever_their_first_bytes_say() {
        let hasher = FlowHasher::random();
        let (mut first, mut later) = (udp(4, 1, 2, [0, 1, 0, 2]), udp(4, 2, 1, [9, 9, 9, 9]));
        first[6] = 0x20;
        later[7] = 0x10;
        let hash = hasher.hash(&first);
        assert_eq!(hash, hasher.hash(&later));
        assert!(!hash.has_ports);
    }

    #[test]
    fn truncated_packets_have_a_flow() {
        let hasher = FlowHasher::random();
        assert_eq!(hasher.hash(&[]), hasher.hash(&[0x45, 0, 0]));
        let mut packet = udp(4, 1, 2, [0, 1, 0, 2]);
        packet.truncate(22);
        packet[3] = 22;
        assert!(!hasher.hash(&packet).has_ports);
    }

    #[test]
    fn flows_that_differ_in_one_port_count_as_many_under_any_key() {
        for seed in 0..200 {
            let hasher = FlowHasher { seed: mix(seed, 0x9e37_79b9_7f4a_7c15) };
            for reverse in [false, true] {
                let mut counter = crate::LinearCounter::default();
                for port in 0..200 {
                    let ports = if reverse { [0, port, 0xff, 0] } else { [0xff, 0, 0, port] };
                    counter.observe(hasher.hash(&udp(4, 1, 2, ports)).value, 100);
                }
                assert!(counter.count() > 100, "{} with key {seed}", counter.count());
            }
        }
    }

    #[test]
    fn a_flow_is_written_where_it_was_last_read() {
        let mut table = FlowTable::new(0..4);
        table.note_read(flow(6), 3, |_| 1);
        assert_eq!(table.read_queue(flow(6)), Some(3));
        assert_eq!(table.stage(flow(6), stay, |_| 1, |_| 1), 3);
    }

    #[test]
    fn a_flow_that_was_never_read_goes_to_an_own_queue_and_another_to_any() {
        let mut table = FlowTable::new(4..6);
        for value in 1..20 {
            assert_eq!(table.stage(flow(value), stay, |_| 1, |_| 1), 4 + (value % 2) as u16);
        }
        table.note_read(flow(20), 1, |_| 1);
        assert_eq!(table.stage(flow(20), stay, |_| 1, |_| 1), 1);
    }

    #[test]
    fn a_flow_moves_only_when_its_old_writer_is_through() {
        let mut table = FlowTable::new(0..4);
        table.note_read(flow(6), 2, |_| 4);
        assert_eq!(table.stage(flow(6), |_| 3, |_| 5, |_| 4), 3);
        table.note_read(flow(6), 3, |_| 4);
        assert_eq!(table.stage(flow(6), |_| 1, |_| 6, |_| 4), 3);
        assert_eq!(table.stage(flow(6), |_| 1, |_| 7, |_| 5), 3);
        assert_eq!(table.stage(flow(6), |_| 1, |_| 8, |_| 7), 1);
    }

    #[test]
    fn a_flow_moves_on_only_when_it_was_read_where_it_is_written() {
        let stage = |table: &mut FlowTable, choice: u16| table.stage(flow(6), |_| choice, |_| 1, |_| 1);
        for read_before in [None, Some(0), Some(2)] {
            let mut table = FlowTable::new(0..4);
            read_before.into_iter().for_each(|queue| table.note_read(flow(6), queue, |_| 1));
            assert_eq!(stage(&mut table, 1), 1);
            for _ in 0..2 {
                // The last of what was in another queue.
                table.note_read(flow(6), 0, |_| 1);
                assert_eq!(stage(&mut table, 3), 1, "after {read_before:?}: it would overtake what is in 1");
            }
            table.note_read(flow(6), 1, |_| 1);
            assert_eq!(stage(&mut table, 3), 3, "after {read_before:?}");
        }
        let mut table = FlowTable::new(0..4);
        table.note_read(flow(6), 2, |_| 1);
        assert_eq!(stage(&mut table, 2), 2);
        assert_eq!(stage(&mut table, 3), 3, "it was read where it was written");
        table.note_read(flow(6), 3, |_| 1);
        table.note_read(flow(6), 0, |_| 1);
        assert_eq!(stage(&mut table, 0), 0, "the kernel moved it");
    }

    #[test]
    fn a_table_takes_over_the_queues_of_another_one() {
        let (mut table, mut other) = (FlowTable::new(0..2), FlowTable::new(2..4));
        // Read, written and never read, and read here long ago.
        other.note_read(flow(1), 3, |_| 0);
        let written = other.stage(flow(2), stay, |_| 1, |_| 1);
        table.note_read(flow(3), 0, |_| 0);
        other.stage(flow(3), stay, |_| 1, |_| 1);
        other.note_read(flow(3), 2, |_| 1);
        // Written here, and only read there.
        table.note_read(flow(4), 1, |_| 1);
        table.stage(flow(4), stay, |_| 1, |_| 1);
        other.note_read(flow(4), 3, |_| 1);
        // Only read, last by the other.
        table.note_read(flow(5), 0, |_| 1);
        table.tick();
        other.note_read(flow(5), 2, |_| 1);
        table.inherit(&other, |_| 1);
        let queue_of = |table: &mut FlowTable, value| table.stage(flow(value), stay, |_| 2, |_| 1);
        assert_eq!(queue_of(&mut table, 1), 3);
        assert_eq!((written, queue_of(&mut table, 2)), (2, 2));
        assert_eq!([3, 4, 5].map(|value| queue_of(&mut table, value)), [2, 1, 2]);
    }

    #[test]
    fn a_flow_that_is_just_written_and_was_never_read_is_answered_for_the_first_time() {
        let mut table = FlowTable::new(0..4);
        assert_eq!(table.stage(flow(6), stay, |_| 1, |_| 1), 2);
        for _ in 0..=ANSWER_BATCHES {
            assert_eq!([1, 2, 3].map(|queue| table.is_first_answer(flow(6), queue)), [false, true, false]);
            assert!(!table.is_first_answer(flow(2), 2), "another flow of that queue");
            table.tick();
        }
        assert!(!table.is_first_answer(flow(6), 2), "long ago");
        table.stage(flow(6), stay, |_| 1, |_| 1);
        assert!(table.is_first_answer(flow(6), 2));
        table.note_read(flow(6), 2, |_| 1);
        assert!(!table.is_first_answer(flow(6), 2), "it was read");
    }

    #[test]
    fn where_both_tables_read_a_flow_the_last_one_knows_its_queue() {
        let (mut table, mut other) = (FlowTable::new(0..2), FlowTable::new(2..4));
        // Written by both: read there, and later written here again.
        other.stage(flow(1), stay, |_| 1, |_| 1);
        other.note_read(flow(1), 3, |_| 1);
        other.tick();
        table.stage(flow(1), stay, |_| 1, |_| 1);
        // Read there, and later here.
        other.note_read(flow(2), 3, |_| 1);
        other.tick();
        table.note_read(flow(2), 1, |_| 1);
        table.inherit(&other, |_| 1);
        assert_eq!([1, 2].map(|value| table.read_queue(flow(value))), [Some(3), Some(1)]);
    }

    #[test]
    fn no_flow_with_packets_in_flight_gives_way_to_one_of_another_table() {
        let (mut table, mut other) = (FlowTable::new(0..2), FlowTable::new(2..4));
        for id in 1..=WAYS as u64 {
            table.stage(flow(id), stay, |_| 9, |_| 0);
        }
        table.tick();
        other.note_read(flow(100), 3, |_| 0);
        table.inherit(&other, |_| 0);
        assert_eq!(table.read_queue(flow(100)), None);
        for id in 1..=WAYS as u64 {
            assert_eq!(table.stage(flow(id), |queue| 1 - queue, |_| 10, |_| 0), (id % 2) as u16);
        }
    }

    #[test]
    fn a_full_place_takes_over_the_younger_flows() {
        let (mut table, mut other) = (FlowTable::new(0..2), FlowTable::new(2..4));
        for id in 1..=WAYS as u64 {
            table.note_read(flow(id), 1, |_| 0);
            table.tick();
        }
        // As old as the first of these, and younger than all.
        other.note_read(flow(101), 2, |_| 0);
        (0..WAYS).for_each(|_| other.tick());
        other.note_read(flow(100), 3, |_| 0);
        table.inherit(&other, |_| 0);
        assert_eq!([1, 2].map(|id| table.read_queue(flow(id))), [None, Some(1)]);
        assert_eq!([100, 101].map(|id| table.read_queue(flow(id)).is_some()), [true, false]);
    }

    #[test]
    fn a_full_place_gives_up_its_oldest_idle_flow() {
        let mut table = FlowTable::new(0..2);
        // One set with `WAYS` flows: the first is still in flight, the others are idle, each younger than the
        // previous.
        table.stage(flow(1), stay, |_| 9, |_| 0);
        for id in 2..=WAYS as u64 {
            table.tick();
            table.note_read(flow(id), 1, |_| 0);
        }
        table.tick();
        table.note_read(flow(100), 1, |_| 0);
        assert_eq!(table.read_queue(flow(2)), None);
        assert_eq!(table.read_queue(flow(3)), Some(1));
        table.note_read(flow(1), 0, |_| 0);
        assert_eq!(table.stage(flow(1), stay, |_| 10, |_| 0), 1, "its writer was remembered");
    }
}
