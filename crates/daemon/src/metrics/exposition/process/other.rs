//! Everything but Linux.

use super::Process;

/// Always returns `None`: the values are not known.
pub(super) fn read() -> Option<Process> {
    None
}
