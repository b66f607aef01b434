//! Systems where a thread cannot give up what its process may do.

use super::{Role, Support, Thread};

pub(crate) fn support() -> Support {
    Support::default()
}

pub(crate) fn enable() {}

pub(crate) fn thread(_: Role) {}

pub(crate) fn threads() -> Vec<Thread> {
    Vec::new()
}
