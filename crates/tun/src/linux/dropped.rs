//! What the kernel throws away before weft sees it.

/// Packets for the device that the kernel has thrown away because a ring was full; 0 where it does not tell (proc_pid_net(5)).
pub(super) fn tx_dropped(name: &str) -> u64 {
    /// Eight figures of what was received, and the fourth of what was sent.
    const DROPPED: usize = 8 + 3;
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let figures = devices.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    figures
        .unwrap_or_default()
        .split_whitespace()
        .nth(DROPPED)
        .and_then(|figure| figure.parse().ok())
        .unwrap_or_default()
}
