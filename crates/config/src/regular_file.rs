//! Files that a daemon reads, perhaps as root below a directory of another user: what took the place of a
//! file may not keep the daemon waiting, as a FIFO would, nor fill its memory, as a device would.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use zeroize::Zeroizing;

/// The largest file that is read. It has room for more than 50,000 peers; a larger file is not a
/// configuration.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

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
    let file = open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // The capacity is reserved at once: a vector that grows leaves copies of a key in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len().min(most) as usize + 1));
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok((bytes, metadata))
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

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

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
}
