//! How much memory weft may let wait, taken from what the machine has.

#[cfg_attr(target_os = "linux", path = "memory_budget/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "memory_budget/unknown.rs")]
mod platform;

/// The share of the available memory that packets without a session may take.
const STAGING_SHARE: u64 = 64;
const MIN_STAGING: u64 = 2 << 20;
const MAX_STAGING: u64 = 128 << 20;

/// Bytes that may wait for sessions, all peers together: a sixty-fourth of what is available to the process,
/// between 2 and 128 MiB.
pub(crate) fn staging_bytes() -> usize {
    share_of(platform::available_bytes())
}

fn share_of(available: Option<u64>) -> usize {
    let bytes = available.map_or(MIN_STAGING, |bytes| bytes / STAGING_SHARE);
    usize::try_from(bytes.clamp(MIN_STAGING, MAX_STAGING)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_share_within_bounds() {
        assert_eq!(share_of(None), 2 << 20);
        assert_eq!(share_of(Some(1 << 20)), 2 << 20);
        assert_eq!(share_of(Some(1 << 30)), 16 << 20);
        assert_eq!(share_of(Some(1 << 40)), 128 << 20);
    }
}
