//! A child process that tries instructions, and what happens where they fail later.

use std::io::{self, Read as _, Write as _};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::Verdict;
use crate::secrecy;

/// Runs `test` in a child process, so that a signal ends the child alone. Where there are threads already, or
/// no process can be forked, `test` runs here.
///
/// A handler of SIGILL in this process would have to jump out of the failed instruction, which Rust does not
/// allow.
pub(super) fn run(test: fn() -> bool) -> Verdict {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 { here(test) } else { in_child(test) }
}

fn here(test: fn() -> bool) -> Verdict {
    if test() { Verdict::Passed } else { Verdict::Failed }
}

fn in_child(test: fn() -> bool) -> Verdict {
    // The result comes through a pipe: where SIGCHLD is ignored, as some parents leave it, waitpid(2) tells
    // nothing.
    let Ok((mut reader, mut writer)) = io::pipe() else { return here(test) };
    // SAFETY: the process has a single thread, so the child is a complete copy, in which every function may
    // be called. It ends without running what the parent has registered for its end.
    let child = match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => child,
        Ok(ForkResult::Child) => {
            secrecy::forbid_core_dumps();
            let _gone = writer.write_all(&[u8::from(test())]);
            // SAFETY: `_exit` may be called at any time.
            unsafe { libc::_exit(0) }
        }
        Err(_) => return here(test),
    };
    drop(writer);
    let mut passed = [0];
    let result = reader.read_exact(&mut passed);
    let status = loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            status => break status,
        }
    };
    match (result, status) {
        (Ok(()), _) if passed == [1] => Verdict::Passed,
        (Ok(()), _) => Verdict::Failed,
        (Err(_), Ok(WaitStatus::Signaled(_, Signal::SIGILL, _))) => {
            Verdict::Ended("an illegal instruction (SIGILL)".to_owned())
        }
        (Err(_), Ok(WaitStatus::Signaled(_, signal, _))) => Verdict::Ended(signal.to_string()),
        (Err(_), _) => Verdict::Ended("a signal".to_owned()),
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
        assert_eq!(in_child(|| true), Verdict::Passed);
        assert_eq!(in_child(|| false), Verdict::Failed);
        assert_eq!(in_child(illegal), Verdict::Ended("an illegal instruction (SIGILL)".to_owned()));
    }
}
