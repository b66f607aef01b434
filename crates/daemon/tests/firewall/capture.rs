//! Everything that arrives at an interface, and a way to know that nothing more is on its way there.

use std::collections::BTreeSet;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use weft_lab::{Namespace, PATIENCE};

/// For local experiments (IEEE 802); nobody filters it.
const MARKER: u16 = 0x88b5;
const ETHERNET_HEADER: usize = 14;
/// linux/if_packet.h
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A socket for whole frames on one interface.
pub(crate) struct Port {
    socket: OwnedFd,
    sent: u32,
}

impl Port {
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Self {
        let socket = namespace.run(|| open(interface)).unwrap();
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
        // SAFETY: the buffer is as long as is said.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(usize::try_from(sent).ok(), Some(frame.len()), "{}", io::Error::last_os_error());
        self.sent
    }

    /// The IP packets that arrived since the last time, up to a marker that `from` sends now: whatever was sent
    /// there before it has come.
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
        let milliseconds = libc::c_int::try_from(patience.as_millis().max(1)).unwrap();
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        if unsafe { libc::poll(&raw mut poll, 1, milliseconds) } < 1 {
            return None;
        }
        let mut frame = vec![0; 1 << 16];
        // SAFETY: the buffer is as long as is said.
        let length =
            unsafe { libc::recv(self.socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(length).ok()?);
        (frame.len() > ETHERNET_HEADER).then_some(frame)
    }
}

fn open(interface: &str) -> io::Result<OwnedFd> {
    let ok = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no memory is involved; the descriptor is new and nobody else's.
    let socket = unsafe {
        OwnedFd::from_raw_fd(ok(libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::c_int::from(all),
        ))?)
    };
    // SAFETY: an address of all zeroes is a valid one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = i32::try_from(nix::net::if_::if_nametoindex(interface)?).unwrap();
    let one: libc::c_int = 1;
    // SAFETY: both structures outlive the calls and are as long as is said.
    unsafe {
        ok(libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        ))?;
        ok(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_IGNORE_OUTGOING,
            (&raw const one).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        ))?;
    }
    Ok(socket)
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
