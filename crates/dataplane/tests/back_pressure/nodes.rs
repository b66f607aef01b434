//! Daemons with one packet thread each, and what plays their kernels.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Instant;

use tokio::sync::mpsc as async_mpsc;
use weft_dataplane::{Command, EventLoop, Snapshot};
use weft_tun::memory::{self, Limits, MemoryPeer};
use weft_tunnel::{Offload, PeerConfig, PeerSettings, PrivateKey, PublicKey, Tunnel, TunnelConfig};
use weft_udp::UdpStats;

use crate::network::{FakeUdp, SharedNetwork, Socket};

/// One daemon: what plays its kernel, and the way to ask it.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) kernel: MemoryPeer,
    pub(crate) commands: async_mpsc::Sender<Command>,
    pub(crate) network: SharedNetwork,
}

impl Node {
    pub(crate) async fn snapshot(&self) -> Snapshot {
        let (answer, answered) = mpsc::sync_channel(1);
        self.commands.send(Command::Snapshot { peers: Vec::new(), answer }).await.unwrap();
        until(|| answered.try_recv().ok()).await
    }

    pub(crate) fn refuse_sends(&self, refuses: bool) {
        let mut network = self.network.borrow_mut();
        let socket = network.sockets.get_mut(&self.address).unwrap();
        socket.refuses = refuses;
        if let Some(waker) = socket.writer.take() {
            waker.wake();
        }
    }

    pub(crate) fn waiting_datagrams(&self) -> usize {
        self.network.borrow().sockets[&self.address].inbox.len()
    }
}

/// Waits for `condition` by letting everything else run.
pub(crate) async fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = condition() {
            return value;
        }
        tokio::task::yield_now().await;
    }
}

/// Runs `test` with a number of daemons, each a peer of each: node `i` owns 10.0.0.i.
pub(crate) fn with_nodes<F: Future<Output = ()> + 'static>(
    count: u8,
    limits: Limits,
    test: impl FnOnce(Vec<Node>) -> F,
) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let keys: Vec<PrivateKey> = (0..count).map(|_| PrivateKey::generate().unwrap()).collect();
        let public: Vec<PublicKey> = keys.iter().map(PrivateKey::public_key).collect();
        let address = |node: u8| SocketAddr::from(([192, 0, 2, node], 51820));
        let network = SharedNetwork::default();
        let nodes = (0..count)
            .map(|node| {
                network.borrow_mut().sockets.insert(address(node), Socket::default());
                let udp = FakeUdp {
                    address: address(node),
                    network: Rc::clone(&network),
                    stats: UdpStats::default(),
                };
                let (tun, kernel) = memory::pair(limits);
                let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
                let key = keys[usize::from(node)].clone();
                let mut tunnel = Tunnel::new(key, config);
                for peer in (0..count).filter(|peer| *peer != node) {
                    let peer = PeerConfig {
                        public_key: public[usize::from(peer)],
                        endpoint: Some(address(peer)),
                        allowed_ips: vec![format!("10.0.0.{peer}/32").parse().unwrap()],
                        settings: PeerSettings::default(),
                    };
                    assert!(tunnel.insert_peer(peer, Instant::now()).is_ok());
                }
                let (commands, queue) = async_mpsc::channel(8);
                let event_loop = EventLoop::new(tunnel, tun, udp, queue, Default::default);
                tokio::task::spawn_local(event_loop.run());
                Node { address: address(node), kernel, commands, network: Rc::clone(&network) }
            })
            .collect();
        // A task like the others: the outermost future would have a turn after every 61 of theirs.
        tokio::task::spawn_local(test(nodes)).await.unwrap();
    });
}

/// A UDP packet that carries `number`, from node to node.
pub(crate) fn packet(from: u8, to: u8, number: u32) -> Vec<u8> {
    let mut packet = vec![0; 1400];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&1400u16.to_be_bytes());
    packet[8] = 64;
    packet[9] = 17;
    packet[12..16].copy_from_slice(&[10, 0, 0, from]);
    packet[16..20].copy_from_slice(&[10, 0, 0, to]);
    packet[28..32].copy_from_slice(&number.to_be_bytes());
    packet
}

pub(crate) fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(*packet[28..].first_chunk().unwrap())
}

/// Sends one packet through and waits for it: both have a session afterwards.
pub(crate) async fn shake_hands(nodes: &[Node], from: u8, to: u8) {
    nodes[usize::from(from)].kernel.inject(&packet(from, to, u32::MAX), Offload::None).unwrap();
    let arrived = nodes[usize::from(to)].kernel.recv().await.unwrap();
    assert_eq!(number(&arrived), u32::MAX);
}

/// Injects numbered packets until the kernel's queue stays full though everything had its turn.
pub(crate) async fn inject_until_blocked(nodes: &[Node], from: u8, to: u8) -> u32 {
    let (mut sent, mut idle_turns) = (0, 0);
    while idle_turns < 100 {
        match nodes[usize::from(from)].kernel.inject(&packet(from, to, sent), Offload::None) {
            Ok(()) => (sent, idle_turns) = (sent + 1, 0),
            Err(_) => idle_turns += 1,
        }
        tokio::task::yield_now().await;
        assert!(sent < 1_000_000, "nothing ever pushed back");
    }
    sent
}

pub(crate) async fn expect_in_order(node: &Node, numbers: std::ops::Range<u32>) {
    for expected in numbers {
        assert_eq!(number(&node.kernel.recv().await.unwrap()), expected);
    }
}

pub(crate) const SMALL: Limits = Limits { outbound_packets: 64, slabs: 3, inbound_packets: 64 };
