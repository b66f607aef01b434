//! Properties that hold for any bytes, one function for each part of weft that reads bytes from others.
//!
//! Each function takes the bytes that cargo-fuzz searches with (`fuzz/`), and panics if a property does not
//! hold. The test `corpora` replays the inputs that the searches kept, and those that once found a fault.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a property that cannot be checked does not hold")]

mod aead;
mod by_the_book;
mod capture;
mod config;
mod control;
mod datagrams;
mod dns;
mod flows;
mod http;
mod input;
pub mod memory;
mod netlink;
mod proxy;
mod queues;
mod resolved;
mod segments;
mod speedtest;
mod stand_in;
mod uapi;

/// A property of any bytes: a name, and the function that panics if it does not hold.
pub type Target = (&'static str, fn(&[u8]));

/// The properties. `corpus/NAME` has their inputs, `fuzz/fuzz_targets/NAME.rs` searches for more.
pub const TARGETS: &[Target] = &[
    ("aead", aead::check),
    ("datagrams", datagrams::check),
    ("segments", segments::check),
    ("flows", flows::check),
    ("queues", queues::check),
    ("uapi", uapi::check),
    ("config", config::check),
    ("control", control::check),
    ("http", http::check),
    ("capture", capture::check),
    ("socks5", proxy::check_socks5),
    ("http_proxy", proxy::check_http),
    ("speedtest", speedtest::check),
    ("dns", dns::check),
    ("netlink", netlink::check),
    ("resolved", resolved::check),
];

/// Checks one property.
///
/// # Panics
/// If it does not hold, or there is none of this name.
pub fn check(name: &str, bytes: &[u8]) {
    let (_, check) = TARGETS.iter().find(|target| target.0 == name).unwrap();
    check(bytes);
}
