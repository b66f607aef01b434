//! Stops a thread of this process wherever it is, as a thread that hangs.

use std::io::{PipeReader, PipeWriter};
use std::mem::zeroed;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use weft_lab::until;

/// What a stopped thread reads from, until that is closed.
static GATE: AtomicI32 = AtomicI32::new(-1);
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// A thread that is stopped, until this is dropped. There may be one at a time.
pub(crate) struct StoppedThread {
    _gate: PipeReader,
    opens: Option<PipeWriter>,
}

impl StoppedThread {
    /// Stops the thread with this name, and returns when it has stopped.
    #[track_caller]
    pub(crate) fn stop(name: &str) -> Self {
        let (gate, opens) = std::io::pipe().unwrap();
        GATE.store(gate.as_raw_fd(), Ordering::SeqCst);
        IS_STOPPED.store(false, Ordering::SeqCst);
        let thread: libc::pid_t = thread_named(name).file_name().unwrap().to_str().unwrap().parse().unwrap();
        // SAFETY: an all-zero `sigaction` is valid, `wait_at_gate` only makes calls that are allowed in a
        // signal handler, and both calls get what they ask for.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = wait_at_gate as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
            assert_eq!(libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1), 0);
        }
        until("the thread has stopped", || IS_STOPPED.load(Ordering::SeqCst));
        Self { _gate: gate, opens: Some(opens) }
    }
}

/// Returns the directory in /proc of the thread of this process with this name.
#[track_caller]
pub(crate) fn thread_named(name: &str) -> PathBuf {
    let has_name =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mut tasks: Vec<_> = tasks.filter(has_name).collect();
    assert_eq!(tasks.len(), 1, "threads named {name}");
    tasks.remove(0)
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        drop(self.opens.take());
        // The thread reads from the gate until then.
        until("the thread goes on", || !IS_STOPPED.load(Ordering::SeqCst));
    }
}

extern "C" fn wait_at_gate(_: libc::c_int) {
    // SAFETY: the thread's errno, which the code that was interrupted may be about to look at.
    let errno = unsafe { *libc::__errno_location() };
    IS_STOPPED.store(true, Ordering::SeqCst);
    let mut byte = 0_u8;
    // SAFETY: the byte is there for the time of the call, which ends when the pipe is closed.
    unsafe { libc::read(GATE.load(Ordering::SeqCst), (&raw mut byte).cast(), 1) };
    IS_STOPPED.store(false, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
