//! Interface names and indices, from the system.

use nix::net::if_::{if_indextoname, if_nametoindex};

/// Returns the name of the interface with this index.
pub(super) fn name_of(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok().filter(|name| !name.is_empty())
}

/// Returns the index of the interface with this name.
pub(super) fn index_of(name: &str) -> Option<u32> {
    if_nametoindex(name).ok()
}
