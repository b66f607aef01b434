//! Counters of the kernel's TCP.

use crate::sample::TcpEvents;

/// Reads the counters of this network namespace. Those that the kernel does not have are 0.
pub(crate) fn read() -> TcpEvents {
    parse(&std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default())
}

/// Parses the lines `TcpExt: NAMES` and `TcpExt: VALUES`.
fn parse(netstat: &str) -> TcpEvents {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut events = TcpEvents::default();
    for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
        let counter = match name {
            "TCPHystartTrainDetect" | "TCPHystartDelayDetect" => &mut events.hystart_exits,
            "TCPSackRecovery" => &mut events.sack_recoveries,
            "TCPLossProbes" => &mut events.tail_probes,
            "TCPDSACKRecv" | "TCPDSACKOfoRecv" => &mut events.spurious_retransmits,
            _ => continue,
        };
        *counter += value.parse::<u64>().unwrap_or_default();
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let netstat = "TcpExt: A TCPSackRecovery TCPLossProbes TCPDSACKRecv TCPDSACKOfoRecv TCPHystartDelayDetect\n\
                       TcpExt: 1 2 3 4 5 6\nIpExt: InNoRoutes\nIpExt: 7\n";
        let events =
            TcpEvents { hystart_exits: 6, sack_recoveries: 2, tail_probes: 3, spurious_retransmits: 9 };
        assert_eq!(parse(netstat), events);
        assert_eq!(parse(""), TcpEvents::default());
        let here = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
        assert!(here.contains("TCPSackRecovery") && here.contains("TCPDSACKRecv"), "{here}");
    }
}
