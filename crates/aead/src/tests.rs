//! The vectors of RFC 8439, and Poly1305 beside the definition where its limbs are largest. Miri runs this.

use super::*;

/// Both implementations, or the portable one where the processor has no AVX-512. tests/against_aws_lc.rs says
/// then that the other was not run.
fn keys(key: &[u8; KEY_LEN]) -> impl Iterator<Item = Key> {
    [Some(Key::portable(key)), avx512(key)].into_iter().flatten()
}

fn avx512(key: &[u8; KEY_LEN]) -> Option<Key> {
    if cfg!(miri) { None } else { Key::avx512(key) }
}

/// The tag of a one-time key, by both.
fn tags(key: &[u64; 8], data: &[u8]) -> impl Iterator<Item = u128> {
    #[cfg(target_arch = "x86_64")]
    let wide = if cfg!(miri) { None } else { avx512::Avx512::detect().map(|proof| proof.tag(key, data)) };
    #[cfg(not(target_arch = "x86_64"))]
    let wide = None;
    [Some(portable::tag(key, data)), wide].into_iter().flatten()
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal.chars().filter_map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn array<const N: usize>(hexadecimal: &str) -> [u8; N] {
    bytes(hexadecimal).try_into().unwrap()
}

#[test]
fn the_key_stream_is_that_of_the_rfc() {
    // Section 2.4.2: the counter begins with 1 there too.
    let key = std::array::from_fn(|i| i as u8);
    let nonce = array("00 00 00 00 00 00 00 4a 00 00 00 00");
    let text =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
        sunscreen would be it.";
    let expected = bytes(
        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b
         f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8
         07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736
         5af90bbf74a35be6b40b8eedf2785e42874d",
    );
    for key in keys(&key) {
        let mut data = *text;
        key.seal(&nonce, &mut data).unwrap();
        assert_eq!(data[..], expected);
    }
}

/// A number modulo p = 2^130 - 5 in words of 32 bits, as slow and plain as possible.
fn multiply(a: [u64; 5], b: [u64; 5]) -> [u64; 5] {
    let mut product = [0_u64; 11];
    for i in 0..5 {
        let mut carry = 0;
        for k in 0..5 {
            let sum = u128::from(product[i + k]) + u128::from(a[i]) * u128::from(b[k]) + carry;
            product[i + k] = sum as u64 & 0xffff_ffff;
            carry = sum >> 32;
        }
        product[i + 5] += carry as u64;
    }
    // 2^130 counts 5: what stands there is added five times to the rest, until nothing does.
    let mut number = product;
    loop {
        let mut above = [0_u64; 11];
        for i in 4..10 {
            above[i - 4] = (number[i] >> 2 | number[i + 1] << 30) & 0xffff_ffff;
        }
        number[4] &= 3;
        number[5..].fill(0);
        if above == [0; 11] {
            return number[..5].try_into().unwrap();
        }
        let mut carry = 0;
        for i in 0..11 {
            let sum = number[i] + 5 * above[i] + carry;
            number[i] = sum & 0xffff_ffff;
            carry = sum >> 32;
        }
    }
}

/// Poly1305 as section 2.5.1 defines it.
fn definition(key: &[u8; 32], message: &[u8]) -> u128 {
    let number = |bytes: &[u8]| {
        let mut words = [0_u64; 5];
        for (i, byte) in bytes.iter().enumerate() {
            words[i / 4] |= u64::from(*byte) << (8 * (i % 4));
        }
        words
    };
    let r = u128::from_le_bytes(key[..16].try_into().unwrap()) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
    let r = number(&r.to_le_bytes());
    let mut sum = [0_u64; 5];
    for block in message.chunks(16) {
        let block = number(&[block, &[1]].concat());
        let mut carry = 0;
        for i in 0..5 {
            let total = sum[i] + block[i] + carry;
            sum[i] = total & 0xffff_ffff;
            carry = total >> 32;
        }
        sum = multiply(sum, r);
    }
    // Below 2^130; at least p only if all words are at their largest.
    let low = |sum: &[u64; 5]| (0..4).fold(0_u128, |low, i| low | u128::from(sum[i]) << (32 * i));
    let mut value = low(&sum);
    if sum[4] == 3 && value >= u128::MAX - 4 {
        value = value.wrapping_add(5);
    }
    value.wrapping_add(u128::from_le_bytes(key[16..].try_into().unwrap()))
}

#[test]
fn the_definition_gives_the_vectors_of_the_rfc() {
    let vectors = [
        // Section 2.5.2.
        (
            "85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b",
            "43727970746f6772617068696320466f72756d2052657365617263682047726f7570",
            "a8061dc1305136c6c22b8baf0c0127a9",
        ),
        // Appendix A.3, 7 to 11: results at p, and carries to the end.
        (
            "0200000000000000000000000000000000000000000000000000000000000000",
            "ffffffffffffffffffffffffffffffff",
            "03000000000000000000000000000000",
        ),
        (
            "02000000000000000000000000000000ffffffffffffffffffffffffffffffff",
            "02000000000000000000000000000000",
            "03000000000000000000000000000000",
        ),
        (
            "0100000000000000000000000000000000000000000000000000000000000000",
            "fffffffffffffffffffffffffffffffff0ffffffffffffffffffffffffffffff11000000000000000000000000000000",
            "05000000000000000000000000000000",
        ),
        (
            "0100000000000000000000000000000000000000000000000000000000000000",
            "fffffffffffffffffffffffffffffffffbfefefefefefefefefefefefefefefe01010101010101010101010101010101",
            "00000000000000000000000000000000",
        ),
        (
            "0200000000000000000000000000000000000000000000000000000000000000",
            "fdffffffffffffffffffffffffffffff",
            "faffffffffffffffffffffffffffffff",
        ),
    ];
    for (key, message, tag) in vectors {
        assert_eq!(definition(&array(key), &bytes(message)).to_le_bytes(), array(tag), "{message}");
    }
}

#[test]
fn tags_are_right_where_limbs_are_largest() {
    // The largest r after its bits are cleared, the smallest ones, and one in between; s of all ones and
    // zeros.
    let rs: &[u128] = if cfg!(miri) {
        &[u128::MAX]
    } else {
        &[u128::MAX, 0, 1, 2, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210]
    };
    let lens: &[usize] = if cfg!(miri) {
        &[0, 17, 193]
    } else {
        &[
            0, 1, 15, 16, 17, 31, 64, 191, 192, 193, 207, 208, 239, 240, 241, 255, 256, 257, 495, 496, 497,
            1420, 4096,
        ]
    };
    for r in rs {
        for s in if cfg!(miri) { vec![u128::MAX] } else { vec![0, u128::MAX] } {
            let mut key = [0; 32];
            key[..16].copy_from_slice(&r.to_le_bytes());
            key[16..].copy_from_slice(&s.to_le_bytes());
            let mut doubles = [u64::MAX; 8];
            for (double, bytes) in doubles.iter_mut().zip(key.as_chunks().0) {
                *double = u64::from_le_bytes(*bytes);
            }
            for fill in if cfg!(miri) { vec![0xff] } else { vec![0xff, 0, 0xfb] } {
                for &len in lens {
                    let data = vec![fill; len];
                    let mut message = data.clone();
                    message.resize(len.next_multiple_of(16), 0);
                    message.extend_from_slice(&0_u64.to_le_bytes());
                    message.extend_from_slice(&(len as u64).to_le_bytes());
                    let expected = definition(&key, &message);
                    for tag in tags(&doubles, &data) {
                        assert_eq!(tag, expected, "r {r:x}, s {s:x}, {len} bytes of {fill:x}");
                    }
                }
            }
        }
    }
}

/// With r = 1 the blocks are added: the sum is p, some less, and some more, where the last subtraction
/// begins.
#[test]
fn sums_beside_p_are_reduced() {
    let mut key = [0; 8];
    key[0] = 1;
    let bytes = std::array::from_fn(|i| u8::from(i == 0));
    for more in if cfg!(miri) { 0..1 } else { -6..6_i128 } {
        // Three blocks, with that of the length: 3 2^128 + blocks = 2^130 - 5 + more. Fourteen: 14 2^128 +
        // blocks = 3 2^130 + (2^130 - 5 - 3 5) + more.
        for (len, first, less) in [(32_usize, 0, 5), (208, u128::MAX, 19)] {
            let second = 0_u128.wrapping_sub((less - more) as u128 + ((len as u128) << 64));
            let mut data = vec![0; len];
            data[..16].copy_from_slice(&first.to_le_bytes());
            data[16..32].copy_from_slice(&second.to_le_bytes());
            let mut message = data.clone();
            message.extend_from_slice(&[0; 8]);
            message.extend_from_slice(&(len as u64).to_le_bytes());
            let expected = definition(&bytes, &message);
            assert_eq!(
                expected,
                if more < 0 { 0_u128.wrapping_sub((5 - more) as u128) } else { more as u128 }
            );
            for tag in tags(&key, &data) {
                assert_eq!(tag, expected, "p and {more}, {len} bytes");
            }
        }
    }
}

/// At each place in memory: what stands beside the message is neither changed nor read into the tag.
#[test]
fn neighbours_in_memory_are_left_alone() {
    let (key, nonce) = ([7; KEY_LEN], [9; NONCE_LEN]);
    for len in if cfg!(miri) { vec![17, 193] } else { (0..300).chain([1420]).collect() } {
        for (offset, beside) in
            if cfg!(miri) { vec![(15, 1)] } else { vec![(0, 0), (1, 0xff), (15, 1), (63, 2)] }
        {
            for key in keys(&key) {
                let mut alone: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let plaintext = alone.clone();
                let expected = key.seal(&nonce, &mut alone).unwrap();
                let mut memory = vec![beside; offset + len + 100];
                memory[offset..offset + len].copy_from_slice(&plaintext);
                let tag = key.seal(&nonce, &mut memory[offset..offset + len]).unwrap();
                assert_eq!((tag, &memory[offset..offset + len]), (expected, &alone[..]));
                key.open(&nonce, &mut memory[offset..offset + len], &tag).unwrap();
                assert_eq!(memory[offset..offset + len], plaintext);
                let mut others = memory[..offset].iter().chain(&memory[offset + len..]);
                assert!(others.all(|byte| *byte == beside), "{len} bytes at {offset}");
            }
        }
    }
}

#[test]
fn nothing_is_written_where_any_bit_of_the_tag_is_wrong() {
    let (key, nonce) = ([1; KEY_LEN], [2; NONCE_LEN]);
    for len in if cfg!(miri) { vec![20] } else { vec![0, 1, 20, 192, 193, 1420, MAX_LEN] } {
        for key in keys(&key) {
            let mut data = vec![3; len];
            let tag = key.seal(&nonce, &mut data).unwrap();
            let sealed = data.clone();
            for bit in (0..128).step_by(if cfg!(miri) { 127 } else { 1 }) {
                let wrong = (u128::from_le_bytes(tag) ^ 1 << bit).to_le_bytes();
                assert_eq!(key.open(&nonce, &mut data, &wrong), Err(Error));
                assert!(data == sealed, "{len} bytes were changed, bit {bit}");
            }
            key.open(&nonce, &mut data, &tag).unwrap();
            assert!(data.iter().all(|byte| *byte == 3));
        }
    }
}

#[test]
fn messages_longer_than_a_datagram_are_refused() {
    for key in keys(&[0; KEY_LEN]) {
        let mut data = vec![5; MAX_LEN + 1];
        assert_eq!(key.seal(&[0; NONCE_LEN], &mut data), Err(Error));
        assert_eq!(key.open(&[0; NONCE_LEN], &mut data, &[0; TAG_LEN]), Err(Error));
        assert!(data == vec![5; MAX_LEN + 1]);
    }
}

#[test]
fn a_key_keeps_its_bytes_and_does_not_print_them() {
    let bytes = std::array::from_fn(|i| i as u8);
    for key in keys(&bytes) {
        assert_eq!(key.bytes(), bytes);
        assert_eq!(format!("{key:?}"), "Key");
    }
}
