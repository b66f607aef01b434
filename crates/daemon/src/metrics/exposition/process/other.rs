//! Everything but Linux.

use super::Process;

/// Nothing is known.
pub(super) fn read() -> Option<Process> {
    None
}
