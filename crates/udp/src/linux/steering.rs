//! The group of sockets of one address family and port, and the program that chooses one of them for each
//! datagram: data, handshake messages and initiations without a cookie have a socket each, and datagrams that
//! cannot be WireGuard messages go to the drain. Attaching the program needs no privilege.
//!
//! Each further shard has two more sockets, for the data and the handshake messages of its receiver indices:
//! those that it is the remainder of, modulo the number of shards. They follow the drain, so that another
//! number of shards changes no number of a socket.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::sock_filter;

use super::super::Half;
pub(super) use super::program::{DATA, DRAIN, HANDSHAKES, SOCKETS, SOCKETS_OF_A_SHARD};
use super::program::{Key, Receivers, Rules, program};

/// Maximum number of receiver indices in the program. They take about 800 of the 4,096 instructions that it
/// may have. The kernel needs 1 to 3 ms to accept the program, and the kernel's form of it has to fit
/// net.core.optmem_max, which was 20 KiB before Linux 6.8.
pub(super) const MOST_RECEIVERS: usize = 512;
/// From asm-generic/socket.h.
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// Returns the number of sockets of a group.
pub(super) fn sockets_of(shards: usize) -> usize {
    SOCKETS + SOCKETS_OF_A_SHARD * (shards - 1)
}

/// Which well-formed messages a shard lets pass, by receiver index.
#[derive(Clone, Debug)]
enum Wanted {
    All,
    /// There are too many indices for the program.
    TooMany,
    /// Only these indices, sorted as the program reads them.
    Only(Vec<u32>),
}

/// What the program checks of well-formed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checks {
    Nothing,
    /// Only messages with the exact length of their type pass.
    Lengths,
    /// As with lengths, and of the shards with a list only the indices of the list pass.
    Receivers,
}

/// The program of the sockets of one family and port, and its rules.
#[derive(Debug)]
struct Rulebook {
    is_v6: bool,
    key: Key,
    /// The wish of each shard.
    wanted: Vec<Wanted>,
    checks: Checks,
    half: Option<Half>,
    /// Number of shards that have their sockets in use.
    users: usize,
}

impl Rulebook {
    fn load(&self, socket: &impl AsRawFd, checks: Checks) -> io::Result<()> {
        let (mut listed, mut unlisted) = (Vec::new(), Vec::new());
        for (shard, wanted) in (0..).zip(&self.wanted) {
            match wanted {
                Wanted::Only(indices) => listed.extend(indices),
                Wanted::All | Wanted::TooMany => unlisted.push(shard),
            }
        }
        listed.sort_unstable();
        listed.dedup();
        let rules = Rules {
            is_v6: self.is_v6,
            key: self.key,
            shards: self.wanted.len() as u32,
            is_strict: checks != Checks::Nothing,
            receivers: (checks == Checks::Receivers)
                .then_some(Receivers { listed: &listed, unlisted: &unlisted }),
            half: self.half,
        };
        attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program(&rules))
    }

    /// Returns what the program has to check so that no shard gets more than it wants, as far as possible.
    fn wanted_checks(&self) -> Checks {
        let mut count = 0;
        let mut checks = Checks::Nothing;
        for wanted in &self.wanted {
            match wanted {
                Wanted::All => continue,
                Wanted::TooMany => count += MOST_RECEIVERS + 1,
                Wanted::Only(indices) => count += indices.len(),
            }
            checks = if count > MOST_RECEIVERS { Checks::Lengths } else { Checks::Receivers };
        }
        checks
    }

    /// Attaches the program that the wishes of the shards ask for. If the kernel does not accept it, a less
    /// strict program replaces the old one, because an outdated list must not stay in force.
    fn update(&mut self, socket: &impl AsRawFd) -> io::Result<()> {
        let wanted = self.wanted_checks();
        let weaker = [Checks::Receivers, Checks::Lengths].into_iter().skip_while(|checks| *checks != wanted);
        for checks in weaker {
            match self.load(socket, checks) {
                Ok(()) => {
                    self.checks = checks;
                    return Ok(());
                }
                Err(error) => tracing::debug!(%error, "the kernel does not take so long a program"),
            }
        }
        self.load(socket, Checks::Nothing)?;
        self.checks = Checks::Nothing;
        Ok(())
    }
}

/// The part of one shard in the program of a group.
#[derive(Debug)]
pub(super) struct Steering {
    rulebook: Arc<Mutex<Rulebook>>,
    shard: usize,
}

impl Steering {
    /// Attaches the program to the group of `first`, which has all its sockets or will have them. Returns the
    /// part of each shard.
    pub(super) fn attach(first: &impl AsRawFd, is_v6: bool, shards: usize) -> io::Result<Vec<Self>> {
        let rulebook = Rulebook {
            is_v6,
            key: Key::random(),
            wanted: vec![Wanted::All; shards],
            checks: Checks::Nothing,
            half: None,
            users: 0,
        };
        rulebook.load(first, Checks::Nothing)?;
        let rulebook = Arc::new(Mutex::new(rulebook));
        Ok((0..shards).map(|shard| Self { rulebook: Arc::clone(&rulebook), shard }).collect())
    }

    /// Detaches the program, so that the kernel chooses by its own hash again. It is not an error if there is
    /// no program.
    pub(super) fn detach(first: &impl AsRawFd) {
        let _ = crate::sockopt::set_option(first, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0);
    }

    /// Locked only when rules change, not for every packet.
    fn rulebook(&self) -> MutexGuard<'_, Rulebook> {
        self.rulebook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the shard among those that have their sockets in use, until [`Self::leave`].
    pub(super) fn enter(&self) {
        self.rulebook().users += 1;
    }

    /// Ends the restrictions of this shard. Those of all end with the last shard: another process may keep
    /// the sockets open, and does not know of them.
    pub(super) fn leave(&self, socket: &impl AsRawFd) -> io::Result<()> {
        let mut rulebook = self.rulebook();
        rulebook.users -= 1;
        let is_last = rulebook.users == 0;
        let mut is_restricted = !matches!(rulebook.wanted[self.shard], Wanted::All);
        rulebook.wanted[self.shard] = Wanted::All;
        if is_last {
            is_restricted |= rulebook.checks != Checks::Nothing || rulebook.half.is_some();
            rulebook.wanted.fill(Wanted::All);
            rulebook.half = None;
        }
        if is_restricted { rulebook.update(socket) } else { Ok(()) }
    }

    /// Lets initiations without a cookie pass only from sources in `half`; `None` lets all pass.
    pub(super) fn let_half_ask(&self, socket: &impl AsRawFd, half: Option<Half>) -> io::Result<()> {
        let mut rulebook = self.rulebook();
        let before = std::mem::replace(&mut rulebook.half, half);
        let result = rulebook.load(socket, rulebook.checks);
        if result.is_err() {
            rulebook.half = before;
        }
        result
    }

    /// Lets only messages with these of the shard's receiver indices pass, unless there are too many for the
    /// program; `None` lets all of them pass. Returns whether messages with some receiver indices or lengths
    /// are dropped now.
    pub(super) fn let_pass(
        &self,
        socket: &impl AsRawFd,
        receivers: Option<&[u32]>,
    ) -> (bool, io::Result<()>) {
        let mut rulebook = self.rulebook();
        rulebook.wanted[self.shard] = match receivers {
            None => Wanted::All,
            Some(receivers) if receivers.len() > MOST_RECEIVERS => Wanted::TooMany,
            Some(receivers) => Wanted::Only(receivers.iter().map(|index| index.swap_bytes()).collect()),
        };
        let result = rulebook.update(socket);
        (rulebook.checks != Checks::Nothing, result)
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
