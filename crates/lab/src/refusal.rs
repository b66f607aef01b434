//! Stands in for kernels and containers that refuse a system call, by filters of system calls (seccomp(2)).

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{c_int, c_long, sock_filter};

pub(crate) const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub(crate) const UNLESS_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const UNLESS_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
pub(crate) const RESULT: u32 = libc::BPF_RET | libc::BPF_K;

/// What the low word of an argument has to be.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// This value.
    Is(c_int),
    /// This value or a higher one.
    AtLeast(u32),
}

/// A system call that is refused, with these arguments alone.
#[derive(Debug)]
pub struct Refusal {
    program: Vec<sock_filter>,
}

impl Refusal {
    /// Refuses a system call with an error, if each of these arguments, by number, is as said.
    pub fn new(call: c_long, arguments: &[(usize, Argument)], error: c_int) -> Self {
        let mut program = vec![
            statement(LOAD, std::mem::offset_of!(libc::seccomp_data, nr) as u32),
            statement(UNLESS_EQUAL, call as u32),
        ];
        for (number, argument) in arguments {
            let start = std::mem::offset_of!(libc::seccomp_data, args) + 8 * number;
            let low_word = start + if cfg!(target_endian = "big") { 4 } else { 0 };
            program.push(statement(LOAD, low_word as u32));
            program.push(match *argument {
                Argument::Is(value) => statement(UNLESS_EQUAL, value as u32),
                Argument::AtLeast(value) => statement(UNLESS_AT_LEAST, value),
            });
        }
        program.push(statement(RESULT, libc::SECCOMP_RET_ERRNO | error as u32));
        // What does not compare goes to the last statement.
        let last = program.len();
        for (place, statement) in program.iter_mut().enumerate() {
            if statement.code == UNLESS_EQUAL as u16 || statement.code == UNLESS_AT_LEAST as u16 {
                statement.jf = (last - place - 1) as u8;
            }
        }
        program.push(statement(RESULT, libc::SECCOMP_RET_ALLOW));
        Self { program }
    }

    /// Refuses setsockopt(2) of an option with an error.
    pub fn of_option(level: c_int, option: c_int, error: c_int) -> Self {
        let arguments = [(1, Argument::Is(level)), (2, Argument::Is(option))];
        Self::new(libc::SYS_setsockopt, &arguments, error)
    }

    /// Refuses the call to this thread, and to threads and processes that it starts.
    ///
    /// # Errors
    /// The kernel has no filters of system calls, or the thread may not filter its own.
    pub fn apply(&mut self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.program.len() as u16, filter: self.program.as_mut_ptr() };
        // SAFETY: the kernel copies the program, which lives until the call returns.
        let result =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Refuses the call to a process, which does not start if that fails.
    pub fn apply_to(mut self, command: &mut Command) {
        // SAFETY: between fork and exec it makes a system call alone.
        unsafe { command.pre_exec(move || self.apply()) };
    }
}

pub(crate) fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}
