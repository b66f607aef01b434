//! Descriptors that a child finds under fixed numbers, as a service manager hands them over
//! (sd_listen_fds(3)).

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;

/// Lets the child of `command` find the descriptors under `first` and the numbers after it.
pub fn inherit(command: &mut Command, first: RawFd, descriptors: Vec<OwnedFd>) {
    let beyond = first + RawFd::try_from(descriptors.len()).expect("a process has fewer descriptors");
    let mut moved = vec![-1; descriptors.len()];
    let place = move || {
        // One that already has a number of these would be replaced, or keep its close-on-exec flag: dup2(2)
        // to its own number changes nothing.
        for (moved, descriptor) in moved.iter_mut().zip(&descriptors) {
            // SAFETY: the closure owns the descriptor, and fcntl makes a new one.
            *moved = checked(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, beyond) })?;
        }
        for (number, moved) in (first..).zip(&moved) {
            // SAFETY: nothing that the child needs until it executes its program has one of these numbers.
            checked(unsafe { libc::dup2(*moved, number) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(place) };
}

fn checked(result: RawFd) -> std::io::Result<RawFd> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn a_descriptor_that_has_its_number_already_is_inherited() {
        let file = |content: &str| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file.rewind().unwrap();
            OwnedFd::from(file)
        };
        let (own, next) = (file("own "), file("next"));
        let number = own.as_raw_fd();
        let mut command = Command::new("bash");
        command.args(["-c", &format!("cat <&{number} && cat <&{}", number + 1)]);
        inherit(&mut command, number, vec![own, next]);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "own next", "{output:?}");
    }
}
