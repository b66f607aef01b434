//! Whether this process may start threads and programs at all.

use std::io;

use weft_config::exit::{Code, Error};

/// Says what is wrong where a seccomp profile refuses clone3(2) with EPERM, as that of Docker before 20.10.10
/// does. The C library starts threads and programs with it, and falls back to clone(2) for ENOSYS alone.
///
/// # Errors
/// No thread can be started.
pub fn check() -> Result<(), Error> {
    // Without arguments it is refused with EINVAL, if at all by the kernel.
    // SAFETY: the kernel reads no memory of size 0.
    let answer = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0) };
    let is_refused = answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    // An older C library does not use it.
    if !is_refused || std::thread::Builder::new().spawn(|| {}).is_ok_and(|thread| thread.join().is_ok()) {
        return Ok(());
    }
    Err(Error::new(
        Code::Permission,
        "this process may not start threads: a seccomp profile refuses clone3 (EPERM), like that of Docker before \
         20.10.10; update Docker and libseccomp, or run the container with --security-opt seccomp=unconfined or a \
         profile that answers ENOSYS",
    ))
}
