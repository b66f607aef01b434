use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Whether the other end is gone: nothing is read there, and nothing comes from there.
pub fn is_hung_up(stream: impl AsFd) -> bool {
    // These are told without being asked for.
    let mut asked = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    // One that cannot be asked tells at the next read or write.
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
