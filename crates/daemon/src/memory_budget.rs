//! How much memory weft may let wait, taken from what the machine has.

use weft_udp::{MAX_RECEIVE_BUFFER_BYTES, RECEIVING_SOCKETS};

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

/// The share of the memory that may wait in the kernel in all receiving sockets together.
const RECEIVE_SHARE: u64 = 8;
/// Linux gives a socket that asks for nothing about as much.
const MIN_RECEIVE: u64 = 256 << 10;

/// Bytes that may wait in each of the receiving sockets, between 256 KiB and 7 MiB. All of them full, those of both address
/// families and as the kernel counts (with twice as much for its own bookkeeping), take an eighth of the memory that the
/// process may have, if that is 128 MiB or more. All UDP sockets of the machine may have three sixteenths together (udp_mem
/// of udp(7)): other programs have some too.
pub(crate) fn receive_buffer_bytes() -> usize {
    receive_share_of(platform::total_bytes())
}

fn receive_share_of(total: Option<u64>) -> usize {
    let bytes = total
        .map_or(MAX_RECEIVE_BUFFER_BYTES, |total| total / (2 * RECEIVE_SHARE * RECEIVING_SOCKETS as u64));
    usize::try_from(bytes.clamp(MIN_RECEIVE, MAX_RECEIVE_BUFFER_BYTES)).unwrap_or(usize::MAX)
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

    #[test]
    fn full_sockets_take_an_eighth_of_the_memory() {
        assert_eq!(receive_share_of(None), 7 << 20);
        assert_eq!(receive_share_of(Some(64 << 20)), 256 << 10);
        assert_eq!(receive_share_of(Some(544 << 20)), 1 << 20);
        assert_eq!(receive_share_of(Some(4 << 30)), 7 << 20);
        // 17 sockets of IPv4 and 17 of IPv6, and as much again for the kernel's bookkeeping.
        assert_eq!(34 * 2 * receive_share_of(Some(544 << 20)), (544 << 20) / 8);
    }
}
