//! The end of a process whose thread made a system call that it may not make.

use std::ffi::{c_int, c_void};

use super::names;

/// What the kernel says of a refused system call: the fields of `siginfo_t` that libc does not have.
#[repr(C)]
struct Refused {
    signal: c_int,
    errno: c_int,
    code: c_int,
    call_address: *const c_void,
    system_call: c_int,
}

/// Ends the process with a message when the kernel refuses a system call (SIGSYS).
pub(super) fn report_and_end() {
    let handler: extern "C" fn(c_int, *const Refused, *const c_void) = handle;
    // SAFETY: an action without a handler is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature of SA_SIGINFO, and calls only what signal-safety(7) allows.
    if unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } != 0 {
        tracing::warn!("a refused system call will end the process without a message");
    }
}

extern "C" fn handle(_: c_int, info: *const Refused, _: *const c_void) {
    // SAFETY: the kernel passes the information of a SIGSYS.
    let number = unsafe { (*info).system_call };
    let mut message = Message { bytes: [0; 160], len: 0 };
    message.push(b"weft: thread ");
    let mut thread = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, thread.as_mut_ptr()) };
    message.push(thread.split(|byte| *byte == 0).next().unwrap_or_default());
    message.push(b" made the system call ");
    message.push(names::of(number).as_bytes());
    message.push(b" (");
    message.push_number(number.unsigned_abs());
    message.push(b"), which it may not make; ending the process\n");
    // SAFETY: the bytes are initialised; _exit ends the process without running anything else.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.bytes.as_ptr().cast(), message.len);
        libc::_exit(1);
    }
}

/// Text that is made without allocation.
struct Message {
    bytes: [u8; 160],
    len: usize,
}

impl Message {
    fn push(&mut self, text: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text[..len]);
        self.len += len;
    }

    fn push_number(&mut self, number: u32) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }
}
