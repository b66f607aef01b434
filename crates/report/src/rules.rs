//! Rules that `weft status` applies to a running interface and `weft doctor` to a machine.

use weft_tunnel::REJECT_AFTER_TIME;

use crate::finding::{Finding, Level};

/// The age in milliseconds from which the last handshake of a peer belongs to no session.
pub const SESSION_MS: u64 = REJECT_AFTER_TIME.as_secs() * 1000;
/// Bytes of a socket buffer below which a burst of a fast link does not fit.
const SMALL_BUFFER: u64 = 1 << 20;
/// 2025-01-01 in milliseconds since 1970: weft did not exist before.
const BEFORE_WEFT_MS: u64 = 1_735_689_600_000;

/// Judges a socket buffer of `bytes` where `wanted` were asked for; `None` if its size is unknown (0).
pub fn buffer_level(bytes: u64, wanted: u64) -> Option<Level> {
    match bytes {
        0 => None,
        _ if bytes >= wanted => Some(Level::Ok),
        1..SMALL_BUFFER => Some(Level::Warning),
        _ => Some(Level::Note),
    }
}

/// Returns a finding if a wall clock, in milliseconds since 1970, is certainly wrong.
pub fn wrong_clock(code: &'static str, unix_ms: u64) -> Option<Finding> {
    let says = "the clock shows a date before 2025: peers reject handshakes that are older than the last they received";
    (unix_ms < BEFORE_WEFT_MS)
        .then(|| Finding::new(code, Level::Problem, says).advise("timedatectl set-ntp true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_judged_by_what_was_asked_for() {
        assert_eq!(buffer_level(0, 7 << 20), None);
        assert_eq!(buffer_level(212_992, 7 << 20), Some(Level::Warning));
        assert_eq!(buffer_level(4 << 20, 7 << 20), Some(Level::Note));
        assert_eq!(buffer_level(7 << 20, 7 << 20), Some(Level::Ok));
        // A machine with little memory asks for little.
        assert_eq!(buffer_level(256 << 10, 256 << 10), Some(Level::Ok));
    }

    #[test]
    fn a_clock_of_the_last_century_is_wrong() {
        assert!(wrong_clock("clock", 0).is_some() && wrong_clock("clock", 1_800_000_000_000).is_none());
    }
}
