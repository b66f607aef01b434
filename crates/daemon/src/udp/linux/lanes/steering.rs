//! Which lane the kernel puts a datagram into: by a hash of where it came from, but for sources that have lanes of their
//! own. It is told by a program of classic BPF, which needs no privilege (SO_ATTACH_REUSEPORT_CBPF, socket(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::{OWN, SHARED};

/// Bytes that others sent while a source sent nothing, after which its lane may become another one's.
const AT_REST: u64 = 64 << 20;

/// Where the source's address and port are in the headers of an IP packet without options.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    address: u32,
    words: u32,
    port: u32,
}

const IPV4: Offsets = Offsets { address: 12, words: 1, port: 20 };
const IPV6: Offsets = Offsets { address: 8, words: 4, port: 40 };

/// A lane that one source has for itself.
#[derive(Clone, Copy, Debug)]
struct Own {
    source: SocketAddr,
    /// Bytes that all lanes had received when this one had something last.
    used: u64,
}

/// The program of the sockets of one family and port, and who has a lane of their own.
#[derive(Debug)]
pub(super) struct Steering {
    is_v6: bool,
    own: Vec<Own>,
}

impl Steering {
    /// Takes the choice over for the group of `first`, which has all lanes; nobody has one of their own.
    pub(super) fn attach(first: &impl AsRawFd, is_v6: bool) -> io::Result<Self> {
        attach(first, &program(is_v6, &[]))?;
        Ok(Self { is_v6, own: Vec::new() })
    }

    /// Gives `source` a lane of its own, and says which: `None` if it has one, or if all are in use. `is_empty` says whether
    /// a lane had nothing when it was read last.
    pub(super) fn give(
        &mut self,
        first: &impl AsRawFd,
        source: SocketAddr,
        received: u64,
        is_empty: impl Fn(usize) -> bool,
    ) -> io::Result<Option<usize>> {
        if self.own.iter().any(|own| own.source == source) {
            return Ok(None);
        }
        let at_rest = |(place, own): (usize, &Own)| {
            received.saturating_sub(own.used) >= AT_REST && is_empty(SHARED + place)
        };
        let given = Own { source, used: received };
        // Only once the kernel has taken the program does anybody have a lane.
        let mut own = self.own.clone();
        let place = if own.len() < OWN {
            own.push(given);
            own.len() - 1
        } else if let Some(place) = own.iter().enumerate().position(at_rest) {
            own[place] = given;
            place
        } else {
            return Ok(None);
        };
        attach(first, &program(self.is_v6, &own))?;
        self.own = own;
        Ok(Some(SHARED + place))
    }

    /// A lane had something, when all together had received so many bytes.
    pub(super) fn had(&mut self, lane: usize, received: u64) {
        if let Some(own) = lane.checked_sub(SHARED).and_then(|place| self.own.get_mut(place)) {
            own.used = received;
        }
    }
}

/// Gives the number of a lane. Where it cannot read, the kernel takes the first.
fn program(is_v6: bool, own: &[Own]) -> Vec<sock_filter> {
    let offsets = if is_v6 { IPV6 } else { IPV4 };
    let mut program = Vec::new();
    for word in 0..offsets.words {
        program.extend([load(libc::BPF_W, offsets.address + 4 * word), keep(word)]);
    }
    program.extend([load(libc::BPF_H, offsets.port), keep(offsets.words)]);
    for (place, own) in own.iter().enumerate() {
        let mut wanted = words(own.source.ip());
        wanted.push(own.source.port().into());
        let fields = wanted.len();
        for (field, value) in wanted.into_iter().enumerate() {
            // Past the other comparisons, of two instructions each, and the answer.
            let past = 2 * (fields - 1 - field) + 1;
            program.extend([kept(field as u32), unless_equal(value, past as u8)]);
        }
        program.push(answer((SHARED + place) as u32));
    }
    program.extend(hash(offsets.words + 1));
    program
}

/// The number of a shared lane, from the words that were kept: multiplicative hashing (Knuth, volume 3, 6.4), of which the
/// highest bits are the best.
fn hash(words: u32) -> Vec<sock_filter> {
    const GOLDEN: u32 = 0x9e37_79b1;
    let multiply = operate(libc::BPF_MUL | libc::BPF_K, GOLDEN);
    let mut program = vec![kept(0), multiply];
    for word in 1..words {
        let add_kept =
            [instruction(libc::BPF_LDX | libc::BPF_MEM, word), operate(libc::BPF_ADD | libc::BPF_X, 0)];
        program.extend(add_kept);
        program.push(multiply);
    }
    // The product's high bits know of all bits below them; mixed in below, they reach the high ones again.
    program.extend([
        instruction(libc::BPF_MISC | libc::BPF_TAX, 0),
        operate(libc::BPF_RSH | libc::BPF_K, 15),
        operate(libc::BPF_XOR | libc::BPF_X, 0),
        multiply,
        operate(libc::BPF_RSH | libc::BPF_K, u32::BITS - SHARED.ilog2()),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ]);
    program
}

fn words(address: IpAddr) -> Vec<u32> {
    match address {
        IpAddr::V4(address) => vec![address.to_bits()],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [96, 64, 32, 0].map(|shift| (bits >> shift) as u32).to_vec()
        }
    }
}

fn instruction(code: u32, value: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}

fn operate(operation: u32, value: u32) -> sock_filter {
    instruction(libc::BPF_ALU | operation, value)
}

/// Reads from the IP header on, whatever the program's data begins with.
fn load(size: u32, offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_ABS | size, (libc::SKF_NET_OFF as u32).wrapping_add(offset))
}

fn keep(place: u32) -> sock_filter {
    instruction(libc::BPF_ST, place)
}

fn kept(place: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_MEM, place)
}

fn unless_equal(value: u32, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value) }
}

fn answer(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value)
}

fn attach(first: &impl AsRawFd, program: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the option is a sock_fprog, whose filter points to `len` instructions. The kernel copies and checks them, and
    // writes to none of it.
    let result = unsafe {
        libc::setsockopt(
            first.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
