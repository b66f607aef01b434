//! What the kernel counts for a device.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The column in proc_net(5): eight columns of received traffic (bytes, packets, errors, drops and four
/// more), then the same columns of sent traffic, of which drops is the fourth.
const TRANSMIT_DROPS: usize = 8 + 3;

/// Returns the number of packets that the kernel dropped because a queue of the TUN was full; a super-packet
/// counts once. Returns 0 if the namespace of `proc_net` has no such device, as after the device moved to
/// another namespace.
pub(super) fn queue_overflows(proc_net: &Path, interface: &str) -> u64 {
    let text = std::fs::read_to_string(proc_net.join("dev")).unwrap_or_default();
    transmit_drops(&text, interface).unwrap_or_default()
}

/// Returns the number of packets that weft wrote into the far end of a veth pair and the kernel did not
/// deliver: the near end is down, its MTU is smaller, or the queue of the CPU is full.
pub(super) fn far_end_drops(counters: &File) -> u64 {
    let mut text = [0; 4096];
    let len = counters.read_at(&mut text, 0).unwrap_or_default();
    transmit_drops(&String::from_utf8_lossy(&text[..len]), weft_rootless::FAR_END).unwrap_or_default()
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
