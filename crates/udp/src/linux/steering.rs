//! The group of sockets of one address family and port, and the program that puts each datagram into one of them: data into
//! lanes, handshake messages into one socket, and what cannot be WireGuard into the drain. It needs no privilege.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::super::Half;
use super::lanes::{LANES, OWN, SHARED};
use super::program::{Key, Rules, program};

/// The numbers of the sockets after the lanes, and how many there are.
pub(super) const HANDSHAKES: usize = LANES;
pub(super) const DRAIN: usize = LANES + 1;
pub(super) const SOCKETS: usize = LANES + 2;
/// Receiver indices that the program tells from others. They take about 800 of the 4,096 instructions that it may have; the
/// kernel needs one to three milliseconds to take it, and its own form of it has to fit net.core.optmem_max, which was 20 KiB
/// before Linux 6.8.
pub(super) const MOST_RECEIVERS: usize = 512;
/// Bytes that others sent while a source sent nothing, after which its lane may become another one's.
const AT_REST: u64 = 64 << 20;
/// Of asm-generic/socket.h.
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// A lane that one source has for itself.
#[derive(Clone, Copy, Debug)]
struct Own {
    source: SocketAddr,
    /// Bytes that all lanes had received when this one had something last.
    used: u64,
}

/// What the program lets pass of what has the shape of a message.
#[derive(Clone, Debug, Default)]
enum Receivers {
    #[default]
    All,
    /// All, with the exact length of its type: there are too many to tell them from others.
    TooMany,
    /// Sorted as the program reads them.
    Only(Vec<u32>),
}

/// The program of the sockets of one family and port.
#[derive(Debug)]
pub(super) struct Steering {
    is_v6: bool,
    key: Key,
    own: Vec<Own>,
    receivers: Receivers,
    half: Option<Half>,
}

impl Steering {
    /// Takes the choice over for the group of `first`, which has all [`SOCKETS`] or will; no source has a lane for itself.
    pub(super) fn attach(first: &impl AsRawFd, is_v6: bool, key: Key) -> io::Result<Self> {
        let this = Self { is_v6, key, own: Vec::new(), receivers: Receivers::All, half: None };
        this.load(first, &this.own, &this.receivers)?;
        Ok(this)
    }

    /// Lets the kernel choose again, by a hash of its own. One that knows of no program is content.
    pub(super) fn detach(first: &impl AsRawFd) {
        let _ = super::socket::set_option(first, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0);
    }

    /// The shared lane of a source; `None` if it has one for itself.
    pub(super) fn shared_lane(&self, source: SocketAddr) -> Option<usize> {
        let has_own = self.own.iter().any(|own| own.source == source);
        (!has_own && source.is_ipv6() == self.is_v6).then(|| self.key.shared_lane(source))
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
        self.load(first, &own, &self.receivers)?;
        self.own = own;
        Ok(Some(SHARED + place))
    }

    /// A lane had something, when all together had received so many bytes.
    pub(super) fn had(&mut self, lane: usize, received: u64) {
        if let Some(own) = lane.checked_sub(SHARED).and_then(|place| self.own.get_mut(place)) {
            own.used = received;
        }
    }

    /// Whether messages with some receiver indices or lengths do not pass.
    pub(super) fn is_filtering(&self) -> bool {
        !matches!(self.receivers, Receivers::All)
    }

    /// Whether anything that has the shape of a message does not pass.
    pub(super) fn is_restricted(&self) -> bool {
        self.is_filtering() || self.half.is_some()
    }

    /// Lets pass initiations without a cookie only from these sources, or from all again.
    pub(super) fn let_half_ask(&mut self, first: &impl AsRawFd, half: Option<Half>) -> io::Result<()> {
        let before = std::mem::replace(&mut self.half, half);
        let result = self.load(first, &self.own, &self.receivers);
        if result.is_err() {
            self.half = before;
        }
        result
    }

    /// Lets pass only messages with these receiver indices, if they are not too many for the program, or all again. A list
    /// that the kernel does not take must not leave an older one in force.
    pub(super) fn let_pass(&mut self, first: &impl AsRawFd, receivers: Option<&[u32]>) -> io::Result<()> {
        let receivers = match receivers {
            None => Receivers::All,
            Some(receivers) if receivers.len() > MOST_RECEIVERS => Receivers::TooMany,
            Some(receivers) => {
                let mut sorted: Vec<u32> = receivers.iter().map(|index| index.swap_bytes()).collect();
                sorted.sort_unstable();
                sorted.dedup();
                Receivers::Only(sorted)
            }
        };
        for receivers in [receivers, Receivers::TooMany] {
            match self.load(first, &self.own, &receivers) {
                Ok(()) => {
                    self.receivers = receivers;
                    return Ok(());
                }
                Err(error) => tracing::debug!(%error, "the kernel does not take so long a program"),
            }
        }
        self.load(first, &self.own, &Receivers::All)?;
        self.receivers = Receivers::All;
        Ok(())
    }

    fn load(&self, first: &impl AsRawFd, own: &[Own], receivers: &Receivers) -> io::Result<()> {
        let own: Vec<_> = own.iter().enumerate().map(|(place, own)| (own.source, SHARED + place)).collect();
        let rules = Rules {
            is_v6: self.is_v6,
            key: self.key,
            own: &own,
            is_strict: !matches!(receivers, Receivers::All),
            receivers: match receivers {
                Receivers::Only(receivers) => Some(receivers),
                Receivers::All | Receivers::TooMany => None,
            },
            half: self.half,
        };
        attach(first, libc::SO_ATTACH_REUSEPORT_CBPF, &program(&rules))
    }
}

/// Attaches a program to a socket or its group, as `option` says.
pub(super) fn attach(socket: &impl AsRawFd, option: libc::c_int, code: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: code.as_ptr().cast_mut() };
    // SAFETY: the option is a sock_fprog, whose filter points to `len` instructions. The kernel copies and checks them, and
    // writes to none of it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
