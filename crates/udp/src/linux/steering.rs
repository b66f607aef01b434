//! The group of sockets of one address family and port, and the program that chooses one of them for each
//! datagram: data goes into lanes, handshake messages into one socket, and datagrams that cannot be WireGuard
//! messages into the drain. Attaching the program needs no privilege.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::super::Half;
use super::lanes::{LANES, OWN, SHARED};
use super::program::{Key, Rules, program};

/// Number of the socket for handshake messages, after the lanes.
pub(super) const HANDSHAKES: usize = LANES;
/// Number of the drain.
pub(super) const DRAIN: usize = LANES + 1;
/// Sockets of a group.
pub(super) const SOCKETS: usize = LANES + 2;
/// Maximum number of receiver indices in the program. They take about 800 of the 4,096 instructions that it
/// may have. The kernel needs 1 to 3 ms to accept the program, and the kernel's form of it has to fit
/// net.core.optmem_max, which was 20 KiB before Linux 6.8.
pub(super) const MOST_RECEIVERS: usize = 512;
/// Bytes that all sockets receive while a single-source lane receives none, after which the lane may be
/// assigned to another source.
const AT_REST: u64 = 64 << 20;
/// From asm-generic/socket.h.
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// A lane that is assigned to a single source.
#[derive(Clone, Copy, Debug)]
struct Own {
    source: SocketAddr,
    /// Total bytes received by all sockets when this lane last received something.
    used: u64,
}

/// Which well-formed messages the program lets pass, by receiver index.
#[derive(Clone, Debug, Default)]
enum Receivers {
    #[default]
    All,
    /// All indices, but only messages with the exact length of their type. There are too many indices for the
    /// program.
    TooMany,
    /// Only these indices, sorted as the program reads them.
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
    /// Attaches the program to the group of `first`, which has all [`SOCKETS`] sockets or will have them. No
    /// source has a lane for itself.
    pub(super) fn attach(first: &impl AsRawFd, is_v6: bool, key: Key) -> io::Result<Self> {
        let this = Self { is_v6, key, own: Vec::new(), receivers: Receivers::All, half: None };
        this.load(first, &this.own, &this.receivers)?;
        Ok(this)
    }

    /// Detaches the program, so that the kernel chooses by its own hash again. It is not an error if there is
    /// no program.
    pub(super) fn detach(first: &impl AsRawFd) {
        let _ = super::socket::set_option(first, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0);
    }

    /// Returns the shared lane of a source; `None` if the source has a lane for itself, or is of the other
    /// family.
    pub(super) fn shared_lane(&self, source: SocketAddr) -> Option<usize> {
        let has_own = self.own.iter().any(|own| own.source == source);
        (!has_own && source.is_ipv6() == self.is_v6).then(|| self.key.shared_lane(source))
    }

    /// Assigns a lane to `source` alone and returns the number of the lane; `None` if the source has a lane
    /// already, or if all are in use. `is_empty` reports whether a lane was empty at its last read.
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
        // The assignment takes effect only once the kernel has accepted the program.
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

    /// Records that a lane received something. `received` is the number of bytes that all sockets have
    /// received.
    pub(super) fn had(&mut self, lane: usize, received: u64) {
        if let Some(own) = lane.checked_sub(SHARED).and_then(|place| self.own.get_mut(place)) {
            own.used = received;
        }
    }

    /// Reports whether messages with some receiver indices or lengths are dropped.
    pub(super) fn is_filtering(&self) -> bool {
        !matches!(self.receivers, Receivers::All)
    }

    /// Reports whether any well-formed messages are dropped.
    pub(super) fn is_restricted(&self) -> bool {
        self.is_filtering() || self.half.is_some()
    }

    /// Lets initiations without a cookie pass only from sources in `half`; `None` lets all pass.
    pub(super) fn let_half_ask(&mut self, first: &impl AsRawFd, half: Option<Half>) -> io::Result<()> {
        let before = std::mem::replace(&mut self.half, half);
        let result = self.load(first, &self.own, &self.receivers);
        if result.is_err() {
            self.half = before;
        }
        result
    }

    /// Lets only messages with these receiver indices pass, unless there are too many for the program; `None`
    /// lets all pass. If the kernel does not accept the program, a less strict program replaces the old one,
    /// because an outdated list must not stay in force.
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
    // SAFETY: the option is a sock_fprog, and its filter points to `len` instructions. The kernel copies and
    // checks them, and writes to none of it.
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
