//! The commands for keys: `weft genkey`, `weft genpsk`, `weft pubkey`.

use std::io::{self, Read as _};

use weft_config::exit::{Code, Error};
use weft_tunnel::{InvalidKey, PresharedKey, PrivateKey};
use zeroize::Zeroizing;

use crate::output;

/// Why a command for keys failed.
#[derive(Debug, thiserror::Error)]
enum KeyError {
    #[error("cannot get random numbers from the system: {0}")]
    Random(String),
    #[error("cannot read the private key from standard input: {0}")]
    Read(#[source] io::Error),
    #[error("standard input is not a private key: {0}; pipe in what `weft genkey` printed")]
    Invalid(#[source] InvalidKey),
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Self::new(Code::Failure, error)
    }
}

/// Prints a new private key.
pub fn genkey() -> Result<(), Error> {
    let key = PrivateKey::generate().map_err(|error| KeyError::Random(error.to_string()))?;
    warn_of_readers();
    print_line(&key.to_base64())
}

/// Prints a new preshared key.
pub fn genpsk() -> Result<(), Error> {
    let key = PresharedKey::generate().map_err(|error| KeyError::Random(error.to_string()))?;
    warn_of_readers();
    print_line(&key.to_base64())
}

/// Warns if standard output is a file that every user can read or change: a key in it is not secret.
pub(crate) fn warn_of_readers() {
    if let Some(mode) = output::open_to_all() {
        output::warning(&format!(
            "everybody can read or change the file that this key is written into (mode {mode:04o}); remove that access with \
             chmod 600, or make the file with `umask 077`"
        ));
    }
}

/// Reads a private key from standard input, and prints its public key.
pub fn pubkey() -> Result<(), Error> {
    let key = read_private_key(io::stdin().lock())?;
    print_line(&key.public_key().to_string())
}

fn read_private_key(input: impl io::Read) -> Result<PrivateKey, KeyError> {
    // A key has 44 characters. White space around it is allowed; a longer text is not a key.
    const MAX_BYTES: usize = 256;
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_BYTES + 1));
    input.take(MAX_BYTES as u64 + 1).read_to_end(&mut text).map_err(KeyError::Read)?;
    let text = Some(&text[..])
        .filter(|text| text.len() <= MAX_BYTES)
        .and_then(|text| std::str::from_utf8(text).ok());
    text.ok_or(InvalidKey).and_then(|text| text.trim().parse()).map_err(KeyError::Invalid)
}

fn print_line(text: &str) -> Result<(), Error> {
    let line = Zeroizing::new(format!("{text}\n"));
    output::print(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_is_read_with_white_space_around_it() {
        let key = PrivateKey::generate().unwrap();
        let text = format!("\r\n {}\r\n\n", *key.to_base64());
        assert_eq!(read_private_key(text.as_bytes()).unwrap(), key);
    }

    #[test]
    fn what_is_not_one_private_key_is_refused_without_repeating_it() {
        let key = PrivateKey::generate().unwrap().to_base64();
        for wrong in ["", "short", &format!("{0}\n{0}", *key), &" ".repeat(1000), &key[1..]] {
            let error = read_private_key(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("not a private key") && !error.contains(&key[1..]), "{error}");
        }
        assert!(read_private_key(&b"\xff\xff"[..]).is_err());
    }
}
