//! A child process that tries instructions, and what happens where they fail later.

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::secrecy;

/// Runs `test` in a child process, so that a signal ends the child alone. Where there are threads already, or
/// no process can be forked, `test` runs here.
///
/// A handler of SIGILL in this process would have to jump out of the failed instruction, which Rust does not
/// allow.
pub(super) fn run(test: fn() -> bool) -> Result<(), String> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 { verdict(test()) } else { in_child(test) }
}

fn verdict(is_right: bool) -> Result<(), String> {
    if is_right { Ok(()) } else { Err("the self-test gave wrong results".to_owned()) }
}

fn in_child(test: fn() -> bool) -> Result<(), String> {
    // SAFETY: the process has a single thread, so the child is a complete copy, in which every function may
    // be called. It ends without running what the parent has registered for its end.
    let child = match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => child,
        Ok(ForkResult::Child) => {
            secrecy::forbid_core_dumps();
            let status = libc::c_int::from(!test());
            // SAFETY: `_exit` may be called at any time.
            unsafe { libc::_exit(status) }
        }
        Err(_) => return verdict(test()),
    };
    let status = loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            status => break status,
        }
    };
    match status {
        Ok(WaitStatus::Signaled(_, Signal::SIGILL, _)) => {
            Err("an illegal instruction (SIGILL) ended the self-test".to_owned())
        }
        Ok(WaitStatus::Signaled(_, signal, _)) => Err(format!("{signal} ended the self-test")),
        status => verdict(matches!(status, Ok(WaitStatus::Exited(_, 0)))),
    }
}

const ILLEGAL_INSTRUCTION: &[u8] =
    b"error: the processor refused an instruction (SIGILL), and weft ends. A virtual machine that moved to another \
processor needs a restart of weft, which then chooses its cipher again; if this happens again, set \
WEFT_CIPHER=aws-lc\n";

/// From now on an illegal instruction ends the process with a message: a virtual machine may move to a host
/// without AVX-512. The exit code is that of a failure, after which a service manager starts weft again.
pub(super) fn explain_illegal_instructions() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};

    extern "C" fn explain(_: libc::c_int) {
        // SAFETY: both calls are allowed in a signal handler (signal-safety(7)), and the bytes are static.
        unsafe {
            libc::write(libc::STDERR_FILENO, ILLEGAL_INSTRUCTION.as_ptr().cast(), ILLEGAL_INSTRUCTION.len());
            libc::_exit(1);
        }
    }
    let action = SigAction::new(SigHandler::Handler(explain), SaFlags::SA_ONSTACK, SigSet::empty());
    // SAFETY: the handler calls only what is allowed in one.
    if let Err(errno) = unsafe { sigaction(Signal::SIGILL, &action) } {
        tracing::warn!(error = errno.desc(), "cannot handle SIGILL");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn illegal() -> bool {
        nix::sys::signal::raise(Signal::SIGILL).is_ok()
    }

    #[test]
    fn an_illegal_instruction_ends_the_trial_alone() {
        // The children run no code that another thread could have locked.
        assert_eq!(in_child(|| true), Ok(()));
        assert!(in_child(|| false).is_err_and(|reason| reason.contains("wrong results")));
        assert!(in_child(illegal).is_err_and(|reason| reason.contains("(SIGILL) ended the self-test")));
    }
}
