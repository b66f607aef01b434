//! Messages that an attacker who knows only public keys can make: handshake messages with a valid mac1
//! (whitepaper, section 5.4.4), which takes BLAKE2s (RFC 7693).

use weft_tunnel::PublicKey;

use crate::sim::Datagram;

const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

fn compress(state: &mut [u32; 8], block: &[u8], counter: u64, is_last: bool) {
    let word = |i: usize| u32::from_le_bytes(*block[4 * i..].first_chunk().unwrap());
    let mut v = [0; 16];
    v[..8].copy_from_slice(state);
    v[8..].copy_from_slice(&IV);
    v[12] ^= counter as u32;
    v[13] ^= (counter >> 32) as u32;
    if is_last {
        v[14] = !v[14];
    }
    const COLUMNS: [[usize; 4]; 8] = [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
        [0, 5, 10, 15],
        [1, 6, 11, 12],
        [2, 7, 8, 13],
        [3, 4, 9, 14],
    ];
    for sigma in SIGMA {
        for (i, [a, b, c, d]) in COLUMNS.into_iter().enumerate() {
            for (input, turn_d, turn_b) in [(sigma[2 * i], 16, 12), (sigma[2 * i + 1], 8, 7)] {
                v[a] = v[a].wrapping_add(v[b]).wrapping_add(word(input));
                v[d] = (v[d] ^ v[a]).rotate_right(turn_d);
                v[c] = v[c].wrapping_add(v[d]);
                v[b] = (v[b] ^ v[c]).rotate_right(turn_b);
            }
        }
    }
    for i in 0..8 {
        state[i] ^= v[i] ^ v[i + 8];
    }
}

/// BLAKE2s of `message` with `key`, to `len` bytes.
fn blake2s(len: usize, key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut state = IV;
    state[0] ^= 0x0101_0000 ^ (key.len() as u32) << 8 ^ len as u32;
    let mut input = key.to_vec();
    if !key.is_empty() {
        input.resize(64, 0);
    }
    input.extend_from_slice(message);
    let total = input.len();
    input.resize(total.next_multiple_of(64).max(64), 0);
    let blocks = input.len() / 64;
    for (i, block) in input.chunks(64).enumerate() {
        let is_last = i + 1 == blocks;
        let counter = if is_last { total } else { 64 * (i + 1) };
        compress(&mut state, block, counter as u64, is_last);
    }
    state.iter().flat_map(|word| word.to_le_bytes()).take(len).collect()
}

/// Recomputes the mac1 of a handshake message to `receiver`.
pub(crate) fn remake_mac1(datagram: &mut Datagram, receiver: &PublicKey) {
    let mut label = b"mac1----".to_vec();
    label.extend_from_slice(receiver.as_bytes());
    let key = blake2s(32, &[], &label);
    let at = datagram.bytes.len() - 32;
    let mac1 = blake2s(16, &key, &datagram.bytes[..at]);
    datagram.bytes[at..at + 16].copy_from_slice(&mac1);
}

#[test]
fn blake2s_of_the_rfc_7693_example() {
    let hex: String = blake2s(32, &[], b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
}
