//! Wycheproof's vectors, with associated data and without, as boringtun seals and opens.

#![allow(clippy::unwrap_used, reason = "a test")]

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use weft_aead::Cipher;
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

#[test]
fn wycheproofs_vectors_hold_with_each_cipher() {
    let set = TestSet::load(TestName::ChaCha20Poly1305).unwrap();
    let mut vectors = 0;
    for cipher in [Cipher::AwsLc, Cipher::Portable, Cipher::Avx512] {
        // tests/against_aws_lc.rs of weft-aead says that AVX-512 was not run.
        if weft_aead::choose(cipher).is_err() {
            continue;
        }
        assert_eq!(weft_aead::chosen(), cipher);
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let Ok(nonce) = test.nonce.as_slice().try_into() else { continue };
            let nonce = || Nonce::assume_unique_for_key(nonce);
            let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &test.key).unwrap());
            let mut message = [test.ct.as_slice(), &test.tag].concat();
            let opened = key.open_in_place(nonce(), Aad::from(&test.aad), &mut message);
            if test.result == TestResult::Invalid {
                assert!(opened.is_err(), "{cipher}, vector {}", test.tc_id);
                continue;
            }
            let data = opened.unwrap();
            assert_eq!(data, test.pt.as_slice(), "{cipher}, vector {}", test.tc_id);
            let tag = key.seal_in_place_separate_tag(nonce(), Aad::from(&test.aad), data).unwrap();
            assert_eq!(data, test.ct.as_slice(), "{cipher}, vector {}", test.tc_id);
            assert_eq!(tag.as_ref(), test.tag.as_slice(), "{cipher}, vector {}", test.tc_id);
            vectors += 1;
        }
    }
    assert!(vectors > 400, "only {vectors} vectors are valid");
}

#[test]
fn keys_of_other_lengths_and_truncated_messages_are_refused() {
    for len in [0, 16, 31, 33] {
        assert!(UnboundKey::new(&CHACHA20_POLY1305, &vec![0; len]).is_err(), "{len}");
    }
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &[0; 32]).unwrap());
    for len in 0..16 {
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        assert!(key.open_in_place(nonce, Aad::empty(), &mut vec![0; len]).is_err(), "{len}");
    }
}

/// Longer than a datagram: aws-lc takes it over, and the same key opens it.
#[test]
fn a_message_of_any_length_is_sealed() {
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &[1; 32]).unwrap());
    for len in [weft_aead::MAX_LEN, weft_aead::MAX_LEN + 1, 100_000] {
        let mut message = vec![5; len];
        let nonce = || Nonce::assume_unique_for_key([2; 12]);
        let tag = key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut message).unwrap();
        message.extend_from_slice(tag.as_ref());
        assert!(
            key.open_in_place(nonce(), Aad::empty(), &mut message).unwrap().iter().all(|byte| *byte == 5)
        );
    }
}
