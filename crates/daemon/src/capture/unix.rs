//! Rights of a new file.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

/// Nobody but the owner may read or write a file that is made.
pub(super) fn for_the_owner(options: &mut OpenOptions) {
    options.mode(0o600);
}
