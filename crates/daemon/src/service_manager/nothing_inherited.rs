//! A platform without systemd: no descriptors are passed.

use std::convert::Infallible;

/// A descriptor, which cannot exist on this platform.
pub type Descriptor = Infallible;

/// A descriptor and its name, which cannot exist on this platform.
#[derive(Debug)]
pub struct Inherited {
    pub name: String,
    pub descriptor: Descriptor,
}

/// Always returns an empty list.
pub fn take(_: impl Fn(&str) -> bool) -> Vec<Inherited> {
    Vec::new()
}

/// Never called.
pub fn into_queue(descriptor: Descriptor) -> weft_tun::Descriptor {
    match descriptor {}
}

/// Never called.
pub fn into_socket(descriptor: Descriptor) -> weft_udp::Descriptor {
    match descriptor {}
}
