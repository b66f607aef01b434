//! What the kernel counts for a device, in the network namespace of the calling thread.

/// In proc_net(5): the bytes, packets, errors and drops of what came in, four more counters, and the same of what went
/// out.
const TRANSMIT_DROPS: usize = 8 + 3;

/// Packets that the kernel threw away because the queue of the TUN was full; a super-packet counts once. 0 if there is
/// no such device here, as after it moved to another namespace.
pub(super) fn queue_overflows(interface: &str) -> u64 {
    // Below /proc/self they are those of the process's first thread.
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    transmit_drops(&text, interface).unwrap_or_default()
}

fn transmit_drops(text: &str, interface: &str) -> Option<u64> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, counters) = lines.into_iter().find(|(name, _)| name.trim() == interface)?;
    counters.split_whitespace().nth(TRANSMIT_DROPS)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drops_are_those_of_this_device_on_its_way_out() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     1       2    3    4    5     6          7         8        9      10   11   12   13    14      15         16
   wg0:     1       2    3    4    5     6          7         8        9      10   11   17   13    14      15         16
";
        assert_eq!(transmit_drops(text, "wg0"), Some(17));
        assert_eq!(transmit_drops(text, "lo"), Some(12));
        assert_eq!(transmit_drops(text, "g0"), None);
    }
}
