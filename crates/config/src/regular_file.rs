//! Files that weft reads, perhaps as root below a directory of another user: what took the place of a file
//! may not keep weft waiting, as a FIFO would, nor fill its memory, as a device would.
//!
//! A daemon reads regular files alone. A command also reads what its user names instead of a file: the pipe
//! of a shell's `<(…)`, a FIFO that a program writes to, /dev/stdin, /dev/null.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;
#[cfg(all(unix, not(target_os = "ios")))]
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

/// The largest file that is read. It has room for more than 50,000 peers; a larger file is not a
/// configuration.
pub const MAX_BYTES: u64 = 16 << 20;

/// Reads a regular file with the text of a configuration.
///
/// # Errors
/// Those of the system; it is no regular file, is too large, or has another encoding than UTF-8.
pub fn read_regular_text(path: &Path) -> io::Result<Zeroizing<String>> {
    let (bytes, _) = read_regular(path, MAX_BYTES)?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Reads a regular file with at most `most` bytes.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    read(path, most, |file, metadata, bytes| match metadata.is_file() {
        true => file.take(most + 1).read_to_end(bytes).map(drop),
        false => Err(io::Error::other("it is not a regular file")),
    })
}

/// Reads what a user names as a file, at most `most` bytes of it. Waits for the other end of a pipe that the
/// user's shell has opened, and not for long for that of a FIFO.
///
/// # Errors
/// Those of the system; no program writes to a FIFO, or it is too large.
pub fn read_named(path: &Path, most: u64) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    read(path, most, |file, _, bytes| platform::read_to_end(path, file, most + 1, bytes))
}

/// Reads a file with this function, and does so again if another program has changed it meanwhile: a part of
/// what was and a part of what is can be a valid configuration.
fn read(
    path: &Path,
    most: u64,
    read_to_end: impl Fn(&File, &Metadata, &mut Vec<u8>) -> io::Result<()>,
) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    for _ in 0..ATTEMPTS {
        let file = open(path)?;
        let metadata = file.metadata()?;
        // The size of a pipe is not known.
        let known = if metadata.is_file() { metadata.len() } else { most.min(PIPE_BYTES) };
        // The capacity is reserved at once: a vector that grows leaves copies of a key in memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(known.min(most) as usize + 1));
        read_to_end(&file, &metadata, &mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let now = file.metadata()?;
        let is_whole = now.len() == metadata.len() && now.modified().ok() == metadata.modified().ok();
        if is_whole || !metadata.is_file() {
            return Ok((bytes, metadata));
        }
    }
    Err(io::Error::other("another program writes to it all the time"))
}

/// How often a file is read that changes meanwhile.
const ATTEMPTS: usize = 100;

/// Room for what comes out of a pipe.
const PIPE_BYTES: u64 = 1 << 20;

/// Reports whether a path names a descriptor, such as that of `<(…)`, /dev/stdin or /proc/self/fd/3: what it
/// leads to is open already, and has no name. A link elsewhere is none: another user may have made it, to a
/// pipe that never ends.
pub fn is_descriptor(path: &Path) -> bool {
    let devices = Path::new("/dev");
    let is_one = |path: &Path| path.starts_with("/proc") || path.starts_with("/dev/fd");
    // /dev/stdin is a link.
    is_one(path)
        || path.parent() == Some(devices)
            && std::fs::read_link(path).is_ok_and(|target| is_one(&devices.join(target)))
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(all(unix, not(target_os = "ios")))]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        // Opening a FIFO waits for a writer else.
        options.custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY);
    }
    options.read(true).open(path)
}

#[cfg(all(unix, not(target_os = "ios")))]
mod platform {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileTypeExt as _;

    use nix::errno::Errno;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// How long a FIFO may be without a program that writes to it. The program may have been started a moment
    /// later.
    const NO_WRITER: Duration = Duration::from_secs(2);
    /// How long the program may take to write all of it.
    const SLOW_WRITER: Duration = Duration::from_secs(30);

    /// Appends at most `most` bytes of the file, which is open without blocking.
    pub(super) fn read_to_end(path: &Path, file: &File, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        read_within(SLOW_WRITER, path, file, most, bytes)
    }

    /// The same with another [`SLOW_WRITER`].
    pub(super) fn read_within(
        slow_writer: Duration,
        path: &Path,
        file: &File,
        most: u64,
        bytes: &mut Vec<u8>,
    ) -> io::Result<()> {
        let is_endless = is_descriptor(path);
        let is_fifo = file.metadata()?.file_type().is_fifo() && !is_endless;
        let begin = Instant::now();
        loop {
            let rest = most - bytes.len() as u64;
            let (patience, told) = match file.take(rest).read_to_end(bytes) {
                Ok(_) if is_fifo && bytes.is_empty() => (NO_WRITER, "no program writes to it"),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => (slow_writer, "the program that writes to it does not end"),
            };
            let timeout = match patience.checked_sub(begin.elapsed()) {
                _ if is_endless => PollTimeout::NONE,
                Some(rest) => PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX),
                None if is_fifo => return Err(io::Error::other(format!("it is a FIFO, and {told}"))),
                None => return Err(io::Error::other("it is not a regular file, and does not end")),
            };
            let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, timeout) {
                // A program has opened it and written nothing.
                Ok(_) if bytes.is_empty() && polled[0].revents() == Some(PollFlags::POLLHUP) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(not(all(unix, not(target_os = "ios"))))]
mod platform {
    use super::*;

    pub(super) fn read_to_end(_: &Path, file: &File, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        file.take(most).read_to_end(bytes).map(drop)
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_user_names_is_read_from_pipes_and_waits_for_no_fifo_without_a_writer() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mkfifo = |name: &str| {
            assert!(Command::new("mkfifo").arg(at(name)).status().unwrap().success());
            at(name)
        };
        let read = |path: &Path| {
            let read = read_named(path, 100);
            read.map(|(bytes, _)| String::from_utf8(bytes.to_vec()).unwrap())
                .map_err(|error| error.to_string())
        };
        let alone = mkfifo("alone");
        symlink(&alone, at("link")).unwrap();
        for path in [alone, at("link")] {
            assert_eq!(read(&path).unwrap_err(), "it is a FIFO, and no program writes to it", "{path:?}");
        }
        for (written, told) in [
            ("PrivateKey = x\n".to_owned(), Ok("PrivateKey = x\n".to_owned())),
            ("x".repeat(101), Err("file too large".to_owned())),
        ] {
            let fifo = mkfifo(&format!("fifo{}", written.len()));
            let writer = {
                let (fifo, written) = (fifo.clone(), written.clone());
                std::thread::spawn(move || std::fs::write(fifo, written))
            };
            assert_eq!(read(&fifo), told);
            let _ = writer.join().unwrap();
            // A shell's `<(…)`: the writer may end before, or after.
            let (reader, mut writer) = io::pipe().unwrap();
            let path =
                std::path::PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
            let link = at(&format!("link {}", written.len()));
            symlink(&path, &link).unwrap();
            assert!(is_descriptor(&path) && !is_descriptor(&link));
            let writing = std::thread::spawn(move || io::Write::write_all(&mut writer, written.as_bytes()));
            assert_eq!(read(&path), told);
            let _ = writing.join().unwrap();
        }
        for (name, target) in [("silent", mkfifo("slow")), ("terminal", "/dev/ptmx".into())] {
            symlink(&target, at(name)).unwrap();
            let file = open(&at(name)).unwrap();
            let writer = OpenOptions::new().read(true).write(true).open(&target).unwrap();
            let read = platform::read_within(Duration::ZERO, &at(name), &file, 100, &mut Vec::new());
            assert!(read.unwrap_err().to_string().contains("does not end"), "{name}");
            drop(writer);
        }
        assert_eq!(read(Path::new("/dev/null")), Ok(String::new()));
        assert!(read(Path::new("/dev/zero")).is_err_and(|error| error.contains("too large")));
        assert!(read(directory.path()).is_err() && !is_descriptor(directory.path()));
        assert!(is_descriptor(Path::new("/dev/stdin")) && !is_descriptor(Path::new("/dev/null")));
    }

    #[test]
    fn what_takes_the_place_of_a_file_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        symlink(at("fifo"), at("link to a fifo")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        File::create(at("large")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        std::fs::write(at("file"), "[Interface]\n").unwrap();
        symlink("file", at("link")).unwrap();
        for (name, told) in [
            ("fifo", Err("not a regular file")),
            ("link to a fifo", Err("not a regular file")),
            ("endless", Err("not a regular file")),
            ("directory", Err("not a regular file")),
            ("large", Err("too large")),
            ("missing", Err("No such file")),
            ("file", Ok("[Interface]\n")),
            ("link", Ok("[Interface]\n")),
        ] {
            let read = read_regular_text(&at(name)).map_err(|error| error.to_string());
            match told {
                Ok(text) => assert_eq!(read.unwrap().as_str(), text, "{name}"),
                Err(told) => {
                    assert!(read.as_ref().is_err_and(|error| error.contains(told)), "{name}: {read:?}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_replaced_in_place_while_it_is_read_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wg0.conf");
        std::fs::write(&path, "old").unwrap();
        let is_first = Cell::new(true);
        let read = read(&path, 100, |mut file, _, bytes| {
            if is_first.take() {
                bytes.extend(b"ol");
                return std::fs::write(&path, "new text");
            }
            file.read_to_end(bytes).map(drop)
        });
        assert_eq!(*read.unwrap().0, b"new text");
        let never = super::read(&path, 100, |_, metadata, _| {
            std::fs::write(&path, vec![b'x'; metadata.len() as usize + 1])
        });
        assert!(never.unwrap_err().to_string().contains("all the time"));
    }
}
