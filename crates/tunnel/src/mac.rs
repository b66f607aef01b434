//! The BLAKE2s hashes of handshake messages (whitepaper, sections 5.4.4 and 5.4.7).

use blake2::digest::consts::U16;
use blake2::digest::{Digest as _, KeyInit, Mac as _};
use blake2::{Blake2s256, Blake2sMac};

use crate::key::PublicKey;

/// Bytes of mac1, of mac2 and of a cookie.
pub(crate) const MAC_LEN: usize = 16;

/// A mac or a cookie.
pub(crate) type Mac = [u8; MAC_LEN];

/// Returns the key of mac1 in messages to `receiver`.
pub(crate) fn mac1_key(receiver: &PublicKey) -> [u8; 32] {
    hash(b"mac1----", receiver)
}

/// Returns the key that encrypts cookies in cookie replies from `responder`.
pub(crate) fn cookie_key(responder: &PublicKey) -> [u8; 32] {
    hash(b"cookie--", responder)
}

fn hash(label: &[u8; 8], key: &PublicKey) -> [u8; 32] {
    Blake2s256::new().chain_update(label).chain_update(key.as_bytes()).finalize().into()
}

fn keyed(key: &[u8], message: &[u8]) -> Blake2sMac<U16> {
    let mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(key);
    // Only a key of more than 32 bytes is an error.
    mac.unwrap_or_else(|_| unreachable!("keys have 16 or 32 bytes")).chain_update(message)
}

/// Computes the mac of `message` under a key of 16 or 32 bytes.
pub(crate) fn mac(key: &[u8], message: &[u8]) -> Mac {
    keyed(key, message).finalize().into_bytes().into()
}

/// Reports whether `tag` is the mac of `message`, in constant time.
pub(crate) fn is_mac(key: &[u8], message: &[u8], tag: &[u8]) -> bool {
    keyed(key, message).verify_slice(tag).is_ok()
}

/// The parts of a handshake initiation or response that its macs cover: everything before mac1, mac1,
/// everything before mac2, mac2. [`Self::of`] returns `None` if the message is too short for them.
pub(crate) struct Macs<'a> {
    pub(crate) before_mac1: &'a [u8],
    pub(crate) mac1: &'a [u8],
    pub(crate) before_mac2: &'a [u8],
    pub(crate) mac2: &'a [u8],
}

impl<'a> Macs<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Option<Self> {
        let at = message.len().checked_sub(2 * MAC_LEN)?;
        let (before_mac2, mac2) = message.split_at(at + MAC_LEN);
        let (before_mac1, mac1) = before_mac2.split_at(at);
        Some(Self { before_mac1, mac1, before_mac2, mac2 })
    }
}

/// Writes mac1, and mac2 if there is a cookie, into a handshake message to `receiver`. Returns mac1.
pub(crate) fn stamp(message: &mut [u8], receiver: &PublicKey, cookie: Option<&Mac>) -> Option<Mac> {
    let at = message.len().checked_sub(2 * MAC_LEN)?;
    let mac1 = mac(&mac1_key(receiver), &message[..at]);
    message[at..at + MAC_LEN].copy_from_slice(&mac1);
    let mac2 = cookie.map_or([0; MAC_LEN], |cookie| mac(cookie, &message[..at + MAC_LEN]));
    message[at + MAC_LEN..].copy_from_slice(&mac2);
    Some(mac1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are from another implementation of BLAKE2s: two ends that agree on a wrong key would not
    /// notice.
    #[test]
    fn the_keys_of_macs_and_cookies_are_those_of_the_whitepaper() {
        let key = PublicKey::from_bytes(std::array::from_fn(|at| at as u8));
        let hex = |key: [u8; 32]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(mac1_key(&key)), "4fb2527ac956001553dc1ad9b55171b7d9daa3de1cdbcd71451830170c7e6cac");
        assert_eq!(hex(cookie_key(&key)), "3dd5869c5202e45146936d1644f76ff697061661c181f3fd450eae43932eacec");
    }
}
