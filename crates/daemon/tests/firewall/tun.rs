//! A TUN that stands for the tunnel: what it takes is what would have been encrypted.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use weft_lab::{Namespace, link, wait_until};

use crate::capture::describe;

/// linux/if_tun.h
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const IFF_TUN_NO_PI: i16 = 0x1001;

pub(crate) struct Tun(File);

impl Tun {
    /// Makes the device with these addresses. It goes when this is dropped.
    pub(crate) fn make(namespace: &Namespace, name: &str, addresses: &[&str]) -> Self {
        let file = namespace.run(|| {
            let options = libc::O_NONBLOCK;
            let file =
                OpenOptions::new().read(true).write(true).custom_flags(options).open("/dev/net/tun").unwrap();
            // struct ifreq: the name, then the flags.
            let mut request = [0_u8; 40];
            request[..name.len()].copy_from_slice(name.as_bytes());
            request[16..18].copy_from_slice(&IFF_TUN_NO_PI.to_ne_bytes());
            // SAFETY: the request is as long as the kernel's structure and outlives the call.
            let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            file
        });
        link::set_up(namespace, name).unwrap();
        for address in addresses {
            link::add_address(namespace, name, address.parse().unwrap()).unwrap();
        }
        Self(file)
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 1 << 16];
        match (&self.0).read(&mut packet) {
            Ok(length) => {
                packet.truncate(length);
                Some(packet)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("the TUN cannot be read: {error}"),
        }
    }

    /// What went into the tunnel since the last time.
    pub(crate) fn take(&self) -> BTreeSet<String> {
        std::iter::from_fn(|| self.read()).filter_map(|packet| describe(&packet)).collect()
    }

    /// Waits for a packet that is described like this.
    pub(crate) fn wait_for(&self, description: &str) -> Vec<u8> {
        wait_until(description, || {
            std::iter::from_fn(|| self.read()).find(|packet| describe(packet).as_deref() == Some(description))
        })
    }

    /// Lets a packet come out of the tunnel.
    pub(crate) fn write(&self, packet: &[u8]) {
        assert_eq!((&self.0).write(packet).unwrap(), packet.len());
    }

    /// Lets a UDP datagram come out of the tunnel.
    pub(crate) fn write_udp(&self, from: SocketAddrV4, to: SocketAddrV4) {
        let mut payload = Vec::new();
        payload.extend(from.port().to_be_bytes());
        payload.extend(to.port().to_be_bytes());
        // The length; no checksum is one as well (RFC 768).
        payload.extend(8_u16.to_be_bytes());
        payload.extend([0, 0]);
        self.write(&ipv4(17, *from.ip(), *to.ip(), &payload));
    }
}

/// An IPv4 packet.
pub(crate) fn ipv4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// The Internet checksum (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
