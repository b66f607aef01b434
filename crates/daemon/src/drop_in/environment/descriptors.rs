//! Descriptors that were inherited.

use std::os::fd::{FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use weft_config::InterfaceName;

/// Takes the TUN queue behind the descriptor, and returns it with the name of its device.
pub(super) fn take_queue(number: i32) -> Result<(OwnedFd, InterfaceName), String> {
    let queue = take_socket(number)?;
    let name = weft_tun::name_of_queue(&queue).map_err(|error| error.to_string())?;
    let name =
        name.parse().map_err(|_| format!("its interface has the name {name:?}, which weft cannot take"))?;
    Ok((queue, name))
}

/// Takes ownership of the descriptor and sets it close-on-exec.
pub(super) fn take_socket(number: i32) -> Result<OwnedFd, String> {
    if (0..=2).contains(&number) {
        return Err("this is standard input, output or error".to_owned());
    }
    // Checked first: an owned descriptor must be open.
    // SAFETY: the borrowed descriptor is only used to ask whether it is open, and is not kept.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    let flags = fcntl(borrowed, FcntlArg::F_GETFD).map_err(|errno| match errno {
        Errno::EBADF => "no descriptor of this number is open".to_owned(),
        _ => errno.desc().to_owned(),
    })?;
    // SAFETY: the descriptor is open, and the environment names it for this process to own; no other code
    // here owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    let flags = FdFlag::from_bits_retain(flags) | FdFlag::FD_CLOEXEC;
    fcntl(&descriptor, FcntlArg::F_SETFD(flags)).map_err(|errno| errno.desc().to_owned())?;
    Ok(descriptor)
}
