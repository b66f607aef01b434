//! Reads the text of a configuration from a file or standard input, into memory that is wiped.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weft_config::exit::{Code, Error};
use weft_config::{MAX_BYTES, read_named};
use zeroize::Zeroizing;

/// Why the text could not be read.
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

/// Reads the text of a file; `-` is standard input.
pub(super) fn read(file: &Path) -> Result<Zeroizing<String>, FileError> {
    let bytes = if file == Path::new("-") {
        read_all(io::stdin().lock())
    } else {
        read_named(file, MAX_BYTES).map(|(bytes, _)| bytes)
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

/// Reads all of `input`.
fn read_all(input: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // Allocated at once: a vector that grows leaves copies of keys behind.
    const PIPE: usize = 1 << 20;
    let mut bytes = Zeroizing::new(Vec::with_capacity(PIPE));
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}
