//! A platform without systemd: no sockets are passed.

use super::Listener;

impl Listener {
    /// Always returns `None`.
    pub fn inherited() -> Option<Self> {
        None
    }
}
