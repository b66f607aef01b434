//! The kernel's counters of a namespace: what was dropped outside of weft, and where.

use std::collections::BTreeMap;
use std::io;

use super::Namespace;

/// The counters of one interface, from the kernel's point of view: on a TUN, `tx` is what weft reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub rx_bytes: u64,
    /// Packets received; a super-packet counts once.
    pub rx_packets: u64,
    /// Packets received that were malformed.
    pub rx_errors: u64,
    /// Packets received and dropped.
    pub rx_dropped: u64,
    pub tx_bytes: u64,
    /// Packets transmitted; a super-packet counts once.
    pub tx_packets: u64,
    /// Packets that could not be transmitted.
    pub tx_errors: u64,
    /// Packets dropped instead of transmitted. On a TUN: its ring was full.
    pub tx_dropped: u64,
}

/// A snapshot of the counters of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By interface name.
    pub interfaces: BTreeMap<String, InterfaceCounters>,
    /// Protocol counters under the kernel's names: `UdpRcvbufErrors`, `TcpRetransSegs`, `Udp6InErrors`,
    /// `TcpExtTCPOFOQueue`, …
    protocols: BTreeMap<String, u64>,
}

impl Counters {
    /// Reads the counters of a namespace.
    pub fn read(namespace: &Namespace) -> io::Result<Self> {
        // `/proc/net` shows the namespace of the process's main thread, not that of the calling thread.
        let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let (dev, snmp, snmp6, netstat) = namespace
            .run(|| io::Result::Ok((read("dev")?, read("snmp")?, read("snmp6"), read("netstat")?)))?;
        let mut protocols = parse_tables(&snmp);
        protocols.extend(parse_tables(&netstat));
        // Absent where IPv6 is disabled.
        protocols.extend(parse_lines(&snmp6.unwrap_or_default()));
        Ok(Self { interfaces: parse_interfaces(&dev), protocols })
    }

    /// Returns the difference to `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let interface = |(name, now): (&String, &InterfaceCounters)| {
            let then = earlier.interface(name);
            let difference = InterfaceCounters {
                rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
                rx_packets: now.rx_packets.saturating_sub(then.rx_packets),
                rx_errors: now.rx_errors.saturating_sub(then.rx_errors),
                rx_dropped: now.rx_dropped.saturating_sub(then.rx_dropped),
                tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
                tx_packets: now.tx_packets.saturating_sub(then.tx_packets),
                tx_errors: now.tx_errors.saturating_sub(then.tx_errors),
                tx_dropped: now.tx_dropped.saturating_sub(then.tx_dropped),
            };
            (name.clone(), difference)
        };
        Self {
            interfaces: self.interfaces.iter().map(interface).collect(),
            protocols: self
                .protocols
                .iter()
                .map(|(name, now)| (name.clone(), now.saturating_sub(earlier.protocol(name))))
                .collect(),
        }
    }

    /// Returns the counters of an interface; zeros if there is no interface of this name.
    pub fn interface(&self, name: &str) -> InterfaceCounters {
        self.interfaces.get(name).copied().unwrap_or_default()
    }

    /// Returns a protocol counter, for example `UdpRcvbufErrors`; zero if the kernel has no counter of this
    /// name.
    pub fn protocol(&self, name: &str) -> u64 {
        self.protocols.get(name).copied().unwrap_or(0)
    }

    /// Returns the number of datagrams dropped because the receiving socket's buffer was full, IPv4 and IPv6.
    pub fn udp_receive_buffer_full(&self) -> u64 {
        self.protocol("UdpRcvbufErrors") + self.protocol("Udp6RcvbufErrors")
    }

    /// Returns the number of datagrams dropped because the sending socket's buffer or the interface's queue
    /// was full, IPv4 and IPv6.
    pub fn udp_send_buffer_full(&self) -> u64 {
        self.protocol("UdpSndbufErrors") + self.protocol("Udp6SndbufErrors")
    }

    /// Returns the number of retransmitted TCP segments, IPv4 and IPv6.
    pub fn tcp_retransmits(&self) -> u64 {
        self.protocol("TcpRetransSegs")
    }

    /// Returns the number of TCP segments that arrived out of order: after a loss, or reordered.
    pub fn tcp_out_of_order(&self) -> u64 {
        self.protocol("TcpExtTCPOFOQueue")
    }
}

/// Parses `/proc/net/dev`: two lines of headings, then `name: 8 receive counters, 8 transmit counters`.
fn parse_interfaces(text: &str) -> BTreeMap<String, InterfaceCounters> {
    text.lines()
        .filter_map(|line| {
            let (name, counters) = line.split_once(':')?;
            let n: Vec<u64> = counters.split_whitespace().map_while(|word| word.parse().ok()).collect();
            let [
                rx_bytes,
                rx_packets,
                rx_errors,
                rx_dropped,
                _,
                _,
                _,
                _,
                tx_bytes,
                tx_packets,
                tx_errors,
                tx_dropped,
                ..,
            ] = n[..]
            else {
                return None;
            };
            let counters = InterfaceCounters {
                rx_bytes,
                rx_packets,
                rx_errors,
                rx_dropped,
                tx_bytes,
                tx_packets,
                tx_errors,
                tx_dropped,
            };
            Some((name.trim().to_owned(), counters))
        })
        .collect()
}

/// Parses `/proc/net/snmp` or `/proc/net/netstat`: pairs of lines, `Udp: names` and `Udp: values`.
fn parse_tables(text: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((protocol, names)), Some((_, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            // `TcpMaxConn` is -1 where there is no limit, and does not parse as `u64`.
            if let Ok(value) = value.parse() {
                counters.insert(format!("{protocol}{name}"), value);
            }
        }
    }
    counters
}

/// Parses `/proc/net/snmp6`: one name and value per line.
fn parse_lines(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(char::is_whitespace)?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read_by_name() {
        let dev = "Inter-|   Receive                        |  Transmit\n \
                   face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo\n \
                   weft0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n    lo:10 20 0 0 0 0 0 0 10 20 0 0 0 0 0 0\n";
        let interfaces = parse_interfaces(dev);
        assert_eq!(interfaces.len(), 2);
        assert_eq!((interfaces["weft0"].tx_dropped, interfaces["lo"].rx_packets), (8, 20));

        let tables = parse_tables("Tcp: MaxConn RetransSegs\nTcp: -1 17\nUdp: RcvbufErrors\nUdp: 4\n");
        assert_eq!((tables["TcpRetransSegs"], tables["UdpRcvbufErrors"], tables.len()), (17, 4, 2));
        assert_eq!(parse_lines("Udp6RcvbufErrors                \t9\n")["Udp6RcvbufErrors"], 9);
    }

    #[test]
    fn a_difference_counts_from_the_earlier_reading() {
        let reading = |dropped, retransmits| Counters {
            interfaces: [(
                "weft0".to_owned(),
                InterfaceCounters { tx_dropped: dropped, ..InterfaceCounters::default() },
            )]
            .into(),
            protocols: [("TcpRetransSegs".to_owned(), retransmits)].into(),
        };
        let difference = reading(7, 30).since(&reading(5, 10));
        assert_eq!((difference.interface("weft0").tx_dropped, difference.tcp_retransmits()), (2, 20));
        assert_eq!(difference.interface("other"), InterfaceCounters::default());
    }
}
