//! The file-descriptor store of the service (systemd.service(5), FileDescriptorStoreMax=): descriptors that
//! the service manager keeps open when this process ends, and passes to the next process.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use sd_notify::NotifyState;
use zeroize::Zeroizing;

/// Time limit for the service manager to process all messages.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum bytes of a sealed file: more than 50,000 peers need.
const MAX_SEALED: u64 = 64 << 20;
/// Seals that make a file immutable.
const SEALS: SealFlag = SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_SHRINK).union(SealFlag::F_SEAL_GROW);
/// A flag of memfd_create(2), since Linux 6.3.
const MFD_NOEXEC_SEAL: u32 = 8;

/// The service's store. The service manager does not distinguish entries of the same name: every name is used
/// once.
#[derive(Debug)]
pub struct FdStore {
    // Only `of_this_process` creates it.
    _private: (),
}

impl FdStore {
    /// Returns the store of the service that this process belongs to. `None` if there is none, as far as can
    /// be known: before version 254 systemd does not say whether it accepts descriptors.
    pub fn of_this_process() -> Option<Self> {
        let is_set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let room = is_set("FDSTORE");
        let has_room = room.is_none_or(|room| room != "0");
        (is_set("NOTIFY_SOCKET").is_some() && has_room).then_some(Self { _private: () })
    }

    /// Puts a descriptor into the store under a name. A descriptor that is in the store already stays as it
    /// is.
    ///
    /// The service manager does not watch it (FDPOLL=0): an error of a socket is no reason to close it.
    pub fn keep(&self, name: &str, descriptor: &OwnedFd) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), &[descriptor.as_fd()])
    }

    /// Puts `content` into the store under a name, and removes earlier entries of that name. The content is
    /// in a sealed memfd, which cannot be changed.
    pub fn keep_sealed(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let sealed = seal(content)?;
        self.forget(name)?;
        self.keep(name, &sealed)
    }

    /// Removes and closes the entries of a name.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    /// Waits until the service manager has processed all earlier messages (sd_notify_barrier(3)).
    pub fn settle(&self) -> io::Result<()> {
        let (reader, writer) = nix::unistd::pipe()?;
        self.send("BARRIER=1", &[writer.as_fd()])?;
        // The service manager closes its copy when it processes the message; that ends the pipe.
        drop(writer);
        let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        let mut wait = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut wait, timeout) {
                Err(Errno::EINTR) => {}
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                other => return Ok(other.map(drop)?),
            }
        }
    }

    fn send(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = [NotifyState::Custom(text)];
        if descriptors.is_empty() {
            return sd_notify::notify(&message);
        }
        sd_notify::notify_with_fds(&message, descriptors)
    }
}

fn seal(content: &[u8]) -> io::Result<OwnedFd> {
    let make = |more| {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | MFdFlags::from_bits_retain(more);
        memfd_create(c"weft", flags)
    };
    let memory = make(MFD_NOEXEC_SEAL).or_else(|errno| match errno {
        Errno::EINVAL => make(0),
        errno => Err(errno),
    });
    let mut file = File::from(memory?);
    file.write_all(content)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS | SealFlag::F_SEAL_SEAL))?;
    Ok(file.into())
}

/// Returns the content that [`FdStore::keep_sealed`] stored.
///
/// # Errors
/// When the descriptor is something else, or its content could still be changed.
pub fn read_sealed(descriptor: &OwnedFd) -> io::Result<Zeroizing<Vec<u8>>> {
    let seals = fcntl(descriptor, FcntlArg::F_GET_SEALS).map_err(|_| io::Error::other("it is not sealed"))?;
    if !SealFlag::from_bits_retain(seals).contains(SEALS) {
        return Err(io::Error::other("it is not sealed"));
    }
    let file = File::from(descriptor.try_clone()?);
    let len = file.metadata()?.len();
    if len > MAX_SEALED {
        return Err(io::Error::other("it is too large"));
    }
    let mut content = Zeroizing::new(vec![0; usize::try_from(len).map_err(io::Error::other)?]);
    // From the start, not from the writer's file offset.
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

/// Duplicates a descriptor.
pub fn try_clone(descriptor: &OwnedFd) -> io::Result<OwnedFd> {
    descriptor.try_clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_read_from_its_beginning_and_cannot_be_changed() {
        let sealed = seal(b"a secret").unwrap();
        assert_eq!(read_sealed(&sealed).unwrap().as_slice(), b"a secret");
        let mut file = File::from(sealed.try_clone().unwrap());
        assert_eq!(file.write(b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(file.set_len(1).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    }

    #[test]
    fn what_could_still_be_changed_is_not_believed() {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"weft", flags).unwrap());
        file.write_all(b"{}").unwrap();
        assert!(read_sealed(&file.into()).is_err());
        assert!(read_sealed(&tempfile::tempfile().unwrap().into()).is_err());
        assert!(read_sealed(&std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()).is_err());
    }
}
