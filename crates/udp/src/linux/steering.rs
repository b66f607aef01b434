//! The group of sockets of one address family and port, and the program that chooses one of them for each
//! datagram: data, handshake messages and initiations without a cookie have a socket each, and datagrams that
//! cannot be WireGuard messages go to the drain. Attaching the program needs no privilege.

use std::io;
use std::os::fd::AsRawFd;

use libc::sock_filter;

use super::super::Half;
use super::program::{Key, Rules, program};

/// Numbers of the sockets of a group. The kernel chooses the first if it cannot run the program.
pub(super) const DATA: usize = 0;
/// Responses, cookie replies, and initiations with a cookie.
pub(super) const HANDSHAKES: usize = 1;
/// Initiations without a cookie: what any sender can make. A flood of them overflows only this socket, and a
/// peer that was sent a cookie is past it.
pub(super) const INITIATIONS: usize = 2;
/// What cannot be a message for this interface.
pub(super) const DRAIN: usize = 3;
/// Sockets of a group.
pub(super) const SOCKETS: usize = 4;
/// Maximum number of receiver indices in the program. They take about 800 of the 4,096 instructions that it
/// may have. The kernel needs 1 to 3 ms to accept the program, and the kernel's form of it has to fit
/// net.core.optmem_max, which was 20 KiB before Linux 6.8.
pub(super) const MOST_RECEIVERS: usize = 512;
/// From asm-generic/socket.h.
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

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
    receivers: Receivers,
    half: Option<Half>,
}

impl Steering {
    /// Attaches the program to the group of `first`, which has all [`SOCKETS`] sockets or will have them.
    pub(super) fn attach(first: &impl AsRawFd, is_v6: bool) -> io::Result<Self> {
        let this = Self { is_v6, key: Key::random(), receivers: Receivers::All, half: None };
        this.load(first, &this.receivers)?;
        Ok(this)
    }

    /// Detaches the program, so that the kernel chooses by its own hash again. It is not an error if there is
    /// no program.
    pub(super) fn detach(first: &impl AsRawFd) {
        let _ = crate::sockopt::set_option(first, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0);
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
        let result = self.load(first, &self.receivers);
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
            match self.load(first, &receivers) {
                Ok(()) => {
                    self.receivers = receivers;
                    return Ok(());
                }
                Err(error) => tracing::debug!(%error, "the kernel does not take so long a program"),
            }
        }
        self.load(first, &Receivers::All)?;
        self.receivers = Receivers::All;
        Ok(())
    }

    fn load(&self, first: &impl AsRawFd, receivers: &Receivers) -> io::Result<()> {
        let rules = Rules {
            is_v6: self.is_v6,
            key: self.key,
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
