//! The classic BPF program that chooses a socket of the group for each datagram (SO_ATTACH_REUSEPORT_CBPF,
//! socket(7)).
//!
//! Its data begins with the UDP payload; negative offsets reach the IP header. The kernel may have joined
//! several datagrams of one sender (GRO): the length is that of all of them, and the message header is that
//! of the first.

use libc::sock_filter;

use super::super::Half;

/// Numbers of the sockets of a group. The kernel chooses the first if it cannot run the program.
pub(super) const DATA: usize = 0;
/// Responses, cookie replies, and initiations with a cookie.
pub(super) const HANDSHAKES: usize = 1;
/// Initiations without a cookie: what any sender can make. A flood of them overflows only this socket, and a
/// peer that was sent a cookie is past it.
pub(super) const INITIATIONS: usize = 2;
/// What cannot be a message for this interface.
pub(super) const DRAIN: usize = 3;
/// Sockets of a group with one shard.
pub(super) const SOCKETS: usize = 4;
/// Sockets of each further shard: data, then handshake messages.
pub(super) const SOCKETS_OF_A_SHARD: usize = 2;
/// The first four bytes of a message: its type, and three zeros.
const INITIATION: u32 = 0x0100_0000;
const RESPONSE: u32 = 0x0200_0000;
const COOKIE_REPLY: u32 = 0x0300_0000;
const TRANSPORT_DATA: u32 = 0x0400_0000;
/// Bytes of the shortest message: a data message without data.
const SHORTEST: u32 = 32;
/// The bytes of mac2 in an initiation: zeros without a cookie (whitepaper, section 5.4.2).
const MAC2: std::ops::Range<u32> = 132..148;

/// The place of the receiver index in the memory of the program, beside those of [`hash`].
const INDEX: usize = Key::WORDS + 1;

/// Offsets of the source address and the source port in the headers of an IP packet without options.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    address: u32,
    words: u32,
    port: u32,
}

const IPV4: Offsets = Offsets { address: 12, words: 1, port: 20 };
const IPV6: Offsets = Offsets { address: 8, words: 4, port: 40 };

/// The key of the hash that divides sources into halves: odd multipliers. They are random, so that no sender
/// can choose the half of a source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key([u32; Self::WORDS]);

impl Key {
    /// One multiplier for each word of an IPv6 address, one for the port, and the last for the sum.
    const WORDS: usize = 6;

    pub(super) fn random() -> Self {
        Self(rand::random::<[u32; Self::WORDS]>().map(|multiplier| multiplier | 1))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The rules of the program.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    pub(super) is_v6: bool,
    pub(super) key: Key,
    /// Number of shards, at least 1.
    pub(super) shards: u32,
    /// Whether messages other than data pass only with an exact length. Joined datagrams may begin with a
    /// handshake message and continue with shorter data: while no junk arrives, lengths that this could
    /// explain pass too.
    pub(super) is_strict: bool,
    /// The receiver indices that pass; `None` lets all pass.
    pub(super) receivers: Option<Receivers<'a>>,
    /// The sources that may send initiations without a cookie; `None` lets all pass.
    pub(super) half: Option<Half>,
}

/// The receiver indices that pass, as they are read from messages (big endian).
#[derive(Clone, Copy, Debug)]
pub(super) struct Receivers<'a> {
    /// The indices of the shards that have a list, sorted.
    pub(super) listed: &'a [u32],
    /// The shards that have no list, sorted: all their indices pass.
    pub(super) unlisted: &'a [u32],
}

impl Rules<'_> {
    fn offsets(&self) -> Offsets {
        if self.is_v6 { IPV6 } else { IPV4 }
    }
}

/// Returns a program that returns the number of a socket. If the program cannot read the packet, the kernel
/// chooses the first socket.
pub(super) fn program(rules: &Rules<'_>) -> Vec<sock_filter> {
    let mut code = Assembler::default();
    let drain = code.answer(DRAIN);
    let handshakes = code.answer(HANDSHAKES);
    let data = code.answer(DATA);
    let initiation = code.initiation(rules, handshakes, drain);
    let [known_data, response, cookie_reply] = match rules.receivers {
        None if rules.shards == 1 => [data, handshakes, handshakes],
        receivers => {
            // X holds the message type.
            let found = if rules.shards == 1 {
                code.branch(libc::BPF_JEQ, TRANSPORT_DATA, data, handshakes);
                code.block(&[instruction(libc::BPF_MISC | libc::BPF_TXA, 0)])
            } else {
                code.socket_of_shard(rules.shards)
            };
            let choose = match receivers {
                None => found,
                Some(Receivers { listed, unlisted: [] }) => code.search(listed, found, drain),
                Some(Receivers { listed, unlisted }) => {
                    code.search(listed, found, drain);
                    let search = code.block(&[kept(INDEX)]);
                    code.jump(found);
                    let pass = code.block(&[kept(INDEX)]);
                    code.search(unlisted, pass, search);
                    code.block(&[keep(INDEX), operate(libc::BPF_MOD | libc::BPF_K, rules.shards)])
                }
            };
            let at_4 = code.block(&[load(4)]);
            code.jump(choose);
            let at_8 = code.block(&[load(8)]);
            [at_4, at_8, at_4]
        }
    };
    let joined = if rules.is_strict { drain } else { data };
    let mut next = drain;
    for (kind, bytes, exact) in
        [(COOKIE_REPLY, 64, cookie_reply), (RESPONSE, 92, response), (INITIATION, 148, initiation)]
    {
        let of_length = code.of_length(bytes, exact, joined, drain);
        next = code.branch(libc::BPF_JEQ, kind, of_length, next);
    }
    code.branch(libc::BPF_JEQ, TRANSPORT_DATA, known_data, next);
    let kind = code.block(&[load(0), instruction(libc::BPF_MISC | libc::BPF_TAX, 0)]);
    code.branch(libc::BPF_JGE, SHORTEST, kind, drain);
    code.block(&[length()]);
    code.in_order()
}

/// A position in the program: the instructions from there to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label(usize);

/// Writes a program from its end. All jumps go forward, so their targets are written already.
#[derive(Debug, Default)]
struct Assembler {
    reversed: Vec<sock_filter>,
}

impl Assembler {
    /// Maximum distance of a conditional jump, which leaves room for one more instruction before its target.
    const REACH: usize = u8::MAX as usize - 1;
    /// Maximum number of indices that are compared one after the other.
    const LEAF: usize = 8;

    fn in_order(mut self) -> Vec<sock_filter> {
        self.reversed.reverse();
        self.reversed
    }

    fn here(&self) -> Label {
        Label(self.reversed.len())
    }

    /// Writes instructions in the order in which they run, in front of those written before.
    fn block(&mut self, code: &[sock_filter]) -> Label {
        self.reversed.extend(code.iter().rev());
        self.here()
    }

    fn answer(&mut self, socket: usize) -> Label {
        self.block(&[instruction(libc::BPF_RET | libc::BPF_K, socket as u32)])
    }

    fn jump(&mut self, to: Label) -> Label {
        let distance = self.reversed.len() - to.0;
        self.block(&[instruction(libc::BPF_JMP | libc::BPF_JA, distance as u32)])
    }

    /// Returns a position that leads to `to`, and that is still in reach after `more` more instructions.
    fn within_reach(&mut self, to: Label, more: usize) -> Label {
        if self.reversed.len() - to.0 + more > Self::REACH { self.jump(to) } else { to }
    }

    fn branch(&mut self, test: u32, value: u32, yes: Label, no: Label) -> Label {
        let no = self.within_reach(no, 0);
        let yes = self.within_reach(yes, 0);
        let distance = |label: Label| (self.reversed.len() - label.0) as u8;
        let (jt, jf) = (distance(yes), distance(no));
        self.block(&[sock_filter { jt, jf, ..instruction(libc::BPF_JMP | libc::BPF_K | test, value) }])
    }

    /// Jumps to `exact` for one message of `bytes` bytes or several of that length, to `joined` if a shorter
    /// message may follow, and otherwise to `drain`.
    fn of_length(&mut self, bytes: u32, exact: Label, joined: Label, drain: Label) -> Label {
        let rest = self.branch(libc::BPF_JGE, SHORTEST, joined, drain);
        self.branch(libc::BPF_JEQ, 0, exact, rest);
        let long_enough = self.block(&[operate(libc::BPF_MOD | libc::BPF_K, bytes)]);
        self.branch(libc::BPF_JGE, bytes, long_enough, drain);
        self.block(&[length()])
    }

    /// Searches `sorted` for the loaded value (binary search).
    fn search(&mut self, sorted: &[u32], found: Label, missing: Label) -> Label {
        if sorted.len() > Self::LEAF {
            let (low, high) = sorted.split_at(sorted.len() / 2);
            let upper = self.search(high, found, missing);
            let lower = self.search(low, found, missing);
            return self.branch(libc::BPF_JGE, high[0], upper, lower);
        }
        // One long jump serves all comparisons.
        let missing = self.within_reach(missing, 2 * Self::LEAF);
        let found = self.within_reach(found, Self::LEAF);
        if sorted.is_empty() {
            return self.jump(missing);
        }
        sorted.iter().fold(missing, |next, index| self.branch(libc::BPF_JEQ, *index, found, next))
    }

    /// Answers with the socket of the shard of the loaded index: that for data or that for handshake
    /// messages, by the message type in X.
    fn socket_of_shard(&mut self, shards: u32) -> Label {
        const NUMBER: usize = INDEX;
        let return_it = instruction(libc::BPF_RET | libc::BPF_A, 0);
        let add = |count| operate(libc::BPF_ADD | libc::BPF_K, count as u32);
        let data = self.block(&[kept(NUMBER), return_it]);
        let handshakes = self.block(&[kept(NUMBER), add(HANDSHAKES - DATA), return_it]);
        self.branch(libc::BPF_JEQ, TRANSPORT_DATA, data, handshakes);
        let number = self.block(&[keep(NUMBER), instruction(libc::BPF_MISC | libc::BPF_TXA, 0)]);
        // The sockets of further shards follow those of a group with one shard. Those of shard 0 are the
        // first.
        let further = self.block(&[
            operate(libc::BPF_MUL | libc::BPF_K, SOCKETS_OF_A_SHARD as u32),
            add(SOCKETS - SOCKETS_OF_A_SHARD),
        ]);
        self.branch(libc::BPF_JEQ, 0, number, further);
        self.block(&[operate(libc::BPF_MOD | libc::BPF_K, shards)])
    }

    /// Jumps to `proven` for initiations with a cookie. The others have a separate socket; while only half
    /// of the sources are heard, those of the other half jump to `drain`.
    fn initiation(&mut self, rules: &Rules<'_>, proven: Label, drain: Label) -> Label {
        let proven = self.jump(proven);
        let mut next = self.answer(INITIATIONS);
        if let Some(half) = rules.half {
            let (upper, lower) = match half {
                Half::Lower => (self.jump(drain), next),
                Half::Upper => (next, self.jump(drain)),
            };
            self.branch(libc::BPF_JSET, 1 << (u32::BITS - 1), upper, lower);
            self.hash(rules);
            next = self.keep_source(rules);
        }
        for offset in MAC2.step_by(size_of::<u32>()).rev() {
            self.branch(libc::BPF_JEQ, 0, next, proven);
            next = self.block(&[load(offset)]);
        }
        next
    }

    /// Stores the words that distinguish sources.
    fn keep_source(&mut self, rules: &Rules<'_>) -> Label {
        let offsets = rules.offsets();
        for field in (0..=offsets.words as usize).rev() {
            let load = match field as u32 {
                word if word < offsets.words => load_header(libc::BPF_W, offsets.address + 4 * word),
                _ => load_header(libc::BPF_H, offsets.port),
            };
            self.block(&[load, keep(field)]);
        }
        self.here()
    }

    /// Computes the hash of the stored words.
    fn hash(&mut self, rules: &Rules<'_>) -> Label {
        let fields = rules.offsets().words as usize + 1;
        self.block(&hash(&rules.key.0[..fields], rules.key.0[Key::WORDS - 1]))
    }
}

/// Returns the instructions that compute the hash of the stored words: multiply-shift hashing (Dietzfelbinger
/// et al., 1997) of a sum of products. Its upper bits are good.
fn hash(multipliers: &[u32], last: u32) -> Vec<sock_filter> {
    const SUM: usize = Key::WORDS;
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_IMM, 0), keep(SUM)];
    for (word, multiplier) in multipliers.iter().enumerate() {
        program.extend([
            kept(word),
            operate(libc::BPF_MUL | libc::BPF_K, *multiplier),
            instruction(libc::BPF_LDX | libc::BPF_MEM, SUM as u32),
            operate(libc::BPF_ADD | libc::BPF_X, 0),
            keep(SUM),
        ]);
    }
    program.extend([
        instruction(libc::BPF_MISC | libc::BPF_TAX, 0),
        operate(libc::BPF_RSH | libc::BPF_K, 15),
        operate(libc::BPF_XOR | libc::BPF_X, 0),
        operate(libc::BPF_MUL | libc::BPF_K, last),
    ]);
    program
}

pub(super) fn instruction(code: u32, value: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}

fn operate(operation: u32, value: u32) -> sock_filter {
    instruction(libc::BPF_ALU | operation, value)
}

fn length() -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0)
}

/// Loads a word of the payload, big endian.
fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_ABS | libc::BPF_W, offset)
}

/// Loads from the IP header, at `offset` from its start.
fn load_header(size: u32, offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_ABS | size, (libc::SKF_NET_OFF as u32).wrapping_add(offset))
}

fn keep(place: usize) -> sock_filter {
    instruction(libc::BPF_ST, place as u32)
}

fn kept(place: usize) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_MEM, place as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the program as lines of code, jumps and value.
    fn text(rules: &Rules<'_>) -> String {
        let line = |code: sock_filter| format!("{:02x} {} {} {:x}\n", code.code, code.jt, code.jf, code.k);
        program(rules).into_iter().map(line).collect()
    }

    /// The files are from before there were shards.
    #[test]
    fn the_program_of_one_shard_knows_nothing_of_shards() {
        let listed: Vec<u32> = (0..20).map(|number| number * 0x0101_0101).collect();
        let receivers = Some(Receivers { listed: &listed, unlisted: &[] });
        let key = Key([1, 3, 5, 7, 9, 11]);
        let plain = Rules { is_v6: false, key, shards: 1, is_strict: false, receivers: None, half: None };
        assert_eq!(text(&plain), include_str!("program/plain.txt"));
        let listed = Rules { is_v6: true, is_strict: true, receivers, half: Some(Half::Upper), ..plain };
        assert_eq!(text(&listed), include_str!("program/listed.txt"));
    }
}
