//! Reads a configuration's text, from a file or standard input, into memory that is wiped.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weft_config::exit::{Code, Error};
use zeroize::Zeroizing;

/// More than 50,000 peers; a file beyond it is something else.
const MAX_BYTES: u64 = 16 << 20;

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{}: cannot read the configuration: {error}; {}", file.display(), advice(error))]
    Read { file: PathBuf, error: io::Error },
    #[error("{}:{line}: the file is not UTF-8 text; save it as UTF-8", file.display())]
    NotUtf8 { file: PathBuf, line: usize },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run weft as root, or as a user who may read it",
        io::ErrorKind::FileTooLarge => "a configuration has at most 16 MiB: is this the right file?",
        _ => "check the path",
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        let permission = matches!(&error, FileError::Read { error, .. } if error.kind() == io::ErrorKind::PermissionDenied);
        Self::new(if permission { Code::Permission } else { Code::Configuration }, error)
    }
}

/// The text of a file; of standard input if it is called `-`.
pub(super) fn read(file: &Path) -> Result<Zeroizing<String>, FileError> {
    let bytes = if file == Path::new("-") {
        read_all(io::stdin().lock(), 0)
    } else {
        File::open(file).and_then(|opened| {
            let bytes = opened.metadata()?.len();
            read_all(opened, bytes)
        })
    };
    let mut bytes = bytes.map_err(|error| FileError::Read { file: file.to_owned(), error })?;
    match String::from_utf8(std::mem::take(&mut *bytes)) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let bytes = Zeroizing::new(error.into_bytes());
            let line = bytes[..valid].iter().filter(|&&byte| byte == b'\n').count() + 1;
            Err(FileError::NotUtf8 { file: file.to_owned(), line })
        }
    }
}

/// All of `input`, which has probably `expected` bytes.
fn read_all(input: impl Read, expected: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    // Room for all of it at once where its size is known: a vector that grows leaves copies of keys behind.
    const PIPE: u64 = 1 << 20;
    let room = expected.clamp(PIPE, MAX_BYTES) as usize + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}
