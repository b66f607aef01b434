//! Families of sockets that a command may use: those that belong to a network namespace. Others would lead
//! past the tunnel, as AF_VSOCK does, which knows of no namespace.
//!
//! This is a program of seccomp(2) by hand, since that of a library ends programs of another processor
//! architecture, as 32-bit ones.

use libc::{
    AF_ALG, AF_CAN, AF_INET, AF_INET6, AF_KEY, AF_NETLINK, AF_PACKET, AF_UNIX, AF_XDP, BPF_ABS, BPF_ALU,
    BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, EAFNOSUPPORT, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SYS_socket, SYS_socketpair, c_int, sock_filter, sock_fprog,
};
use nix::errno::Errno;

const ALLOWED: [c_int; 9] =
    [AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_KEY, AF_CAN, AF_ALG, AF_XDP];

/// AUDIT_ARCH_X86_64 and the like of <linux/audit.h>. Without one nothing is refused.
const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "riscv64") {
    Some(0xc000_00f3)
} else {
    None
};
/// Offsets in `struct seccomp_data`: the architecture, the number of the call, and the lower half of its
/// first argument on processors that begin with it.
const OF_ARCHITECTURE: u32 = 4;
const OF_CALL: u32 = 0;
const OF_FAMILY: u32 = 16;

/// Calls of x32 on x86-64 have the numbers of the others and this bit.
const X32: u32 = 0x4000_0000;

/// What comes before the comparisons with families, and two returns.
const LENGTH: usize = FAMILIES + ALLOWED.len() + 2;
const FAMILIES: usize = 7;
const LAST: usize = LENGTH - 1;

const PROGRAM: [sock_filter; LENGTH] = program(match ARCHITECTURE {
    Some(architecture) => architecture,
    None => 0,
});

/// Returns the program: the last instruction allows the call, and the one before it refuses.
const fn program(architecture: u32) -> [sock_filter; LENGTH] {
    let mut program = [returns(SECCOMP_RET_ALLOW); LENGTH];
    program[0] = loads(OF_ARCHITECTURE);
    program[1] = unless(architecture, 1);
    program[2] = loads(OF_CALL);
    program[3] = sock_filter { code: (BPF_ALU | BPF_AND | BPF_K) as u16, jt: 0, jf: 0, k: !X32 };
    program[4] = jump(SYS_socket.unsigned_abs() as u32, 1, 0);
    program[5] = unless(SYS_socketpair.unsigned_abs() as u32, 5);
    program[6] = loads(OF_FAMILY);
    let mut index = 0;
    while index < ALLOWED.len() {
        let at = FAMILIES + index;
        program[at] = jump(ALLOWED[index].unsigned_abs(), to_last(at), 0);
        index += 1;
    }
    program[LAST - 1] = returns(SECCOMP_RET_ERRNO | EAFNOSUPPORT.unsigned_abs());
    program
}

const fn loads(offset: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Allows the call unless it is about this value.
const fn unless(value: u32, at: usize) -> sock_filter {
    jump(value, 0, to_last(at))
}

const fn jump(value: u32, equal: u8, other: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: equal, jf: other, k: value }
}

/// Returns how many instructions a jump skips to get to the last one.
const fn to_last(at: usize) -> u8 {
    (LAST - at - 1) as u8
}

const fn returns(value: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: value }
}

/// Refuses other families to the calling thread and the programs that it executes. It needs
/// PR_SET_NO_NEW_PRIVS, and makes a system call only, so it is safe between fork and exec.
pub(crate) fn confine() -> Result<(), Errno> {
    if ARCHITECTURE.is_none() {
        return Ok(());
    }
    let program = sock_fprog { len: LENGTH as u16, filter: PROGRAM.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the instructions, and changes nothing.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, std::ptr::from_ref(&program)) };
    match Errno::result(filtered) {
        // A kernel without seccomp.
        Ok(_) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: [libc::c_long; 4] =
        [SYS_socket, SYS_socketpair, SYS_socket | X32 as libc::c_long, SYS_socketpair | X32 as libc::c_long];

    #[test]
    fn sockets_that_leave_a_network_namespace_are_refused() {
        let family_is_there = |family| {
            let mut pair = [-1; 2];
            // SAFETY: the calls take numbers and room for two; the descriptors are new ones.
            unsafe {
                let socket = libc::socket(family, libc::SOCK_DGRAM, 0);
                let is_there =
                    socket >= 0 && libc::close(socket) == 0 || Errno::last() != Errno::EAFNOSUPPORT;
                let paired = libc::socketpair(family, libc::SOCK_DGRAM, 0, pair.as_mut_ptr());
                let is_refused = paired < 0 && Errno::last() == Errno::EAFNOSUPPORT;
                for end in pair.into_iter().filter(|end| *end >= 0) {
                    libc::close(end);
                }
                is_there || !is_refused
            }
        };
        let body = move || {
            nix::sys::prctl::set_no_new_privs().unwrap();
            confine().unwrap();
            (0..64).filter(|family| family_is_there(*family)).collect::<Vec<c_int>>()
        };
        let there = std::thread::spawn(body).join().unwrap();
        assert!(there.iter().all(|family| ALLOWED.contains(family)), "{there:?}");
        assert!([AF_INET, AF_UNIX].iter().all(|family| there.contains(family)), "{there:?}");
        // Whatever this kernel has: other families are refused by the program, and other calls are none of
        // its business.
        for family in [libc::AF_VSOCK, libc::AF_BLUETOOTH, libc::AF_TIPC, libc::AF_RDS, 42, 43, 1000, -1] {
            for call in CALLS {
                let said = run(call, family);
                assert_eq!(said, SECCOMP_RET_ERRNO | EAFNOSUPPORT.unsigned_abs(), "{call} {family}");
            }
            assert_eq!(run(libc::SYS_write, family), SECCOMP_RET_ALLOW);
        }
        for family in ALLOWED {
            assert!(CALLS.iter().all(|call| run(*call, family) == SECCOMP_RET_ALLOW), "{family}");
        }
    }

    /// Runs the program as the kernel does.
    fn run(call: libc::c_long, family: c_int) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let instruction = PROGRAM[at];
            at += 1;
            match u32::from(instruction.code) & 7 {
                BPF_LD => {
                    value = match instruction.k {
                        OF_ARCHITECTURE => ARCHITECTURE.unwrap_or_default(),
                        OF_CALL => u32::try_from(call).unwrap(),
                        _ => family.cast_unsigned(),
                    }
                }
                BPF_ALU => value &= instruction.k,
                BPF_JMP => {
                    at += usize::from(if value == instruction.k { instruction.jt } else { instruction.jf });
                }
                _ => return instruction.k,
            }
        }
    }
}
