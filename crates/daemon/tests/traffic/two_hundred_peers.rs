//! A gateway with 200 peers and two packet threads, as `weft status` and `weft top` show it while all peers
//! send.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_lab::client::{Client, Flow, Stamp, Workbench};
use weft_tunnel::{PrivateKey, PublicKey};

use crate::support::{Conf, End, Ends, Family, NAME, PORT, PeerConf, Pty, Running, alone, weft};

const PEERS: u16 = 200;
/// Packets of a peer that are under way at once. One never waits behind another of its source, so it is never
/// dropped as overload, however busy the machine is.
const WINDOW: u64 = 1;
const PACKETS: u64 = 40;
const PACKET: usize = 500;
/// The ports of the echo behind the gateway: the buffer of each socket holds what all of its peers have under
/// way.
const ECHOES: std::ops::Range<u16> = 7000..7008;
/// Every exchange takes far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// A peer without a TUN: it sends numbered packets, and gets them back in this order.
struct Peer {
    client: Client,
    flow: Flow,
    number: u32,
    sent: u64,
    received: u64,
}

fn inner(number: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, (number >> 8) as u8, number as u8)
}

impl Peer {
    /// Call it in the namespace of the peers.
    fn new(number: u16, key: &PrivateKey, gateway: SocketAddr, gateway_key: PublicKey) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let client = Client::over(socket, gateway, inner(number), key, gateway_key).unwrap();
        let IpAddr::V4(destination) = End::A.inner(Family::V4) else { panic!("an IPv4 address") };
        let flow = Flow {
            source: (inner(number), 1024 + number),
            destination: (destination, ECHOES.start + number % ECHOES.len() as u16),
        };
        Self { client, flow, number: number.into(), sent: 0, received: 0 }
    }

    /// Sends until the window or `limit` is full, and takes what came back.
    fn exchange(&mut self, limit: u64, bench: &mut Workbench) {
        let Self { client, flow, number, sent, received } = self;
        let now = Instant::now();
        while *sent < limit && *sent < *received + WINDOW {
            let stamp = Stamp { run: 0, peer: *number, number: *sent };
            client.send(*flow, PACKET, stamp, 1, now, bench).unwrap();
            *sent += 1;
        }
        let took = client.receive(now, bench, |port, payload| {
            let wanted = Stamp { run: 0, peer: *number, number: *received };
            assert_eq!((port, Stamp::read(payload)), (flow.source.1, Some(wanted)), "lost or displaced");
            *received += 1;
        });
        took.unwrap();
        client.timers(now, bench).unwrap();
    }
}

/// Lets all peers send until each has got `limit` packets back in all, or `is_over` says so.
fn exchange(peers: &mut [Peer], limit: u64, bench: &mut Workbench, is_over: impl Fn() -> bool) {
    let start = Instant::now();
    while peers.iter().any(|peer| peer.received < limit) && !is_over() {
        peers.iter_mut().for_each(|peer| peer.exchange(limit, bench));
        assert!(start.elapsed() < PATIENCE, "something is lost");
    }
}

/// Ends the echoes, also where the test fails.
struct EndEchoes<'a>(&'a AtomicBool);

impl Drop for EndEchoes<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns every packet behind the gateway to its sender, until it is told to end.
fn echo(socket: &UdpSocket, is_over: &AtomicBool) {
    let mut packet = [0; PACKET];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((len, source)) = socket.recv_from(&mut packet) {
            socket.send_to(&packet[..len], source).unwrap();
        }
    }
}

#[test]
fn two_hundred_peers_keep_two_packet_threads_busy_and_lose_nothing() {
    let _alone = alone();
    if weft_udp::MAX_SHARDS == 1 {
        return;
    }
    let Some(ends) = Ends::new(1500) else { return };
    let mut conf = Conf::new();
    conf.listen_port = Some(PORT);
    conf.addresses = vec![format!("{}/24", End::A.inner(Family::V4))];
    let keys: Vec<_> = (0..PEERS).map(|_| PrivateKey::generate().unwrap()).collect();
    conf.peers = (0..PEERS)
        .zip(&keys)
        .map(|(number, key)| PeerConf {
            allowed_ips: vec![format!("{}/32", inner(number))],
            ..PeerConf::new(key.public_key())
        })
        .collect();
    let gateway = Running::up(&ends.a, &conf, &["--packet-threads", "2"]);
    let (address, key) = (SocketAddr::new(End::A.outer(Family::V4), PORT), conf.private_key.public_key());
    let mut peers: Vec<Peer> = ends
        .b
        .run(|| (0..PEERS).zip(keys).map(|(number, own)| Peer::new(number, &own, address, key)).collect());
    let echo_sockets = ECHOES.map(|port| {
        let socket = ends.a.run(|| UdpSocket::bind((End::A.inner(Family::V4), port))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        socket
    });
    let echo_sockets: Vec<UdpSocket> = echo_sockets.collect();
    let mut bench = Workbench::default();
    let is_over = AtomicBool::new(false);
    let (status, top) = std::thread::scope(|scope| {
        let _end = EndEchoes(&is_over);
        for socket in &echo_sockets {
            scope.spawn(|| echo(socket, &is_over));
        }
        // Each has a session, and all of them have got everything back.
        exchange(&mut peers, PACKETS, &mut bench, || false);
        // They go on while it is looked at.
        let shown = scope.spawn(|| {
            let status = gateway.status("1");
            let top = Pty::spawn(weft(gateway.directory(), &["top", NAME, "--interval", "0.5"]), 120, 40);
            // The line of the threads, which there is with several only. A terminal gets each word by itself.
            top.wait_for("busiest", 0);
            (status, top)
        });
        exchange(&mut peers, u64::MAX, &mut bench, || shown.is_finished());
        let sent = peers.iter().map(|peer| peer.sent).max().unwrap();
        exchange(&mut peers, sent, &mut bench, || false);
        shown.join().unwrap()
    });
    let threads = status["packet_threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2, "{status}");
    for thread in threads {
        assert_eq!(thread["peers"], PEERS / 2, "{status}");
        assert!(thread["busy"].as_f64().unwrap() > 0.01, "{status}");
        let packets = PACKETS * u64::from(PEERS) / 2;
        assert!(
            thread["opened"].as_u64() >= Some(packets) && thread["sealed"].as_u64() >= Some(packets),
            "{status}"
        );
    }
    drop(top);
    let drops = gateway.status("0")["drops"].as_array().unwrap().clone();
    // The kernel's own multicast is for no peer.
    assert!(drops.iter().all(|drop| drop["reason"] == "no_peer" || drop["packets"] == 0), "{drops:?}");
    gateway.stop();
}
