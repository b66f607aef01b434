//! Cookies, with which the sender of a handshake message proves that it receives datagrams at its source
//! address (whitepaper, section 5.4.7). boringtun's cookies are not used: they cover the address without the
//! port, and its secrets change without overlap.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use chacha20poly1305::aead::AeadInPlace as _;
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use rand::Rng as _;
use zeroize::Zeroizing;

use crate::drop_reason::DropReason;
use crate::key::PublicKey;
use crate::mac::{self, MAC_LEN, Mac, Macs};

/// Lifetime of a secret for new cookies, and of a received cookie (whitepaper, section 5.4.7).
const SECRET_LIFETIME: Duration = Duration::from_secs(120);
/// Bytes of a cookie reply: type, receiver index, nonce, encrypted cookie and its tag.
pub(crate) const COOKIE_REPLY_LEN: usize = 4 + 4 + NONCE_LEN + MAC_LEN + TAG_LEN;
const NONCE_LEN: usize = 24;
const TAG_LEN: usize = 16;
const COOKIE_REPLY_HEADER: [u8; 4] = [3, 0, 0, 0];

/// The side that demands cookies. It replaces its secret every two minutes, and accepts cookies of the
/// previous secret, so that no cookie expires on its way.
pub(crate) struct CookieChecker {
    mac1_key: [u8; 32],
    reply_cipher: XChaCha20Poly1305,
    root: CookieRoot,
    /// The number of the present lifetime, counted from the origin, and its secret and the previous one.
    period: u64,
    secrets: [Zeroizing<Mac>; 2],
}

/// What the secrets of cookies are derived from. The tunnels of the shards of one interface have the same,
/// and so accept each other's cookies.
#[derive(Clone)]
pub struct CookieRoot {
    key: Zeroizing<[u8; 32]>,
    /// When the lifetime of the first secret begins; `None` until the first message.
    origin: Option<Instant>,
}

impl CookieRoot {
    /// Draws a random key. The lifetimes of secrets are counted from `now`.
    pub fn generate(now: Instant) -> Self {
        Self { origin: Some(now), ..Self::unshared() }
    }

    /// Draws a random key for one tunnel, which counts the lifetimes of secrets from its first message.
    pub(crate) fn unshared() -> Self {
        Self { key: Zeroizing::new(rand::random()), origin: None }
    }

    /// Returns the number of the lifetime that `now` is in.
    fn period(&mut self, now: Instant) -> u64 {
        let age = now.duration_since(*self.origin.get_or_insert(now));
        age.as_secs() / SECRET_LIFETIME.as_secs()
    }

    fn secrets(&self, period: u64) -> [Zeroizing<Mac>; 2] {
        // The first period has none before it: its second secret is of a period that never comes.
        [period, period.wrapping_sub(1)]
            .map(|period| Zeroizing::new(mac::mac(self.key.as_slice(), &period.to_le_bytes())))
    }
}

impl std::fmt::Debug for CookieRoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CookieRoot").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl CookieChecker {
    /// Creates a checker of messages to the interface with this public key.
    pub(crate) fn new(own: &PublicKey, root: CookieRoot) -> Self {
        Self {
            mac1_key: mac::mac1_key(own),
            reply_cipher: XChaCha20Poly1305::new(&mac::cookie_key(own).into()),
            secrets: root.secrets(0),
            period: 0,
            root,
        }
    }

    /// Sets the public key that messages have to be made for.
    pub(crate) fn set_key(&mut self, own: &PublicKey) {
        self.mac1_key = mac::mac1_key(own);
        self.reply_cipher = XChaCha20Poly1305::new(&mac::cookie_key(own).into());
    }

    /// Reports whether the message was made for our public key.
    pub(crate) fn has_valid_mac1(&self, message: &[u8]) -> bool {
        Macs::of(message).is_some_and(|macs| mac::is_mac(&self.mac1_key, macs.before_mac1, macs.mac1))
    }

    /// Reports whether the message carries a mac2, which is all zeros without a cookie.
    pub(crate) fn has_mac2(message: &[u8]) -> bool {
        Macs::of(message).is_some_and(|macs| macs.mac2 != [0; MAC_LEN])
    }

    /// Reports whether the sender of the message has a valid cookie of ours for its address and port.
    pub(crate) fn has_valid_mac2(&mut self, message: &[u8], source: SocketAddr, now: Instant) -> bool {
        let Some(macs) = Macs::of(message) else { return false };
        self.change_secret(now);
        self.secrets.iter().any(|secret| mac::is_mac(&cookie(secret, source), macs.before_mac2, macs.mac2))
    }

    /// Returns the cookie reply to a handshake message with a valid mac1.
    pub(crate) fn reply(
        &mut self,
        message: &[u8],
        source: SocketAddr,
        now: Instant,
    ) -> Option<[u8; COOKIE_REPLY_LEN]> {
        self.change_secret(now);
        let mac1 = Macs::of(message)?.mac1;
        let mut reply = [0; COOKIE_REPLY_LEN];
        let (header, rest) = reply.split_at_mut(8);
        let (nonce, rest) = rest.split_at_mut(NONCE_LEN);
        let (sealed, tag) = rest.split_at_mut(MAC_LEN);
        header[..4].copy_from_slice(&COOKIE_REPLY_HEADER);
        // The receiver index is the sender index of the message.
        header[4..].copy_from_slice(message.get(4..8)?);
        rand::rng().fill_bytes(nonce);
        sealed.copy_from_slice(&cookie(&self.secrets[0], source));
        tag.copy_from_slice(
            &self.reply_cipher.encrypt_in_place_detached(XNonce::from_slice(nonce), mac1, sealed).ok()?,
        );
        Some(reply)
    }

    fn change_secret(&mut self, now: Instant) {
        let period = self.root.period(now);
        if period != self.period {
            self.secrets = self.root.secrets(period);
            self.period = period;
        }
    }
}

/// Computes the cookie of an address and port under a secret.
fn cookie(secret: &Mac, source: SocketAddr) -> Mac {
    let mut bytes = [0; 18];
    let len = match source.ip() {
        IpAddr::V4(address) => {
            bytes[..4].copy_from_slice(&address.octets());
            4
        }
        IpAddr::V6(address) => {
            bytes[..16].copy_from_slice(&address.octets());
            16
        }
    };
    bytes[len..len + 2].copy_from_slice(&source.port().to_be_bytes());
    mac::mac(secret, &bytes[..len + 2])
}

/// The side that has to show cookies: the state for the next handshake message to one peer.
#[derive(Debug, Default)]
pub(crate) struct CookieGenerator {
    /// Sender index and mac1 of the last handshake message.
    last: Option<(u32, Mac)>,
    cookie: Option<(Mac, Instant)>,
}

impl CookieGenerator {
    /// Writes the macs of a handshake message to `peer`.
    pub(crate) fn stamp(&mut self, message: &mut [u8], peer: &PublicKey, now: Instant) {
        self.cookie = self.cookie.filter(|(_, since)| now.duration_since(*since) < SECRET_LIFETIME);
        let index =
            message.get(4..).and_then(|rest| rest.first_chunk()).map(|index| u32::from_le_bytes(*index));
        let mac1 = mac::stamp(message, peer, self.cookie.as_ref().map(|(cookie, _)| cookie));
        self.last = index.zip(mac1);
    }

    /// Decrypts and keeps the cookie of a reply to the last message.
    ///
    /// # Errors
    /// The reply has the wrong length, answers another message, or is not authentic.
    pub(crate) fn take_reply(
        &mut self,
        reply: &[u8],
        peer: &PublicKey,
        now: Instant,
    ) -> Result<(), DropReason> {
        let reply: &[u8; COOKIE_REPLY_LEN] = reply.try_into().map_err(|_| DropReason::MalformedDatagram)?;
        let (index, rest) = reply[4..].split_at(4);
        let (nonce, rest) = rest.split_at(NONCE_LEN);
        let (sealed, tag) = rest.split_at(MAC_LEN);
        let (_, mac1) =
            self.last.filter(|(last, _)| last.to_le_bytes() == index).ok_or(DropReason::NoSession)?;
        let cipher = XChaCha20Poly1305::new(&mac::cookie_key(peer).into());
        let mut cookie = [0; MAC_LEN];
        cookie.copy_from_slice(sealed);
        cipher
            .decrypt_in_place_detached(XNonce::from_slice(nonce), &mac1, &mut cookie, tag.into())
            .map_err(|_| DropReason::InvalidTag)?;
        self.cookie = Some((cookie, now));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;

    fn initiation(own: &PublicKey, generator: &mut CookieGenerator, now: Instant) -> [u8; 148] {
        let mut message = [7; 148];
        generator.stamp(&mut message, own, now);
        message
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_cookie_proves_its_address_and_port() {
        let own = PrivateKey::generate().unwrap().public_key();
        let (mut checker, now) = (CookieChecker::new(&own, CookieRoot::unshared()), Instant::now());
        for source in ["192.0.2.1:51820", "[2001:db8::1]:51820"].map(address) {
            let mut generator = CookieGenerator::default();
            let first = initiation(&own, &mut generator, now);
            assert!(checker.has_valid_mac1(&first) && !checker.has_valid_mac2(&first, source, now));
            let reply = checker.reply(&first, source, now).unwrap();
            generator.take_reply(&reply, &own, now).unwrap();
            let second = initiation(&own, &mut generator, now);
            assert!(checker.has_valid_mac2(&second, source, now));
            let other_port = SocketAddr::new(source.ip(), source.port() + 1);
            for other in [other_port, address("198.51.100.1:51820"), address("[2001:db8::2]:51820")] {
                assert!(!checker.has_valid_mac2(&second, other, now), "{other}");
            }
            let mut forged = second;
            forged[10] ^= 1;
            assert!(!checker.has_valid_mac1(&forged) && !checker.has_valid_mac2(&forged, source, now));
        }
    }

    #[test]
    fn a_cookie_is_taken_for_two_to_four_minutes() {
        let own = PrivateKey::generate().unwrap().public_key();
        let (mut checker, start) = (CookieChecker::new(&own, CookieRoot::unshared()), Instant::now());
        let source = address("192.0.2.1:51820");
        let mut generator = CookieGenerator::default();
        let secs = |secs| start + Duration::from_secs(secs);
        let first = initiation(&own, &mut generator, start);
        // The lifetime of the secret starts with the first message, and ends right after this reply.
        assert!(!checker.has_valid_mac2(&[9; 148], source, start));
        let reply = checker.reply(&first, source, secs(119)).unwrap();
        generator.take_reply(&reply, &own, secs(119)).unwrap();
        let proven = initiation(&own, &mut generator, secs(119));
        for (at, is_taken) in [(119, true), (121, true), (238, true), (242, false)] {
            assert_eq!(checker.has_valid_mac2(&proven, source, secs(at)), is_taken, "{at} s");
        }
        assert_eq!(initiation(&own, &mut generator, secs(240))[132..], [0; 16], "its own time is over too");
    }

    #[test]
    fn a_secret_from_before_a_long_pause_is_gone() {
        let own = PrivateKey::generate().unwrap().public_key();
        let (mut checker, start) = (CookieChecker::new(&own, CookieRoot::unshared()), Instant::now());
        let source = address("192.0.2.1:51820");
        let mut generator = CookieGenerator::default();
        let first = initiation(&own, &mut generator, start);
        let reply = checker.reply(&first, source, start).unwrap();
        generator.take_reply(&reply, &own, start).unwrap();
        let proven = initiation(&own, &mut generator, start);
        assert!(!checker.has_valid_mac2(&proven, source, start + Duration::from_secs(241)));
    }

    #[test]
    fn checkers_with_one_root_take_each_others_cookies() {
        let own = PrivateKey::generate().unwrap().public_key();
        let (source, start) = (address("192.0.2.1:51820"), Instant::now());
        let root = CookieRoot::generate(start);
        let [mut one, mut other] = [(); 2].map(|()| CookieChecker::new(&own, root.clone()));
        let mut stranger = CookieChecker::new(&own, CookieRoot::generate(start));
        let secs = |secs| start + Duration::from_secs(secs);
        // Each checker has its first message at another time, which the lifetimes do not depend on.
        for made in [70, 400, 479] {
            let mut generator = CookieGenerator::default();
            let first = initiation(&own, &mut generator, secs(made));
            let reply = one.reply(&first, source, secs(made)).unwrap();
            generator.take_reply(&reply, &own, secs(made)).unwrap();
            let proven = initiation(&own, &mut generator, secs(made));
            assert!(other.has_valid_mac2(&proven, source, secs(made)));
            assert!(other.has_valid_mac2(&proven, source, secs(made + 120)));
            assert!(!other.has_valid_mac2(&proven, source, secs(made + 240)));
            assert!(!stranger.has_valid_mac2(&proven, source, secs(made)));
        }
    }

    #[test]
    fn a_root_does_not_show_its_key() {
        let root = CookieRoot::generate(Instant::now());
        let text = format!("{root:?}");
        assert!(text.starts_with("CookieRoot { origin: Some(") && text.ends_with(", .. }"), "{text}");
    }

    #[test]
    fn a_reply_is_taken_for_the_last_message_alone() {
        let own = PrivateKey::generate().unwrap().public_key();
        let (mut checker, now) = (CookieChecker::new(&own, CookieRoot::unshared()), Instant::now());
        let source = address("192.0.2.1:51820");
        let mut generator = CookieGenerator::default();
        let mut message = [1; 148];
        generator.stamp(&mut message, &own, now);
        let reply = checker.reply(&message, source, now).unwrap();
        let mut forged = reply;
        forged[40] ^= 1;
        assert_eq!(generator.take_reply(&forged, &own, now), Err(DropReason::InvalidTag));
        let mut next = [2; 148];
        generator.stamp(&mut next, &own, now);
        assert_eq!(generator.take_reply(&reply, &own, now), Err(DropReason::NoSession));
    }
}
