//! Reads keys from files. Secrets do not belong on the command line, which all users can read.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use weft_config::read_named;
use weft_tunnel::InvalidKey;
use zeroize::Zeroizing;

/// Why no key could be read from a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyFileError {
    #[error("{}: cannot read the key: {error}; give the path of a file that holds it", file.display())]
    Read { file: PathBuf, error: io::Error },
    #[error(
        "{}: there is no key in this file: {reason}; write what `weft genkey` or `weft genpsk` prints",
        file.display()
    )]
    Invalid { file: PathBuf, reason: InvalidKey },
}

/// Reads the key in a file; `None` if the file is empty, such as /dev/null.
pub(super) fn read<K: FromStr<Err = InvalidKey>>(file: &Path) -> Result<Option<K>, KeyFileError> {
    // A key has 44 characters. White space around it is allowed; a longer text is not a key.
    const MAX_BYTES: u64 = 256;
    let bytes = match read_named(file, MAX_BYTES) {
        Ok((bytes, _)) if bytes.is_empty() => return Ok(None),
        Ok((bytes, _)) => bytes,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Zeroizing::default(),
        Err(error) => return Err(KeyFileError::Read { file: file.to_owned(), error }),
    };
    let text = std::str::from_utf8(&bytes).ok();
    text.ok_or(InvalidKey)
        .and_then(|text| text.trim().parse())
        .map(Some)
        .map_err(|reason| KeyFileError::Invalid { file: file.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use weft_tunnel::PrivateKey;

    use super::*;

    fn key_in(text: &[u8]) -> Result<Option<PrivateKey>, KeyFileError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        std::fs::write(&file, text).unwrap();
        read(&file)
    }

    #[test]
    fn a_file_holds_a_key_or_nothing() {
        let key = PrivateKey::generate().unwrap();
        assert_eq!(key_in(format!("{}\n", *key.to_base64()).as_bytes()).unwrap(), Some(key.clone()));
        assert_eq!(key_in(b"").unwrap(), None);
        for wrong in [&b"\n"[..], b"short\n", b"\xff", &[b' '; 1000]] {
            assert!(matches!(key_in(wrong), Err(KeyFileError::Invalid { .. })), "{wrong:?}");
        }
        let twice = format!("{0}\n{0}\n", *key.to_base64());
        let error = key_in(twice.as_bytes()).unwrap_err().to_string();
        assert!(!error.contains(&key.to_base64()[..20]), "{error}");
        assert!(matches!(read::<PrivateKey>(Path::new("/nonexistent")), Err(KeyFileError::Read { .. })));
    }
}
