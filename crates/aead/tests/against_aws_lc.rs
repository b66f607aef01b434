//! Both implementations beside aws-lc, and Wycheproof's vectors.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Write as _;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use proptest::prelude::*;
use weft_aead::{Error, KEY_LEN, Key, MAX_LEN, NONCE_LEN, TAG_LEN};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

/// Both implementations, or the portable one where the processor has no AVX-512.
fn keys(key: &[u8; KEY_LEN]) -> Vec<(&'static str, Key)> {
    let mut keys = vec![("portable", Key::portable(key))];
    keys.extend(Key::avx512(key).map(|key| ("AVX-512", key)));
    keys
}

#[test]
fn avx512_is_tested_here() {
    if Key::avx512(&[0; KEY_LEN]).is_some() {
        return;
    }
    let line = "NOT RUN: ChaCha20-Poly1305 with AVX-512: this processor lacks it\n";
    eprint!("{line}");
    if let Some(log) = std::env::var_os("WEFT_NOT_RUN_LOG") {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}

fn sealed_by_aws_lc(key: &[u8; KEY_LEN], nonce: &[u8; NONCE_LEN], data: &mut [u8]) -> [u8; TAG_LEN] {
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).unwrap());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    key.seal_in_place_separate_tag(nonce, Aad::empty(), data).unwrap().as_ref().try_into().unwrap()
}

/// Seals and opens as aws-lc does.
fn compare(key: &[u8; KEY_LEN], nonce: &[u8; NONCE_LEN], plaintext: &[u8], offset: usize) {
    let mut expected = plaintext.to_vec();
    let expected_tag = sealed_by_aws_lc(key, nonce, &mut expected);
    for (name, key) in keys(key) {
        let mut memory = vec![0xa5; offset + plaintext.len()];
        let data = &mut memory[offset..];
        data.copy_from_slice(plaintext);
        let tag = key.seal(nonce, data).unwrap();
        assert!(tag == expected_tag && data == expected, "sealing {} bytes with {name}", plaintext.len());
        assert_eq!(key.open(nonce, data, &tag), Ok(()), "opening {} bytes with {name}", plaintext.len());
        assert!(data == plaintext, "opening {} bytes with {name}", plaintext.len());
    }
}

#[test]
fn every_length_is_sealed_as_aws_lc_seals_it() {
    let key = std::array::from_fn(|i| (i * 37) as u8);
    let text: Vec<u8> = (0..MAX_LEN).map(|i| (i * i + i / 256) as u8).collect();
    for len in (0..=2048).chain([4095, 4096, 8192, 9000, 65_519, MAX_LEN]) {
        let mut nonce = [0; NONCE_LEN];
        nonce[4..].copy_from_slice(&(len as u64).to_le_bytes());
        compare(&key, &nonce, &text[..len], len % 64);
    }
}

proptest! {
    #[test]
    fn any_message_is_sealed_as_aws_lc_seals_it(
        key: [u8; KEY_LEN],
        nonce: [u8; NONCE_LEN],
        plaintext in prop::collection::vec(any::<u8>(), 0..3000),
        offset in 0_usize..64,
    ) {
        compare(&key, &nonce, &plaintext, offset);
    }

    /// A ciphertext of any bytes, all ones among them, has the tag that aws-lc gives it.
    #[test]
    fn any_ciphertext_is_opened_as_aws_lc_opens_it(
        key: [u8; KEY_LEN],
        nonce: [u8; NONCE_LEN],
        ciphertext in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3000),
            (0_usize..3000).prop_map(|len| vec![0xff; len]),
        ],
    ) {
        // Sealing the key stream gives the plaintext of this ciphertext.
        let mut plaintext = ciphertext;
        sealed_by_aws_lc(&key, &nonce, &mut plaintext);
        compare(&key, &nonce, &plaintext, 0);
    }

    #[test]
    fn a_flipped_bit_is_found_and_nothing_is_written(
        key: [u8; KEY_LEN],
        nonce: [u8; NONCE_LEN],
        plaintext in prop::collection::vec(any::<u8>(), 0..2000),
        flip: prop::sample::Index,
    ) {
        for (name, key) in keys(&key) {
            let mut data = plaintext.clone();
            let mut tag = key.seal(&nonce, &mut data).unwrap();
            let bit = flip.index(8 * (data.len() + TAG_LEN));
            match data.len().checked_sub(bit / 8 + 1) {
                Some(_) => data[bit / 8] ^= 1 << (bit % 8),
                None => tag[bit / 8 - data.len()] ^= 1 << (bit % 8),
            }
            let before = data.clone();
            prop_assert_eq!(key.open(&nonce, &mut data, &tag), Err(Error), "{}", name);
            prop_assert!(data == before, "{}", name);
        }
    }
}

#[test]
fn wycheproofs_vectors_hold() {
    let set = TestSet::load(TestName::ChaCha20Poly1305).unwrap();
    let mut vectors = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let (Ok(key), Ok(nonce)) = (test.key.as_slice().try_into(), test.nonce.as_slice().try_into()) else {
            // Keys and nonces of wrong lengths are no arguments.
            continue;
        };
        if !test.aad.is_empty() {
            continue;
        }
        vectors += 1;
        for (name, key) in keys(key) {
            let mut data = test.ct.to_vec();
            let tag = test.tag.as_slice().try_into().unwrap();
            let opened = key.open(nonce, &mut data, tag);
            match test.result {
                TestResult::Invalid => assert_eq!(opened, Err(Error), "{name}, vector {}", test.tc_id),
                _ => {
                    assert_eq!(opened, Ok(()), "{name}, vector {}", test.tc_id);
                    assert_eq!(data, test.pt.as_slice(), "{name}, vector {}", test.tc_id);
                    assert_eq!(key.seal(nonce, &mut data).unwrap(), *tag, "{name}, vector {}", test.tc_id);
                    assert_eq!(data, test.ct.as_slice(), "{name}, vector {}", test.tc_id);
                }
            }
        }
    }
    assert!(vectors >= 30, "only {vectors} vectors have no associated data");
}
