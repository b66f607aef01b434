//! Another user for a moment.

use std::io;
use std::thread;

use nix::errno::Errno;

/// Runs `work` on a thread that acts for this user, as every process of that user may. Needs root.
pub fn run_as<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let run = || {
        // SAFETY: the call takes three numbers. It is the system's own, which changes this thread alone; the
        // one of the C library would change all threads of the process.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        Errno::result(changed)?;
        Ok(work())
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
