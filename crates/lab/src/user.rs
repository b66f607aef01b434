//! Runs code as another user.

use std::io;

use nix::errno::Errno;

use super::netns::on_a_thread;

/// Runs `work` on a thread with this user's IDs and permissions. Needs root.
pub fn run_as<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let run = || {
        // SAFETY: the call takes three numbers. The raw system call changes this thread alone; the C
        // library's wrapper would change all threads of the process.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        Errno::result(changed)?;
        Ok(work())
    };
    on_a_thread(run)
}
