//! Chooses the implementation of ChaCha20-Poly1305 at the start of the process, after a self-test.
//!
//! A processor may report AVX-512 and not execute it: a hypervisor answers CPUID in its place. Then the first
//! such instruction would end the daemon by SIGILL. So a child process tries first.

use std::ffi::OsStr;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use tracing::warn;
use weft_aead::{Cipher, KEY_LEN, Key, NONCE_LEN, TAG_LEN};
use weft_commands::doctor::{CipherChoice, Why};
use weft_config::exit::{Code, Error};

#[cfg(unix)]
mod trial;

#[cfg(not(unix))]
use crate::unsupported::trial;

/// Selects the implementation, for tests, and for machines that report a wrong processor.
pub const VARIABLE: &str = "WEFT_CIPHER";

/// Lengths for the self-test: one for each number of blocks that are computed side by side, for Poly1305
/// block by block and in lanes, and with more than one pass.
const LENGTHS: [usize; 8] = [0, 64, 192, 400, 700, 960, 1420, 4096];

/// Chooses the implementation that WEFT_CIPHER names, else the fastest that passes the self-test.
///
/// Processes without threads call this: the self-test forks.
///
/// # Errors
/// WEFT_CIPHER has another value, or names what does not work here.
pub fn choose() -> Result<(), Error> {
    let choice = choice()?;
    if let Why::Fallback(reason) = &choice.why {
        warn!(%reason, "AVX-512 does not work: aws-lc encrypts instead, which is slower");
    }
    weft_aead::choose(choice.cipher).map_err(|missing| Error::new(Code::Configuration, missing))?;
    if choice.cipher == Cipher::Avx512 {
        trial::explain_illegal_instructions();
    }
    Ok(())
}

/// What [`choose`] chooses, and why. It runs the self-test.
///
/// # Errors
/// Those of [`choose`].
pub fn choice() -> Result<CipherChoice, Error> {
    let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let named = value.as_deref().map(parse).transpose()?;
    let cipher = named.unwrap_or_else(Cipher::detect);
    Ok(match tried(cipher) {
        Ok(()) => CipherChoice { cipher, why: if named.is_some() { Why::Named } else { Why::Fastest } },
        Err(reason) if named.is_some() => {
            return Err(Error::new(Code::Configuration, format!("{VARIABLE}=avx512: {reason}")));
        }
        Err(reason) => CipherChoice { cipher: Cipher::AwsLc, why: Why::Fallback(reason) },
    })
}

/// As WEFT_CIPHER has it.
fn parse(value: &OsStr) -> Result<Cipher, Error> {
    match value.to_str() {
        Some("avx512") => Ok(Cipher::Avx512),
        Some("aws-lc") => Ok(Cipher::AwsLc),
        Some("portable") => Ok(Cipher::Portable),
        _ => Err(Error::new(
            Code::Usage,
            format!(
                "{VARIABLE} is {value:?}, which is no cipher: set it to `avx512`, `aws-lc` or `portable`, or unset it"
            ),
        )),
    }
}

/// Tries the implementation where it may not work. Fails with a part of a sentence.
fn tried(cipher: Cipher) -> Result<(), String> {
    if cipher != Cipher::Avx512 {
        return Ok(());
    }
    if Cipher::detect() != Cipher::Avx512 {
        return Err(weft_aead::Missing.to_string());
    }
    trial::run(avx512_is_right)
}

/// Reports whether AVX-512 seals and opens as aws-lc does: one packet of each length class.
fn avx512_is_right() -> bool {
    let bytes = std::array::from_fn(|i| i as u8);
    let Some(key) = Key::avx512(&bytes) else { return false };
    is_right(&key, &bytes)
}

fn is_right(key: &Key, bytes: &[u8; KEY_LEN]) -> bool {
    let Ok(other) = UnboundKey::new(&CHACHA20_POLY1305, bytes).map(LessSafeKey::new) else { return false };
    LENGTHS.iter().all(|len| {
        let nonce = [*len as u8; NONCE_LEN];
        let (mut ours, mut theirs) = (vec![0x5a; *len], vec![0x5a; *len]);
        let tag = key.seal(&nonce, &mut ours);
        let expected =
            other.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut theirs);
        let expected: Option<[u8; TAG_LEN]> = expected.ok().and_then(|tag| tag.as_ref().try_into().ok());
        let Some(tag) = tag.ok().filter(|tag| Some(*tag) == expected && ours == theirs) else { return false };
        key.open(&nonce, &mut ours, &tag).is_ok() && ours.iter().all(|byte| *byte == 0x5a)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_cipher_is_refused_with_what_there_is() {
        for (value, cipher) in
            [("avx512", Cipher::Avx512), ("aws-lc", Cipher::AwsLc), ("portable", Cipher::Portable)]
        {
            assert_eq!(parse(OsStr::new(value)).unwrap(), cipher);
        }
        for value in ["AVX512", "avx2", "ring", " aws-lc"] {
            let error = parse(OsStr::new(value)).unwrap_err();
            assert_eq!(error.code(), Code::Usage);
            let text = error.to_string();
            assert!(text.contains("WEFT_CIPHER") && text.contains("`aws-lc`"), "{text}");
        }
    }

    #[test]
    fn the_self_test_passes_what_is_right_and_nothing_else() {
        let bytes = [3; KEY_LEN];
        assert!(is_right(&Key::portable(&bytes), &bytes));
        assert!(!is_right(&Key::portable(&bytes), &[4; KEY_LEN]));
        assert_eq!(avx512_is_right(), Cipher::detect() == Cipher::Avx512);
    }
}
