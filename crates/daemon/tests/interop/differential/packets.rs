//! The same inner packets through weft and through wireguard-go, to and from two peers: the same arrive.
//!
//! ```text
//!   weft or wireguard-go :51820  192.0.2.1 ───────── 192.0.2.2  wireguard-go :51821
//!                                                               wireguard-go :51822
//! ```
//!
//! Packets are put on the interfaces as they are, past the kernel's checks, and taken from them as the
//! daemons wrote them. The interfaces have no addresses, so that the kernel has nothing to say there.

use std::collections::HashSet;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use socket2::Socket;
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, PATIENCE, packet_socket};
use weft_tunnel::PrivateKey;

use super::{Random, V4, V6, WEFT, can_compare, is_kernel, seeds};
use crate::wireguard_go::{WireguardGo, program};

/// Above that of the link, so that datagrams go in fragments.
const MTU: u32 = 4000;
/// The interface in the middle, and its peers.
const ENDS: usize = 3;
const PACKETS: usize = 40;
/// After how many markers what has not arrived is lost.
const ROUNDS: usize = 50;
pub(super) const PORT: u16 = 51820;

pub(super) fn key(end: usize) -> PrivateKey {
    PrivateKey::from_bytes([end as u8 + 1; 32])
}

/// An address that no packet but a marker has.
fn marker_address(end: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 255, end as u8 + 1)
}

struct End {
    program: WireguardGo,
    socket: Socket,
}

/// A daemon between two peers.
pub(super) struct World {
    /// The namespace of the peers.
    pub(super) peers: Namespace,
    ends: Vec<End>,
    marker: u32,
}

/// What arrived at an end.
pub(super) type Arrived = Vec<(usize, Vec<u8>)>;

impl World {
    pub(super) fn start(program_in_the_middle: &str) -> Self {
        let namespaces = ["middle", "peers"].map(|name| Namespace::new(name).unwrap());
        let options = LinkOptions {
            addresses_a: vec!["192.0.2.1/24".parse().unwrap()],
            addresses_b: vec!["192.0.2.2/24".parse().unwrap()],
            ..LinkOptions::default()
        };
        let [middle, peers] = &namespaces;
        link::join_in_order(middle, peers, &options).unwrap();
        let ends = (0..ENDS).map(|number| {
            let namespace = if number == 0 { middle } else { peers };
            namespace.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
            let program = if number == 0 { program_in_the_middle } else { &program() };
            let program = WireguardGo::start_program(program, namespace);
            link::set_mtu(namespace, program.name(), MTU).unwrap();
            let open = || packet_socket::open(program.name(), libc::ETH_P_ALL as u16);
            let socket = namespace.run(open).unwrap();
            End { program, socket }
        });
        let mut world = Self { ends: ends.collect(), marker: 0, peers: peers.clone() };
        for number in 0..ENDS {
            let mut arguments = vec!["listen-port".to_owned(), (PORT + number as u16).to_string()];
            for peer in (0..ENDS).filter(|peer| (*peer == 0) != (number == 0)) {
                let host = if peer == 0 { 1 } else { 2 };
                let endpoint = format!("192.0.2.{host}:{}", PORT + peer as u16);
                let allowed = if number == 0 {
                    format!("{}/32", marker_address(peer))
                } else {
                    "0.0.0.0/0,::/0".to_owned()
                };
                let key = key(peer).public_key().to_string();
                arguments.extend(
                    ["peer", &key, "endpoint", &endpoint, "allowed-ips", &allowed].map(str::to_owned),
                );
            }
            world.ends[number].program.set_private_key(&key(number));
            world.set(number, &arguments);
        }
        world
    }

    /// `wg set` with these arguments.
    pub(super) fn set(&mut self, end: usize, arguments: &[String]) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.ends[end].program.set(&arguments);
    }

    /// Sends packets from their ends, and returns what arrives anywhere, in order of the ends.
    fn exchange(&mut self, packets: &[(usize, Vec<u8>)], expected: &Arrived) -> Arrived {
        // There are sessions, and nothing is left of what was before.
        self.arrive();
        for (from, packet) in packets {
            let sent = self.ends[*from].socket.send(packet);
            // The kernel's WireGuard tells the sender at once that it does not take a packet.
            assert!(sent.is_ok() || is_kernel(), "{sent:?}");
        }
        let mut arrived = Arrived::new();
        // A marker may overtake packets of other flows. What is expected is waited for.
        for round in 0..ROUNDS {
            arrived.extend(self.arrive());
            if round >= 3 && expected.iter().all(|packet| arrived.contains(packet)) {
                break;
            }
        }
        arrived.retain(|(end, packet)| !(*end == 0 && is_unreachable(packet)));
        arrived.sort();
        arrived
    }

    /// Waits for markers on all ways, and returns the packets before them.
    pub(super) fn arrive(&mut self) -> Arrived {
        self.marker += 1;
        let ways = [(0, 1), (0, 2), (1, 0), (2, 0)];
        let markers = ways.map(|(from, to)| (to, self.marker_packet(from, to)));
        let mut missing: HashSet<_> = markers.iter().collect();
        let (mut arrived, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        while !missing.is_empty() {
            assert!(Instant::now() < deadline, "markers do not arrive");
            for ((from, to), (_, marker)) in ways.iter().zip(&markers) {
                if missing.iter().any(|(end, packet)| end == to && packet == marker) {
                    self.ends[*from].socket.send(marker).unwrap();
                }
            }
            for (number, end) in self.ends.iter().enumerate() {
                while missing.iter().any(|(to, _)| *to == number) {
                    end.socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                    let mut packet = vec![0; 1 << 16];
                    let Ok(len) = (&end.socket).read(&mut packet) else { break };
                    packet.truncate(len);
                    let packet = (number, packet);
                    if !missing.remove(&packet) && !is_marker(&packet.1) {
                        arrived.push(packet);
                    }
                }
            }
        }
        arrived
    }

    fn marker_packet(&self, from: usize, to: usize) -> Vec<u8> {
        let mut packet = v4_header(17, 12, marker_address(from), marker_address(to));
        packet.extend([0, 7, 0, 7, 0, 12, 0, 0]);
        packet.extend(self.marker.to_be_bytes());
        packet
    }
}

fn is_marker(packet: &[u8]) -> bool {
    packet.len() == 32 && packet[16..19] == [192, 168, 255]
}

/// weft says so where no peer has the destination (RFC 792, RFC 4443), as the kernel's WireGuard does.
fn is_unreachable(packet: &[u8]) -> bool {
    packet.starts_with(&[0x45, 0xc0]) && packet.get(20..22) == Some(&[3, 1])
        || packet.get(6) == Some(&58) && packet.get(40..42) == Some(&[1, 3])
}

/// Reports whether the header has a possible length, and is there. wireguard-go writes packets of which it is
/// not.
fn has_header(packet: &[u8]) -> bool {
    let len = if packet[0] >> 4 == 4 { 4 * usize::from(packet[0] & 0xf) } else { 40 };
    (20..=packet.len()).contains(&len)
}

fn v4_header(protocol: u8, payload: usize, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + payload as u16).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    header.extend(source.octets());
    header.extend(destination.octets());
    header
}

/// A packet that may have any fault.
fn packet(random: &mut Random) -> Vec<u8> {
    let payload = match random.below(4) {
        0 => random.below(60),
        1 => MTU as usize - 100 - random.below(100),
        _ => random.below(1400),
    };
    let protocol = random.pick(&[17, 17, 17, 6, 6, 1, 58, 99, 0, 44]);
    let mut packet = if random.percent(60) {
        let [source, destination] = [(); 2].map(|()| random.pick(&V4).parse().unwrap());
        let mut packet = v4_header(protocol, payload, source, destination);
        if random.percent(15) {
            // Options: padding, record route, source route, unknown.
            let words = 1 + random.below(10);
            packet[0] = 0x45 + words as u8;
            packet.resize(20 + 4 * words, random.pick(&[0, 1]));
            let option = random.pick(&[[7, 3, 4], [0x83, 3, 4], [0x44, 3, 0], [0x99, 255, 1]]);
            packet[20..23].copy_from_slice(&option);
            let total = packet.len() + payload;
            packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        }
        if random.percent(15) {
            let fragment = random.pick(&[0x2000, 0x4000, 0x8000, 1, 0x2001, 0x1fff_u16]);
            packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        }
        if random.percent(90) {
            let checksum = checksum(&packet);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        packet
    } else {
        let [source, destination] = [(); 2].map(|()| random.pick(&V6).parse::<Ipv6Addr>().unwrap());
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((payload as u16).to_be_bytes());
        packet.extend([protocol, 64]);
        packet.extend(source.octets());
        packet.extend(destination.octets());
        packet
    };
    packet[1] = if random.percent(20) { random.below(256) as u8 } else { 0 };
    packet.extend(random.bytes(payload));
    if random.percent(30) {
        damage(random, &mut packet);
    }
    packet
}

fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

fn damage(random: &mut Random, packet: &mut Vec<u8>) {
    let is_v4 = packet[0] >> 4 == 4;
    let length = if is_v4 { 2 } else { 4 };
    match random.below(7) {
        0 => packet.truncate(1 + random.below(50)),
        1 => packet.truncate(1 + random.below(packet.len())),
        2 => packet[0] = packet[0] & 0x0f | (random.below(16) as u8) << 4,
        3 => packet[0] = packet[0] & 0xf0 | random.below(16) as u8,
        4 => {
            let wrong = random.pick(&[0, 1, 19, 20, 21, 39, 40, 60, 1000, 65535_u16]);
            packet[length..length + 2].copy_from_slice(&wrong.to_be_bytes());
        }
        5 => packet.extend((0..1 + random.below(60)).map(|_| 0xee)),
        _ => packet.iter_mut().take(60).for_each(|byte| *byte = random.below(256) as u8),
    }
}

#[test]
fn the_same_packets_arrive() {
    if !can_compare(true) {
        return;
    }
    let mut worlds = [World::start(&program()), World::start(WEFT)];
    for seed in seeds(0..20) {
        let mut random = Random::new(seed);
        let mut allowed = Vec::new();
        for peer in 1..ENDS {
            let mut prefixes = vec![format!("{}/32", marker_address(peer))];
            prefixes.extend((0..random.below(8)).map(|_| random.prefix()));
            let key = key(peer).public_key().to_string();
            allowed.extend(["peer".to_owned(), key, "allowed-ips".to_owned(), prefixes.join(",")]);
        }
        let packets: Vec<_> =
            (0..PACKETS).map(|_| (random.pick(&[0, 0, 1, 2]), packet(&mut random))).collect();
        let [go, weft] = &mut worlds;
        go.set(0, &allowed);
        weft.set(0, &allowed);
        let mut theirs = go.exchange(&packets, &Vec::new());
        // weft does not send what is longer than it says, or has no room for its header.
        theirs.retain(|(end, packet)| {
            let is_as_sent = packets.iter().any(|(from, sent)| *from == 0 && sent == packet);
            has_header(packet) && (*end == 0 || is_as_sent)
        });
        let ours = weft.exchange(&packets, &theirs);
        let only = |one: &Arrived, other: &Arrived| -> Vec<_> {
            one.iter().filter(|packet| !other.contains(packet)).cloned().collect()
        };
        assert!(
            ours == theirs,
            "seed {seed}: with weft alone (end, packet) {:02x?}, with the other alone {:02x?}, after {allowed:?}",
            only(&ours, &theirs),
            only(&theirs, &ours)
        );
    }
}
