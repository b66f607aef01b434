//! ChaCha20-Poly1305 of a data message: both implementations beside aws-lc. What one seals the others open,
//! and after any flip none does, or writes a byte.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use weft_aead::{Error, KEY_LEN, Key, NONCE_LEN, TAG_LEN};

/// An input is a key, a nonce, where the message begins in memory, which bit is flipped, and the message.
pub(crate) fn check(bytes: &[u8]) {
    let Some((key, rest)) = bytes.split_first_chunk::<KEY_LEN>() else { return };
    let Some((nonce, rest)) = rest.split_first_chunk::<NONCE_LEN>() else { return };
    let Some(([offset, flip @ ..], message)) = rest.split_first_chunk::<3>() else { return };
    let offset = usize::from(offset % 64);
    let bit = usize::from(u16::from_le_bytes(*flip)) % (8 * (message.len() + TAG_LEN));

    let other = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).unwrap());
    let mut expected = message.to_vec();
    let tag = other
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(*nonce), Aad::empty(), &mut expected)
        .unwrap();
    let expected_tag: [u8; TAG_LEN] = tag.as_ref().try_into().unwrap();

    for key in [Some(Key::portable(key)), Key::avx512(key)].into_iter().flatten() {
        let mut memory = vec![0xa5; offset + message.len() + 64];
        let data = &mut memory[offset..offset + message.len()];
        data.copy_from_slice(message);
        let mut tag = key.seal(nonce, data).unwrap();
        assert!(tag == expected_tag && *data == expected[..]);
        key.open(nonce, data, &tag).unwrap();
        assert!(data == message);

        data.copy_from_slice(&expected);
        match bit.checked_sub(8 * data.len()) {
            None => data[bit / 8] ^= 1 << (bit % 8),
            Some(bit) => tag[bit / 8] ^= 1 << (bit % 8),
        }
        let before = data.to_vec();
        assert_eq!(key.open(nonce, data, &tag), Err(Error));
        assert!(*data == before[..]);
        let beside = memory[..offset].iter().chain(&memory[offset + message.len()..]);
        assert!(beside.copied().all(|byte| byte == 0xa5));
    }
}
