//! The clocks and the random numbers of the system, for the thread of a world.
//!
//! boringtun, tokio and weft read both where the standard library does, so that these functions of the C
//! library are all that a world has to replace. Other threads get those of the system.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::mem::transmute;
use std::time::Duration;

use crate::chance::Chance;

/// The time of day when a world begins, in seconds since 1970.
const BEGIN: u64 = 1_800_000_000;

thread_local! {
    /// Time since the machine of the world started; `None` on a thread without a world.
    static NOW: Cell<Option<Duration>> = const { Cell::new(None) };
    /// What the clock of the machine that runs is ahead of the others, in seconds.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
    static CHANCE: Cell<Chance> = const { Cell::new(Chance::new(0)) };
}

/// Makes this the thread of a world.
pub(crate) fn begin(seed: u64, now: Duration) {
    CHANCE.set(Chance::new(!seed));
    set_now(now);
}

pub(crate) fn set_now(now: Duration) {
    NOW.set(Some(now));
}

/// Sets how far the wall clock is ahead from now on, in seconds.
pub(crate) fn set_ahead(seconds: i64) {
    AHEAD.set(seconds);
}

/// clock_gettime(2).
// SAFETY: it is the function of the C library of that name, and does what that one does.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    let Some(now) = NOW.get() else {
        // SAFETY: the arguments are those of the caller.
        return unsafe { real_syscall(libc::SYS_clock_gettime, [clock.into(), time as c_long, 0, 0, 0, 0]) }
            as c_int;
    };
    let now = match clock {
        libc::CLOCK_REALTIME => now + Duration::from_secs(BEGIN.saturating_add_signed(AHEAD.get())),
        _ => now,
    };
    // SAFETY: the caller's `time` is valid for writes.
    unsafe { *time = libc::timespec { tv_sec: now.as_secs() as _, tv_nsec: now.subsec_nanos().into() } };
    0
}

/// getrandom(2).
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> isize {
    if NOW.get().is_none() {
        let arguments = [buffer as c_long, len as c_long, flags.into(), 0, 0, 0];
        // SAFETY: the arguments are those of the caller.
        return unsafe { real_syscall(libc::SYS_getrandom, arguments) } as isize;
    }
    let mut chance = CHANCE.get();
    for at in 0..len {
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe { buffer.cast::<u8>().add(at).write(chance.next() as u8) };
    }
    CHANCE.set(chance);
    len as isize
}

/// syscall(2), by which the `getrandom` crate calls getrandom(2).
// SAFETY: as above; a system call has at most six arguments, and the C ABI passes them like those of a
// function without variable arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_getrandom && NOW.get().is_some() {
        // SAFETY: the arguments are those of getrandom(2).
        return unsafe { getrandom(a as *mut c_void, b as usize, c as c_uint) } as c_long;
    }
    // SAFETY: the arguments are those of the caller.
    unsafe { real_syscall(number, [a, b, c, d, e, f]) }
}

/// The function of the C library.
///
/// # Safety
/// As that of the system call.
unsafe fn real_syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    type Syscall = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr().cast::<c_char>()) };
    // SAFETY: the function has this name in every C library.
    let real = unsafe { transmute::<*mut c_void, Option<Syscall>>(found) };
    let Some(real) = real else { std::process::abort() };
    // SAFETY: by the caller.
    unsafe { real(number, a, b, c, d, e, f) }
}
