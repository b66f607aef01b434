//! Counts packets that the kernel drops before weft reads them.

use std::path::Path;

/// Returns the number of packets for the device that the kernel dropped because a ring was full
/// (proc_pid_net(5)); 0 if it cannot be read. `proc_net` is the directory of the device's namespace.
pub(super) fn tx_dropped(name: &str, proc_net: &Path) -> u64 {
    /// Index of the column: eight columns of received packets, then the fourth column of sent packets.
    const DROPPED: usize = 8 + 3;
    let devices = std::fs::read_to_string(proc_net.join("dev")).unwrap_or_default();
    let figures = devices.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    figures
        .unwrap_or_default()
        .split_whitespace()
        .nth(DROPPED)
        .and_then(|figure| figure.parse().ok())
        .unwrap_or_default()
}
