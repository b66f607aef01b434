//! Parsers for single values of a configuration, for commands that take them one by one.

use std::num::NonZeroU16;

use ipnet::IpNet;
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

use super::problem::{Notice, Problem};
use super::{Endpoint, values};

/// Parses the value of PrivateKey.
pub fn private_key(text: &str) -> Result<PrivateKey, Problem> {
    values::private_key(text)
}

/// Parses the value of PublicKey.
pub fn public_key(text: &str) -> Result<PublicKey, Problem> {
    values::public_key(text)
}

/// Parses the value of PresharedKey; `None` if all of the key is zero.
pub fn preshared_key(text: &str) -> Result<Option<PresharedKey>, Problem> {
    values::preshared_key(text)
}

/// Parses the value of ListenPort; 0: the system chooses it.
pub fn listen_port(text: &str) -> Result<u16, Problem> {
    values::listen_port(text)
}

/// Parses the value of FwMark; 0: none.
pub fn fw_mark(text: &str) -> Result<u32, Problem> {
    values::fw_mark(text)
}

/// Parses the value of PersistentKeepalive, in seconds; `None`: off.
pub fn persistent_keepalive(text: &str) -> Result<Option<NonZeroU16>, Problem> {
    values::persistent_keepalive(text)
}

/// Parses the value of Endpoint.
pub fn endpoint(text: &str) -> Result<Endpoint, Problem> {
    values::endpoint(text)
}

/// Returns a warning if the endpoint was written as an IPv6 address without brackets.
pub fn unbracketed(text: &str, endpoint: &Endpoint) -> Option<Notice> {
    values::unbracketed(text, endpoint)
}

/// Parses one item of AllowedIPs; host bits are kept.
pub fn allowed_ip(text: &str) -> Result<IpNet, Problem> {
    values::allowed_ip(text)
}
