//! Takes from a thread what it does not need: capabilities, system calls, and files that it may write. A
//! thread that panics ends the process ([`EndProcessOnPanic`]); one that hangs does not keep its owner
//! ([`join()`]).
//!
//! Each thread of a daemon calls [`thread`] with its [`Role`] before it touches what others sent. Nothing
//! happens unless the process called [`enable`]: tests and the library for apps have threads that are not
//! weft's alone. A system call that a thread may not make ends the process with a message that names it.

use std::sync::atomic::{AtomicBool, Ordering};

mod join;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod linux;
mod thread_guard;
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
mod unsupported;

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
use linux as platform;
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
use unsupported as platform;

pub use join::{join, join_all};
pub use thread_guard::EndProcessOnPanic;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens the TUN and the UDP sockets, before it or its children move packets. Keeps CAP_NET_ADMIN,
    /// CAP_NET_BIND_SERVICE and CAP_DAC_OVERRIDE.
    Opening,
    /// Moves packets, and opens UDP sockets with another port or mark. Keeps the first two capabilities, but
    /// only for its UDP sockets: it can open no other kind. Reads what /proc says of its device, and no other
    /// file.
    Packets,
    /// Reads or writes one queue of the TUN.
    Tun,
    /// Serves clients of UAPI, the control socket or HTTP: parses, waits for the threads that do the work,
    /// and removes its socket. Opens files only to read them.
    Service,
    /// Passes messages and descriptors between a tunnel without root and the commands that use it, and sends
    /// such a command a signal. Opens neither a socket nor a file.
    Member,
    /// Looks up names, by the C library and whatever modules it loads. May change no file.
    Names,
}

/// What the kernel and the processor support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// Whether the system calls of a thread can be filtered (seccomp).
    pub system_calls: bool,
    /// Whether the files of a thread can be restricted (landlock).
    pub files: bool,
}

/// A thread of this process, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Name of the thread.
    pub name: String,
    /// Capabilities that the thread has or can take, such as `CAP_NET_ADMIN`.
    pub capabilities: Vec<String>,
    /// Whether a filter restricts its system calls.
    pub is_filtered: bool,
}

/// Returns what the kernel and the processor support; nothing on systems other than Linux on x86-64, arm64
/// and riscv64.
pub fn support() -> Support {
    platform::support()
}

/// Returns the threads of this process, the oldest first; none on systems other than Linux on x86-64, arm64
/// and riscv64.
pub fn threads() -> Vec<Thread> {
    platform::threads()
}

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Makes [`thread`] take effect in this process, unless the environment has `WEFT_CONFINEMENT=off`.
pub fn enable() {
    if std::env::var_os("WEFT_CONFINEMENT").is_some_and(|value| value == "off") {
        return;
    }
    platform::enable();
    ENABLED.store(true, Ordering::Relaxed);
}

/// Confines the calling thread, and the threads that it starts from now on. What the kernel does not support
/// is reported once, and left out.
pub fn thread(role: Role) {
    if ENABLED.load(Ordering::Relaxed) {
        platform::thread(role);
    }
}
