//! Names of interfaces and their numbers, from the system.

use nix::net::if_::{if_indextoname, if_nametoindex};

/// The name of the interface with this number.
pub(super) fn name_of(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok().filter(|name| !name.is_empty())
}

/// The number of the interface with this name.
pub(super) fn index_of(name: &str) -> Option<u32> {
    if_nametoindex(name).ok()
}
