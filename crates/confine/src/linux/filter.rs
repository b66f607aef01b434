//! The system calls of a role, as a filter of seccomp(2). Calls that are allowed whatever their arguments are
//! cost almost nothing: since 5.11 the kernel keeps a bitmap of them.

use std::collections::BTreeMap;
use std::io;

use libc::*;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::Role;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What every thread needs that runs and ends: memory, locks, clocks, its log, the end of the process after a
/// panic.
const EVERY: &[c_long] = &[
    SYS_brk,
    SYS_clock_getres,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_close,
    SYS_exit,
    SYS_exit_group,
    SYS_fcntl,
    SYS_fstat,
    SYS_futex,
    SYS_getcpu,
    SYS_getpid,
    SYS_getrandom,
    SYS_gettid,
    SYS_gettimeofday,
    SYS_lseek,
    SYS_madvise,
    SYS_membarrier,
    SYS_memfd_create,
    SYS_mremap,
    SYS_munmap,
    SYS_nanosleep,
    SYS_ppoll,
    SYS_read,
    SYS_readv,
    SYS_recvfrom,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sched_getaffinity,
    SYS_sched_yield,
    SYS_sendmsg,
    SYS_sendto,
    SYS_set_robust_list,
    SYS_sigaltstack,
    SYS_tgkill,
    SYS_write,
    SYS_writev,
];

/// What a packet thread needs besides, for its TUN, its sockets and its runtime.
const PACKETS: &[c_long] = &[
    SYS_bind,
    SYS_connect,
    SYS_dup,
    SYS_dup3,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_uname,
];

/// What a server needs besides, and the threads that it starts to answer.
const SERVICE: &[c_long] = &[
    SYS_accept,
    SYS_accept4,
    SYS_bind,
    SYS_clone,
    SYS_clone3,
    SYS_connect,
    SYS_dup,
    SYS_dup3,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_flock,
    SYS_fstatfs,
    SYS_ftruncate,
    SYS_getcwd,
    SYS_getdents64,
    SYS_getegid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getpeername,
    SYS_getppid,
    SYS_getrusage,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_getuid,
    SYS_inotify_add_watch,
    SYS_inotify_init1,
    SYS_inotify_rm_watch,
    SYS_ioctl,
    SYS_listen,
    SYS_mmap,
    SYS_mprotect,
    SYS_newfstatat,
    SYS_pidfd_open,
    SYS_pipe2,
    SYS_pread64,
    SYS_prlimit64,
    SYS_readlinkat,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sendmmsg,
    SYS_set_tid_address,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_socket,
    SYS_socketpair,
    SYS_statfs,
    SYS_statx,
    SYS_sysinfo,
    SYS_timerfd_create,
    SYS_timerfd_gettime,
    SYS_timerfd_settime,
    SYS_uname,
    SYS_unlinkat,
];

/// The tunnel of several commands, and such a command.
const MEMBER: &[c_long] = &[
    SYS_accept4,
    // Standard error of the tunnel is that of a command.
    SYS_dup3,
    SYS_getsockopt,
    SYS_kill,
    SYS_pread64,
    SYS_recvmsg,
    SYS_setsockopt,
    SYS_shutdown,
];

/// Calls that arm64 and others no longer have.
#[cfg(target_arch = "x86_64")]
const OLD_EVERY: &[c_long] = &[SYS_poll];
#[cfg(target_arch = "x86_64")]
const OLD_PACKETS: &[c_long] = &[SYS_epoll_wait];
#[cfg(target_arch = "x86_64")]
const OLD_MEMBER: &[c_long] = &[SYS_dup2];
#[cfg(target_arch = "x86_64")]
const OLD_SERVICE: &[c_long] = &[
    SYS_access,
    SYS_dup2,
    SYS_epoll_wait,
    SYS_lstat,
    SYS_poll,
    SYS_readlink,
    SYS_rmdir,
    SYS_stat,
    SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_EVERY: &[c_long] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_PACKETS: &[c_long] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_MEMBER: &[c_long] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_SERVICE: &[c_long] = &[];

/// Files. A thread of the TUN, or of members, opens some only for the backtrace of a panic, which is shorter
/// without them.
const FILES: &[c_long] = &[
    SYS_faccessat,
    SYS_faccessat2,
    SYS_getcwd,
    SYS_newfstatat,
    SYS_openat,
    SYS_openat2,
    SYS_readlinkat,
    SYS_statx,
];
#[cfg(target_arch = "x86_64")]
const OLD_FILES: &[c_long] = &[SYS_access, SYS_lstat, SYS_open, SYS_readlink, SYS_stat];
#[cfg(not(target_arch = "x86_64"))]
const OLD_FILES: &[c_long] = &[];

pub(super) fn is_known_processor() -> bool {
    TargetArch::try_from(std::env::consts::ARCH).is_ok()
}

/// Filters the system calls of the calling thread.
pub(super) fn install(role: Role) -> io::Result<()> {
    let Some(allowed) = allowed(role).transpose() else { return Ok(()) };
    let allowed = program(allowed.map_err(io::Error::other)?, SeccompAction::Trap, SeccompAction::Allow)?;
    let refused: Rules = match role {
        Role::Tun | Role::Member => FILES.iter().chain(OLD_FILES).map(|call| (*call, Vec::new())).collect(),
        Role::Names => {
            [(SYS_socket, sockets(&[AF_NETLINK, AF_PACKET], None).map_err(io::Error::other)?)].into()
        }
        Role::Packets | Role::Service | Role::Opening => Rules::new(),
    };
    if !refused.is_empty() {
        let refused = program(refused, SeccompAction::Allow, SeccompAction::Errno(EACCES.unsigned_abs()))?;
        apply_filter(&refused).map_err(io::Error::other)?;
    }
    apply_filter(&allowed).map_err(io::Error::other)
}

fn program(rules: Rules, others: SeccompAction, these: SeccompAction) -> io::Result<BpfProgram> {
    let processor = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, others, these, processor).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

/// The calls of a role; those with rules only with such arguments. `None` filters nothing.
fn allowed(role: Role) -> Result<Option<Rules>, BackendError> {
    let mut rules = Rules::new();
    let mut allow = |calls: &[c_long]| rules.extend(calls.iter().map(|call| (*call, Vec::new())));
    allow(EVERY);
    allow(OLD_EVERY);
    match role {
        Role::Opening => return Ok(None),
        Role::Tun => {
            allow(FILES);
            allow(OLD_FILES);
            // How many packets a packet socket lost.
            allow(&[SYS_getsockopt]);
        }
        Role::Member => {
            allow(FILES);
            allow(OLD_FILES);
            allow(MEMBER);
            allow(OLD_MEMBER);
        }
        Role::Packets => {
            allow(PACKETS);
            allow(OLD_PACKETS);
            allow(FILES);
            allow(OLD_FILES);
        }
        Role::Service => {
            allow(SERVICE);
            allow(OLD_SERVICE);
        }
        // landlock decides about files.
        Role::Names => {
            allow(SERVICE);
            allow(OLD_SERVICE);
            allow(FILES);
            allow(OLD_FILES);
        }
    }
    if matches!(role, Role::Packets | Role::Service) {
        rules.remove(&SYS_openat2);
        rules.insert(SYS_openat, vec![reads(2)?]);
        #[cfg(target_arch = "x86_64")]
        rules.insert(SYS_open, vec![reads(1)?]);
    }
    // Where giving up CAP_NET_ADMIN is not allowed, it has to be useless: no netlink, no changes by
    // netdevice(7).
    rules.insert(SYS_ioctl, device_controls()?);
    match role {
        Role::Packets => {
            rules.insert(SYS_socket, sockets(&[AF_INET, AF_INET6], Some(SOCK_DGRAM))?);
            rules.insert(SYS_setsockopt, options()?);
        }
        Role::Service => drop(rules.insert(SYS_socket, sockets(&[AF_INET, AF_INET6, AF_UNIX], None)?)),
        // The C library asks netlink for the addresses of this machine, to sort what it found, and does
        // without.
        Role::Names | Role::Tun | Role::Member | Role::Opening => {}
    }
    if matches!(role, Role::Packets | Role::Tun | Role::Member) {
        for call in [SYS_mmap, SYS_mprotect] {
            rules.insert(call, vec![SeccompRule::new(vec![lacks(2, PROT_EXEC)?])?]);
        }
    }
    // Names of threads, also for the message about a refused call, and of memory, which newer C libraries
    // set.
    let names = [PR_GET_NAME, PR_SET_NAME, PR_SET_VMA].into_iter();
    let names = names.map(|name| only(0, SeccompCmpOp::Eq, i64::from(name))).collect::<Result<_, _>>()?;
    rules.insert(SYS_prctl, names);
    Ok(Some(rules))
}

fn condition(argument: u8, comparison: SeccompCmpOp, value: i64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, comparison, value.unsigned_abs())
}

fn only(argument: u8, comparison: SeccompCmpOp, value: i64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(argument, comparison, value)?])
}

/// The argument has none of these bits.
fn lacks(argument: u8, bits: c_int) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(u64::from(bits.unsigned_abs())), 0)
}

/// The flags open a file to read it, and make none.
fn reads(flags: u8) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![lacks(flags, O_ACCMODE | O_CREAT | O_TRUNC)?])
}

/// Sockets of these families and, if given, of this kind.
fn sockets(families: &[c_int], kind: Option<c_int>) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |family: &c_int| {
        let mut conditions = vec![condition(0, SeccompCmpOp::Eq, i64::from(*family))?];
        if let Some(kind) = kind {
            // Without SOCK_CLOEXEC and SOCK_NONBLOCK.
            conditions.push(condition(1, SeccompCmpOp::MaskedEq(0xf), i64::from(kind))?);
        }
        SeccompRule::new(conditions)
    };
    families.iter().map(rule).collect()
}

/// All but those that configure interfaces and routes: of netdevice(7) only questions are allowed.
fn device_controls() -> Result<Vec<SeccompRule>, BackendError> {
    let questions = [SIOCGIFNAME, SIOCGIFFLAGS, SIOCGIFMTU, SIOCGIFINDEX, SIOCGIFTXQLEN];
    let questions = questions.into_iter().map(|question| only(1, SeccompCmpOp::Eq, question as i64));
    let others = [only(1, SeccompCmpOp::Lt, 0x8900), only(1, SeccompCmpOp::Gt, 0x89ff)];
    others.into_iter().chain(questions).collect()
}

/// All but those of IP by which CAP_NET_ADMIN changes tables of the firewall: 64 and 65, 96 and above.
fn options() -> Result<Vec<SeccompRule>, BackendError> {
    let other_levels = SeccompRule::new(vec![
        condition(1, SeccompCmpOp::Ne, i64::from(IPPROTO_IP))?,
        condition(1, SeccompCmpOp::Ne, i64::from(IPPROTO_IPV6))?,
    ])?;
    let between =
        SeccompRule::new(vec![condition(2, SeccompCmpOp::Gt, 65)?, condition(2, SeccompCmpOp::Lt, 96)?])?;
    Ok(vec![other_levels, only(2, SeccompCmpOp::Lt, 64)?, between])
}
