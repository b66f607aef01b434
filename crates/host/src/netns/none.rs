//! There is one network for all processes, as far as weft is concerned.

use serde::{Deserialize, Serialize};

/// A network namespace, of which this system has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkNamespace {}

impl NetworkNamespace {
    pub(crate) fn ours() -> Option<Self> {
        None
    }

    pub(crate) fn is_another_than(&self, _: &Self) -> bool {
        false
    }

    pub(crate) fn exists(&self) -> bool {
        true
    }

    pub(crate) fn id(&self) -> u64 {
        0
    }
}

/// Returns false.
pub(crate) fn is_elsewhere(_: u32) -> bool {
    false
}

/// Returns true, so that nothing is refused.
pub fn has_device(_: &str) -> bool {
    true
}
