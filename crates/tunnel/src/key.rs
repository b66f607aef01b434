//! WireGuard keys: 32 bytes, as text in base64 (wg(8)). Secret keys are wiped on drop and never printed.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boringtun::x25519;
use rand::TryRng as _;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::clean_stack::with_clean_stack;

/// Bytes of a secret key. Clones share them: a key is in memory once, and a moved key leaves no copy behind.
type Secret = Arc<Zeroizing<[u8; 32]>>;

/// Error of parsing a key: the text is not the base64 encoding of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 44 characters of base64 (32 bytes)")]
pub struct InvalidKey;

/// Makes a secret in its place in memory, so that no copy of it is left on a stack.
fn fill<E>(fill: impl FnOnce(&mut [u8; 32]) -> Result<(), E>) -> Result<Secret, E> {
    let mut secret = Secret::default();
    // No other clone exists yet.
    Arc::get_mut(&mut secret).map_or(Ok(()), |bytes| fill(bytes))?;
    Ok(secret)
}

fn decode(text: &str, key: &mut [u8; 32]) -> Result<(), InvalidKey> {
    // One byte more than a key, so that a longer text fails by its length and not for lack of buffer.
    let mut bytes = Zeroizing::new([0u8; 33]);
    match STANDARD.decode_slice(text, &mut bytes[..]) {
        Ok(32) => key.copy_from_slice(&bytes[..32]),
        _ => return Err(InvalidKey),
    }
    Ok(())
}

fn random(key: &mut [u8; 32]) -> Result<(), rand::rngs::SysError> {
    rand::rngs::SysRng.try_fill_bytes(key)
}

/// A Curve25519 private key, clamped (RFC 7748, section 5).
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Secret);

// The bytes are wiped when the last clone is dropped.
impl ZeroizeOnDrop for PrivateKey {}

impl PrivateKey {
    /// Generates a key from the random numbers of the operating system.
    ///
    /// # Errors
    /// The operating system provides no random numbers.
    pub fn generate() -> Result<Self, rand::rngs::SysError> {
        Self::from_fill(random)
    }

    /// Creates a key from its bytes, and clamps them.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let key = Self::from_fill(|key| {
            *key = bytes;
            Ok::<(), Infallible>(())
        });
        key.unwrap_or_else(|never| match never {})
    }

    /// Creates a key from the bytes that `bytes` writes, which are then clamped. They are never elsewhere in
    /// memory.
    ///
    /// # Errors
    /// Those of `bytes`.
    pub fn from_fill<E>(bytes: impl FnOnce(&mut [u8; 32]) -> Result<(), E>) -> Result<Self, E> {
        let clamped = |key: &mut [u8; 32]| {
            bytes(key)?;
            key[0] &= 248;
            key[31] = key[31] & 127 | 64;
            Ok(())
        };
        fill(clamped).map(Self)
    }

    /// Returns the public key that belongs to this key.
    pub fn public_key(&self) -> PublicKey {
        with_clean_stack(|| PublicKey(x25519::PublicKey::from(&self.to_x25519()).to_bytes()))
    }

    /// Returns the key as base64 text, only for `weft genkey` and the answer to `wg show`.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.as_bytes()))
    }

    /// Returns the 32 bytes of the key, only for the answer to `wg show`.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn to_x25519(&self) -> x25519::StaticSecret {
        x25519::StaticSecret::from(**self.0)
    }
}

impl FromStr for PrivateKey {
    type Err = InvalidKey;
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::from_fill(|key| decode(text, key))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}

/// Computes one X25519 and discards the result, to measure the time for [`crate::Tunnel::calibrate`].
pub fn exercise_x25519() {
    let shared = x25519::StaticSecret::from([1; 32]).diffie_hellman(&x25519::PublicKey::from([9; 32]));
    std::hint::black_box(shared.as_bytes());
}

/// A symmetric key that both ends mix into the handshake (WireGuard whitepaper, section 5.2).
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Secret);

// The bytes are wiped when the last clone is dropped.
impl ZeroizeOnDrop for PresharedKey {}

impl PresharedKey {
    /// Generates a key from the random numbers of the operating system.
    ///
    /// # Errors
    /// The operating system provides no random numbers.
    pub fn generate() -> Result<Self, rand::rngs::SysError> {
        Self::from_fill(random)
    }

    /// Creates a key from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// Creates a key from the bytes that `bytes` writes. They are never elsewhere in memory.
    ///
    /// # Errors
    /// Those of `bytes`.
    pub fn from_fill<E>(bytes: impl FnOnce(&mut [u8; 32]) -> Result<(), E>) -> Result<Self, E> {
        fill(bytes).map(Self)
    }

    /// Returns the 32 bytes of the key, only for the answer to `wg show`.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the key as base64 text, only for `weft genpsk` and the answer to `wg show`.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.as_bytes()))
    }
}

impl FromStr for PresharedKey {
    type Err = InvalidKey;
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::from_fill(|key| decode(text, key))
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(hidden)")
    }
}

/// A Curve25519 public key: the identity of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Creates a key from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes of the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn to_x25519(self) -> x25519::PublicKey {
        x25519::PublicKey::from(self.0)
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let mut key = [0; 32];
        decode(text, &mut key)?;
        Ok(Self(key))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_never_shows_in_debug() {
        let private = PrivateKey::generate().unwrap();
        let text = private.to_base64();
        assert_eq!(text.len(), 44);
        assert_eq!(text.parse::<PrivateKey>().unwrap(), private);
        assert_eq!(format!("{private:?}"), "PrivateKey(hidden)");
        assert_eq!(format!("{:?}", PresharedKey::from_bytes([1; 32])), "PresharedKey(hidden)");
        let public = private.public_key();
        assert_eq!(format!("{public:?}"), format!("PublicKey({public})"));
        assert_eq!(public.to_string().parse::<PublicKey>().unwrap(), public);
    }

    #[test]
    fn secret_keys_are_wiped_when_they_are_dropped() {
        // The test fails to compile if a key type is not wiped.
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<PrivateKey>();
        is_wiped::<PresharedKey>();
    }

    #[test]
    fn texts_that_are_no_key_are_refused() {
        let text = PresharedKey::generate().unwrap().to_base64();
        for wrong in
            ["", "AAAA", &text[1..], &text[..43], &format!("{}AAAA", &text[..40]), &format!("A{}", *text)]
        {
            let parsed = wrong.parse::<PresharedKey>();
            assert!(parsed.is_err() || wrong.len() == 44, "{wrong}");
        }
        assert_eq!("not base64 at all, but of forty-four letters".parse::<PublicKey>(), Err(InvalidKey));
    }

    #[test]
    fn the_public_key_is_the_one_of_rfc_7748() {
        // RFC 7748, section 6.1: Bob's key pair.
        let hex = |text: &str| -> [u8; 32] {
            std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        };
        let private = hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let public = hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        assert_eq!(PrivateKey::from_bytes(private).public_key(), PublicKey(public));
    }
}
