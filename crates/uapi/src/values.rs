//! Parses the values of single keys, from the bytes of a line, and formats keys.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::IpNet;
use weft_config::device::AllowedIpChange;
use weft_config::mapped;
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// The expected form of a value, for messages like `line 2: fwmark is not …`.
pub(crate) type Expected = &'static str;

const KEY: Expected = "64 hexadecimal digits";

fn is_zero(key: &[u8; 32]) -> bool {
    // In constant time, over all bytes: the time tells nothing about a key.
    key.iter().fold(0, |all, byte| all | byte) == 0
}

/// Parses a private key; all zeros mean none.
pub(crate) fn private_key(value: &[u8]) -> Result<Option<PrivateKey>, Expected> {
    let mut none = false;
    let fill = |key: &mut [u8; 32]| {
        let decoded = hex::decode_to_slice(value, key);
        none = is_zero(key);
        decoded
    };
    let key = PrivateKey::from_fill(fill).map_err(|_| KEY)?;
    Ok((!none).then_some(key))
}

/// Parses a preshared key; all zeros mean none.
pub(crate) fn preshared_key(value: &[u8]) -> Result<Option<PresharedKey>, Expected> {
    let key = PresharedKey::from_fill(|key| hex::decode_to_slice(value, key)).map_err(|_| KEY)?;
    Ok((!is_zero(key.as_bytes())).then_some(key))
}

pub(crate) fn public_key(value: &[u8]) -> Result<PublicKey, Expected> {
    let mut key = [0; 32];
    hex::decode_to_slice(value, &mut key).map_err(|_| KEY)?;
    Ok(PublicKey::from_bytes(key))
}

pub(crate) fn listen_port(value: &[u8]) -> Result<u16, Expected> {
    number(value).ok_or("a decimal number up to 65535")
}

pub(crate) fn fw_mark(value: &[u8]) -> Result<u32, Expected> {
    number(value).ok_or("a decimal number up to 4294967295")
}

/// Parses seconds; 0 means off.
pub(crate) fn persistent_keepalive(value: &[u8]) -> Result<Option<NonZeroU16>, Expected> {
    number(value).map(NonZeroU16::new).ok_or("a decimal number of seconds up to 65535")
}

pub(crate) fn truth(value: &[u8]) -> Result<bool, Expected> {
    if value == b"true" { Ok(true) } else { Err("`true`") }
}

/// Parses a number of decimal digits only.
fn number<T: FromStr>(value: &[u8]) -> Option<T> {
    // `parse` accepts a sign.
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Parses an allowed-ip. Host bits are cleared: they have no meaning.
pub(crate) fn allowed_ip(value: &[u8]) -> Result<AllowedIpChange, Expected> {
    allowed_ip_change(value).ok_or("an address and a prefix length, like 10.0.0.0/8 or -10.0.0.0/8")
}

fn allowed_ip_change(value: &[u8]) -> Option<AllowedIpChange> {
    let text = std::str::from_utf8(value).ok()?;
    let (text, change): (_, fn(IpNet) -> _) = match text.strip_prefix('-') {
        Some(text) => (text, AllowedIpChange::Remove),
        None => (text, AllowedIpChange::Add),
    };
    let (address, length) = text.split_once('/')?;
    if length.len() > 1 && length.starts_with('0') {
        return None;
    }
    let address: IpAddr = address.parse().ok()?;
    let net = IpNet::new(address, number(length.as_bytes())?).ok()?;
    Some(change(net.trunc()))
}

/// Parses an endpoint. An IPv4-mapped IPv6 address becomes IPv4: no socket could send to it otherwise.
pub(crate) fn endpoint(value: &[u8], scope_of: fn(&str) -> Option<u32>) -> Result<SocketAddr, Expected> {
    const EXPECTED: Expected = "an address and a port, like 192.0.2.1:51820 or [2001:db8::1]:51820";
    let text = std::str::from_utf8(value).map_err(|_| EXPECTED)?;
    let endpoint = text.parse().ok().or_else(|| scoped(text, scope_of)).ok_or(EXPECTED)?;
    Ok(mapped::endpoint(endpoint))
}

/// Parses an endpoint with a scope, such as `[fe80::1%eth0]:51820`, as getnameinfo(3) writes it.
fn scoped(text: &str, scope_of: fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let (host, port) = text.strip_prefix('[')?.split_once("]:")?;
    let (address, scope) = host.split_once('%')?;
    let scope = scope_of(scope)?;
    Some(SocketAddrV6::new(address.parse().ok()?, number(port.as_bytes())?, 0, scope).into())
}

/// Formats the bytes of a key in lower-case hexadecimal digits; all zeros mean none.
pub(crate) fn hex(key: Option<&[u8; 32]>) -> Zeroizing<String> {
    let mut digits = Zeroizing::new(String::with_capacity(64));
    for byte in key.unwrap_or(&[0; 32]) {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}
