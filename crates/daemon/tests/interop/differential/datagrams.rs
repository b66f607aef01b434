//! The same outer datagrams of strangers, of new peers, and of peers again: the same ones are answered, and
//! the peers notice none of them.

use std::io::Read as _;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU16;
use std::time::Instant;

use blake2::digest::consts::U16;
use blake2::digest::{Digest as _, KeyInit, Mac as _};
use blake2::{Blake2s256, Blake2sMac};
use socket2::Socket;
use weft_lab::packet_socket;
use weft_tunnel::{ControlQueue, PeerConfig, PeerSettings, PrivateKey, PublicKey, Tunnel, TunnelConfig};

use super::packets::{Arrived, PORT, World, key};
use super::{Random, WEFT, can_compare, seeds};
use crate::wireguard_go::program;

/// How many keys are new in a seed. The last one is not told to the daemon in the middle.
const NEWCOMERS: usize = 8;
/// How many datagrams of peers are sent again.
const REPLAYS: usize = 8;
/// A difference counts if it is there as often: an answer may be late.
const ATTEMPTS: usize = 3;
const HEADERS: usize = 14 + 20 + 8;

fn middle() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], PORT))
}

/// The first message of a handshake.
fn initiation(own: PrivateKey) -> Vec<u8> {
    let persistent_keepalive = NonZeroU16::new(25);
    let peer = PeerConfig {
        public_key: key(0).public_key(),
        endpoint: Some(middle()),
        allowed_ips: Vec::new(),
        settings: PeerSettings { persistent_keepalive, ..PeerSettings::default() },
    };
    let mut tunnel = Tunnel::new(own, TunnelConfig { mtu: 1420, staging_bytes: 1 << 16 });
    let (mut control, now) = (ControlQueue::new(8), Instant::now());
    tunnel.insert_peer(peer, now).unwrap();
    tunnel.handle_timeout(now, &mut control);
    control.pop().unwrap().transmit().contents.to_vec()
}

/// Computes mac1, as anyone can who knows the key of the receiver.
fn make_mac1(message: &mut [u8], receiver: &PublicKey) {
    let Some(at) = message.len().checked_sub(32) else { return };
    let key = Blake2s256::new().chain_update(b"mac1----").chain_update(receiver.as_bytes()).finalize();
    let mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(&key).unwrap();
    let mac1 = mac.chain_update(&message[..at]).finalize().into_bytes();
    message[at..at + 16].copy_from_slice(&mac1);
}

fn damage(random: &mut Random, message: &mut Vec<u8>) {
    let at = random.below(message.len());
    match random.below(8) {
        0 => message.truncate(at),
        1 => {
            let more = 1 + random.below(40);
            message.extend(random.bytes(more));
        }
        // The bytes that are reserved, and the kind.
        2 => message[1 + at % 3] = 1 + random.below(255) as u8,
        3 => message[0] = random.pick(&[0, 1, 2, 3, 4, 5, 0xff]),
        // Of a handshake message, the two MACs.
        4 | 5 => {
            let at = message.len() - 1 - at % message.len().min(32);
            message[at] ^= 1 << random.below(8);
        }
        _ => message[at] ^= 1 << random.below(8),
    }
}

fn junk(random: &mut Random) -> Vec<u8> {
    let len = random.pick(&[0, 1, 3, 4, 16, 31, 32, 33, 64, 92, 147, 148, 149, 1452, 1472, 3000]);
    let mut junk = random.bytes(len);
    if len >= 4 && random.percent(70) {
        junk[..4].copy_from_slice(&[random.pick(&[1, 2, 3, 4]), 0, 0, 0]);
    }
    if random.percent(30) {
        make_mac1(&mut junk, &key(0).public_key());
    }
    junk
}

/// Puts the datagrams that the peers have sent to the middle into `out`.
fn read_sent(socket: &Socket, out: &mut Vec<Vec<u8>>) {
    socket.set_nonblocking(true).unwrap();
    let (mut socket, mut frame) = (socket, vec![0; 1 << 16]);
    while let Ok(len) = socket.read(&mut frame) {
        // UDP from the port of a peer, and no fragment.
        let port = u16::from_be_bytes([frame[34], frame[35]]);
        if len > HEADERS && frame[20] & 0x3f == 0 && frame[23] == 17 && (PORT + 1..PORT + 3).contains(&port) {
            out.push(frame[HEADERS..len].to_vec());
        }
    }
}

/// Sends each datagram from a port of its own; returns which were answered, and what arrived inside.
fn send(world: &mut World, datagrams: &[Vec<u8>]) -> (Vec<bool>, Arrived) {
    let sockets: Vec<UdpSocket> = datagrams.iter().map(|_| world.peers.bind_udp("192.0.2.2:0")).collect();
    for (socket, datagram) in sockets.iter().zip(datagrams) {
        socket.send_to(datagram, middle()).unwrap();
    }
    let mut arrived = Arrived::new();
    for _ in 0..10 {
        arrived.extend(world.arrive());
    }
    let answered = |socket: &UdpSocket| {
        socket.set_nonblocking(true).unwrap();
        socket.recv(&mut [0; 2000]).is_ok()
    };
    (sockets.iter().map(answered).collect(), arrived)
}

/// Returns what a seed makes of the worlds, and how many datagrams were answered.
fn attempt(random: &mut Random, worlds: &mut [(World, Socket); 2]) -> (usize, Option<String>) {
    let own: Vec<[u8; 32]> = (0..NEWCOMERS).map(|_| random.bytes(32).try_into().unwrap()).collect();
    let change = |what: &[&str]| -> Vec<String> {
        let keys =
            own[..NEWCOMERS - 1].iter().map(|own| PrivateKey::from_bytes(*own).public_key().to_string());
        let of_peer = |key: String| {
            ["peer".to_owned(), key].into_iter().chain(what.iter().map(|word| (*word).to_owned()))
        };
        keys.flat_map(of_peer).collect()
    };
    let mut datagrams = Vec::new();
    for (number, own) in own.iter().enumerate() {
        let mut datagram = initiation(PrivateKey::from_bytes(*own));
        if number + 2 < NEWCOMERS && random.percent(80) {
            damage(random, &mut datagram);
            if random.percent(70) {
                make_mac1(&mut datagram, &key(0).public_key());
            }
        }
        datagrams.push(datagram);
        datagrams.push(junk(random));
    }
    let choices: Vec<(usize, Option<usize>)> =
        (0..REPLAYS).map(|_| (random.below(1000), random.percent(50).then(|| random.below(1000)))).collect();
    let mut outcomes = worlds.iter_mut().map(|(world, sent)| {
        world.set(0, &change(&[]));
        let first = send(world, &datagrams);
        // All of them again, and some of those that the peers sent.
        let (mut again, mut of_peers) = (datagrams.clone(), Vec::new());
        read_sent(sent, &mut of_peers);
        for (which, damaged) in &choices {
            let mut datagram = of_peers[which % of_peers.len()].clone();
            if let Some(seed) = damaged {
                damage(&mut Random::new(*seed as u64), &mut datagram);
            }
            again.push(datagram);
        }
        let second = send(world, &again);
        world.set(0, &change(&["remove"]));
        (first, second)
    });
    let (theirs, ours) = (outcomes.next().unwrap(), outcomes.next().unwrap());
    let answers = ours.0.0.iter().filter(|answered| **answered).count();
    let difference = format!("{ours:02x?}, the other {theirs:02x?}, after {datagrams:02x?}");
    (answers, (ours != theirs).then_some(difference))
}

#[test]
fn the_same_datagrams_are_answered() {
    if !can_compare(true) {
        return;
    }
    let mut worlds = [program(), WEFT.to_owned()].map(|program| {
        let world = World::start(&program);
        let sent = world.peers.run(|| packet_socket::open("eth0", libc::ETH_P_ALL as u16)).unwrap();
        (world, sent)
    });
    for seed in seeds(0..10) {
        let mut random = Random::new(seed);
        let mut differences = Vec::new();
        while differences.len() < ATTEMPTS {
            let (answers, difference) = attempt(&mut random, &mut worlds);
            assert!(
                answers > 0 || difference.is_some(),
                "seed {seed}: not even a good initiation is answered"
            );
            match difference {
                Some(difference) => differences.push(difference),
                None => break,
            }
        }
        assert!(differences.len() < ATTEMPTS, "seed {seed}: {}", differences.join("\n"));
    }
}
