//! Everything that arrives at an interface, and a way to know that nothing more is on its way there.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use socket2::Socket;
use weft_lab::{Namespace, PATIENCE, packet_socket};

/// For local experiments (IEEE 802); no rule filters it.
const MARKER: u16 = 0x88b5;
const ETHERNET_HEADER: usize = 14;
/// linux/if_packet.h
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A socket for whole frames on one interface.
pub(crate) struct Port {
    socket: Socket,
    sent: u32,
}

impl Port {
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Self {
        let socket = namespace.run(|| packet_socket::open(interface, libc::ETH_P_ALL as u16)).unwrap();
        ignore_outgoing(&socket).unwrap();
        Self { socket, sent: 0 }
    }

    /// Sends a frame that is no IP packet, and tells which.
    fn send_marker(&mut self) -> u32 {
        self.sent += 1;
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1]);
        frame.extend(MARKER.to_be_bytes());
        frame.extend(self.sent.to_be_bytes());
        frame.resize(60, 0);
        assert_eq!(self.socket.send(&frame).unwrap(), frame.len());
        self.sent
    }

    /// The IP packets that arrived since the last time, up to a marker that `from` sends now: whatever was
    /// sent there before it has come.
    pub(crate) fn take(&mut self, from: &mut Self) -> BTreeSet<String> {
        let marker = from.send_marker();
        let mut seen = BTreeSet::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the marker does not arrive");
            let Some(frame) = self.receive(left) else { continue };
            let (header, packet) = frame.split_at(ETHERNET_HEADER);
            if header.ends_with(&MARKER.to_be_bytes()) {
                if packet.starts_with(&marker.to_be_bytes()) {
                    return seen;
                }
            } else {
                seen.extend(describe(packet));
            }
        }
    }

    /// Waits until a packet arrives that is described like this.
    pub(crate) fn wait_for(&self, description: &str) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{description} does not arrive");
            if let Some(frame) = self.receive(left) {
                let packet = &frame[ETHERNET_HEADER..];
                if describe(packet).as_deref() == Some(description) {
                    return packet.to_vec();
                }
            }
        }
    }

    fn receive(&self, patience: Duration) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(patience.max(Duration::from_millis(1)))).unwrap();
        let mut frame = vec![0; 1 << 16];
        let length = (&self.socket).read(&mut frame).ok()?;
        frame.truncate(length);
        (frame.len() > ETHERNET_HEADER).then_some(frame)
    }
}

fn ignore_outgoing(socket: &Socket) -> io::Result<()> {
    let one: libc::c_int = 1;
    let (value, len) = ((&raw const one).cast(), size_of_val(&one) as libc::socklen_t);
    // SAFETY: the number outlives the call and is as long as is said.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, value, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A line for an IP packet: its protocol, where it goes, and the port or the type.
pub(crate) fn describe(packet: &[u8]) -> Option<String> {
    let (protocol, destination, payload): (u8, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            let header = usize::from(packet[0] & 15) * 4;
            (packet[9], Ipv4Addr::from(address).into(), packet.get(header..)?)
        }
        6 => {
            let address: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            let (mut protocol, mut payload) = (packet[6], packet.get(40..)?);
            // Reports of listeners carry a router alert.
            if protocol == 0 {
                protocol = *payload.first()?;
                payload = payload.get((usize::from(*payload.get(1)?) + 1) * 8..)?;
            }
            (protocol, Ipv6Addr::from(address).into(), payload)
        }
        _ => return None,
    };
    let port = || Some(u16::from_be_bytes(payload.get(2..4)?.try_into().ok()?));
    Some(match protocol {
        1 => format!("icmp {destination} type {}", payload.first()?),
        6 => format!("tcp {destination} {}", port()?),
        17 => format!("udp {destination} {}", port()?),
        58 => format!("icmpv6 {destination} type {}", payload.first()?),
        other => format!("protocol {other} {destination}"),
    })
}
