//! Detects that the other end of a terminal or pipe is gone, also if SIGHUP is ignored.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Reports whether the other end is gone, so that it neither reads nor writes.
pub fn is_hung_up(stream: impl AsFd) -> bool {
    // POLLERR and POLLHUP are reported without being requested.
    let mut asked = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    // If poll fails, the next read or write reports the error.
    poll(&mut asked, PollTimeout::ZERO).is_ok()
        && asked[0].revents().is_some_and(|events| events.intersects(gone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_without_a_reader_and_no_other_is_hung_up() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(!is_hung_up(&writer));
        drop(reader);
        assert!(is_hung_up(&writer));
        assert!(!is_hung_up(tempfile::tempfile().unwrap()));
    }
}
