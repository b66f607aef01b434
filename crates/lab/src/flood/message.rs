//! Handshake initiations without a known key, and their proofs: the two MACs and the cookie (whitepaper,
//! 5.4.4 and 5.4.7).

use std::io;

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput as _, KeyInit as _, Update as _};
use blake2::{Blake2s256, Blake2sMac, Digest as _};
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use weft_tunnel::{PrivateKey, PublicKey};

/// Length of an initiation in bytes.
pub const INITIATION_LEN: usize = 148;
/// Length of a cookie reply in bytes.
pub const COOKIE_REPLY_LEN: usize = 64;
/// Offsets of the MACs in an initiation.
const MAC1: usize = 116;
const MAC2: usize = 132;
const COOKIE_REPLY: [u8; 4] = [3, 0, 0, 0];

/// The cookie by which a source proves its address.
pub type Cookie = [u8; 16];

/// The contents of an initiation, under a valid first MAC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// Random bytes, which cost the target a key agreement and then fail to decrypt.
    #[default]
    Random,
    /// A complete initiation, made with a key that the target does not know.
    UnknownKey,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initiation([u8; INITIATION_LEN]);

impl Initiation {
    /// Creates `count` different initiations to the owner of `key`, each with its number as sender index and
    /// a valid first MAC.
    ///
    /// # Errors
    /// When the system provides no random key, or boringtun cannot make an initiation.
    pub fn several(key: &PublicKey, count: usize, contents: Contents) -> io::Result<Vec<Self>> {
        let mac1_key = hash(b"mac1----", key);
        let mut maker = match contents {
            Contents::Random => None,
            Contents::UnknownKey => Some(stranger(key)?),
        };
        let make = |number: usize| {
            let mut bytes = [0; INITIATION_LEN];
            match &mut maker {
                None => rand::fill(&mut bytes[8..MAC1]),
                Some(maker) => {
                    if let TunnResult::Err(error) = maker.format_handshake_initiation(&mut bytes, true) {
                        return Err(io::Error::other(format!("cannot make an initiation: {error:?}")));
                    }
                    bytes[MAC2..].fill(0);
                }
            }
            bytes[..4].copy_from_slice(&[1, 0, 0, 0]);
            // The handshake does not authenticate the index, but the MAC covers it.
            bytes[4..8].copy_from_slice(&(number as u32).to_le_bytes());
            let tag = mac(&mac1_key, &bytes[..MAC1]);
            bytes[MAC1..MAC2].copy_from_slice(&tag);
            Ok(Self(bytes))
        };
        (0..count).map(make).collect()
    }

    /// Returns the message as sent.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the first MAC, which a cookie reply authenticates.
    pub fn mac1(&self) -> &[u8] {
        &self.0[MAC1..MAC2]
    }

    /// Sets the second MAC with the cookie of its source.
    pub fn prove(&mut self, cookie: &Cookie) {
        let tag = mac(cookie, &self.0[..MAC2]);
        self.0[MAC2..].copy_from_slice(&tag);
    }

    /// Makes the first MAC invalid.
    pub fn spoil(&mut self) {
        self.0[MAC1] ^= 1;
    }
}

/// Returns the number of the initiation that a cookie reply answers; `None` for other datagrams.
pub(super) fn answered(reply: &[u8]) -> Option<usize> {
    let is_reply = reply.len() == COOKIE_REPLY_LEN && reply.starts_with(&COOKIE_REPLY);
    let index = u32::from_le_bytes(*reply.get(4..)?.first_chunk()?);
    is_reply.then_some(index as usize)
}

/// Decrypts the cookie in a reply from the owner of `key` to the message with this first MAC; `None` if it is
/// no such reply.
pub fn open_cookie_reply(key: &PublicKey, reply: &[u8], mac1: &[u8]) -> Option<Cookie> {
    answered(reply)?;
    let cipher = XChaCha20Poly1305::new(&hash(b"cookie--", key).into());
    let sealed = Payload { msg: &reply[32..], aad: mac1 };
    let cookie = cipher.decrypt(XNonce::from_slice(&reply[8..32]), sealed).ok()?;
    cookie.try_into().ok()
}

fn hash(label: &[u8; 8], key: &PublicKey) -> [u8; 32] {
    Blake2s256::new().chain_update(label).chain_update(key.as_bytes()).finalize().into()
}

fn mac(key: &[u8], bytes: &[u8]) -> [u8; 16] {
    // BLAKE2s accepts keys of 16 and of 32 bytes, so this does not fail.
    let Ok(mut mac) = Blake2sMac::<U16>::new_from_slice(key) else { return [0; 16] };
    mac.update(bytes);
    mac.finalize_fixed().into()
}

/// Creates one end of a tunnel with a new key.
fn stranger(key: &PublicKey) -> io::Result<Tunn> {
    let own = PrivateKey::generate().map_err(io::Error::other)?;
    let own = x25519::StaticSecret::from(*own.as_bytes());
    Ok(Tunn::new(own, x25519::PublicKey::from(*key.as_bytes()), None, None, 1, None))
}
