//! Runs code as another user.

use std::io;
use std::thread;

use nix::errno::Errno;

/// Runs `work` on a thread with this user's IDs and permissions. Needs root.
pub fn run_as<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let run = || {
        // SAFETY: the call takes three numbers. The raw system call changes this thread alone; the C
        // library's wrapper would change all threads of the process.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        Errno::result(changed)?;
        Ok(work())
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
