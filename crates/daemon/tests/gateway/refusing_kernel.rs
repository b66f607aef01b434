//! Stands in for kernels that refuse something, by filters of system calls.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::sock_filter;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const UNLESS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const UNLESS_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RESULT: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Returns a program that refuses a system call with an error if each argument, by number, passes its
/// comparison.
fn refusal(call: libc::c_long, arguments: [(usize, u16, u32); 2], error: i32) -> [sock_filter; 8] {
    let step = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    // The low words.
    let at = |number: usize| {
        let start = std::mem::offset_of!(libc::seccomp_data, args) + 8 * number;
        (start + if cfg!(target_endian = "big") { 4 } else { 0 }) as u32
    };
    let [(first, is_first, first_value), (second, is_second, second_value)] = arguments;
    [
        step(LOAD, std::mem::offset_of!(libc::seccomp_data, nr) as u32, 0),
        step(UNLESS_EQUAL, call as u32, 5),
        step(LOAD, at(first), 0),
        step(is_first, first_value, 3),
        step(LOAD, at(second), 0),
        step(is_second, second_value, 1),
        step(RESULT, libc::SECCOMP_RET_ERRNO | error as u32, 0),
        step(RESULT, libc::SECCOMP_RET_ALLOW, 0),
    ]
}

/// Filters the system calls of this thread, and of what it starts.
fn filter(program: &mut [sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let is_filtered = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if is_filtered { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel refuse SO_ATTACH_REUSEPORT_CBPF to this thread and those that it starts.
pub(crate) fn refuse_steering() {
    let arguments = [
        (1, UNLESS_EQUAL, libc::SOL_SOCKET as u32),
        (2, UNLESS_EQUAL, libc::SO_ATTACH_REUSEPORT_CBPF as u32),
    ];
    filter(&mut refusal(libc::SYS_setsockopt, arguments, libc::EPERM)).unwrap();
}

/// Makes the kernel refuse a process queues of a TUN, as one that has no more of them, from this number of a
/// descriptor on.
pub(crate) fn refuse_queues(command: &mut Command, descriptors: u32) {
    let arguments = [(1, UNLESS_EQUAL, libc::TUNSETIFF as u32), (0, UNLESS_AT_LEAST, descriptors)];
    let mut program = refusal(libc::SYS_ioctl, arguments, libc::E2BIG);
    // SAFETY: between fork and exec it makes system calls alone.
    unsafe { command.pre_exec(move || filter(&mut program)) };
}
