//! A new file with a key, which is removed again unless everything else went well.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use weft_config::exit::Error;

pub(super) struct PrivateFile {
    path: PathBuf,
    is_kept: bool,
}

impl PrivateFile {
    /// Writes a file that only its owner may read, where there is none.
    pub(super) fn write(path: &Path, text: &str) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let failed = |error: io::Error| {
            let code = Error::from(io::Error::from(error.kind())).code();
            let reason = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    "there is a file already, perhaps with the key of another peer: remove it, or give --out another name"
                        .to_owned()
                }
                _ => format!("cannot write it: {error}"),
            };
            Error::new(code, format!("{}: {reason}; no peer was added", path.display()))
        };
        let mut file = options.write(true).create_new(true).open(path).map_err(failed)?;
        let written = Self { path: path.to_owned(), is_kept: false };
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(written)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
