//! Back-pressure and independence of the two directions: event loops over TUNs and sockets that can be told
//! to take nothing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::mpsc as async_mpsc;
use weft_dataplane::{Command, EventLoop, Handle, Siblings, Snapshot};
use weft_tun::memory::{self, Limits, MemoryPeer};
use weft_tunnel::{
    Change, CookieRoot, DropReason, Ecn, Offload, PeerConfig, PeerSettings, PrivateKey, PublicKey, RecvMeta,
    Shard, Transmit, Tunnel, TunnelConfig,
};
use weft_udp::{BindError, RecvBuffers, SendError, Sent, Udp, UdpConfig, UdpStats};

/// A network that delivers at once, with sockets that can be made to take nothing.
#[derive(Default)]
struct Network {
    sockets: HashMap<SocketAddr, Socket>,
    /// The sockets of an address with several packet threads.
    shards: HashMap<SocketAddr, Vec<SocketAddr>>,
    /// Which datagrams do not arrive with the others.
    apart: Apart,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Apart {
    #[default]
    None,
    Handshakes,
    /// As when the kernel joins data to a handshake message.
    All,
}

#[derive(Default)]
struct Socket {
    refuses: bool,
    /// The errors that the next calls to send end with.
    send_errors: VecDeque<SendError>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    handshakes: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Whether an error comes before each handshake message, and whether the next call is to fail.
    handshakes_fail: bool,
    is_to_fail: bool,
    /// The receiver indices that pass, while there is a list.
    passing: Option<Vec<u32>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Network {
    /// The socket that the kernel chooses for a datagram.
    fn socket(&mut self, destination: SocketAddr, datagram: &[u8]) -> &mut Socket {
        let at = if datagram[0] == 2 { 8 } else { 4 };
        let index = u32::from_be_bytes(*datagram[at..].first_chunk().unwrap());
        let index = if datagram[0] == 1 { 0 } else { index as usize };
        let chosen = self.shards.get(&destination).map(|shards| shards[index % shards.len()]);
        self.sockets.get_mut(&chosen.unwrap_or(destination)).unwrap()
    }
}

impl Socket {
    /// What a kernel does that was told which messages pass.
    fn lets_pass(&self, datagram: &[u8]) -> bool {
        let at = match datagram[0] {
            1 => return true,
            2 => 8,
            _ => 4,
        };
        let index = u32::from_le_bytes(*datagram[at..].first_chunk().unwrap());
        self.passing.as_ref().is_none_or(|passing| passing.contains(&index))
    }
}

type SharedNetwork = Rc<RefCell<Network>>;

struct FakeUdp {
    address: SocketAddr,
    network: SharedNetwork,
    stats: UdpStats,
}

impl Udp for FakeUdp {
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>> {
        let mut network = self.network.borrow_mut();
        let own = network.sockets.get_mut(&self.address).unwrap();
        if own.refuses {
            own.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(error) = own.send_errors.pop_front() {
            return Poll::Ready(Err(error));
        }
        let apart = network.apart;
        let source = network.shards.iter().find(|(_, shards)| shards.contains(&self.address));
        let source = source.map_or(self.address, |(address, _)| *address);
        for datagram in transmit.contents.chunks(transmit.segment_size) {
            let peer = network.socket(transmit.destination, datagram);
            if !peer.lets_pass(datagram) {
                continue;
            }
            let is_apart = match apart {
                Apart::None => false,
                Apart::Handshakes => !Tunnel::is_data(datagram),
                Apart::All => true,
            };
            let inbox = if is_apart { &mut peer.handshakes } else { &mut peer.inbox };
            inbox.push_back((source, datagram.to_vec()));
            if let Some(waker) = peer.reader.take() {
                waker.wake();
            }
        }
        self.stats.datagrams_sent += transmit.segments() as u64;
        self.stats.batches_sent += 1;
        Poll::Ready(Ok(Sent { bytes: transmit.contents.len(), source_unusable: false, path_mtu: None }))
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>> {
        let (mut filled, limit) = (0, buffers.room());
        let mut network = self.network.borrow_mut();
        let own = network.sockets.get_mut(&self.address).unwrap();
        while filled < limit
            && let Some((source, datagram)) = own.inbox.pop_front()
        {
            buffers.free_buffers().next().unwrap()[..datagram.len()].copy_from_slice(&datagram);
            let len = datagram.len();
            buffers.push([(RecvMeta { source, local: None, ecn: Ecn::NotEct, len, stride: len }, false)]);
            filled += 1;
        }
        if filled > 0 {
            return Poll::Ready(Ok(filled));
        }
        own.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        let mut network = self.network.borrow_mut();
        let own = network.sockets.get_mut(&self.address).unwrap();
        own.is_to_fail = own.handshakes_fail && !own.is_to_fail && !own.handshakes.is_empty();
        if own.is_to_fail {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        let Some((source, bytes)) = own.handshakes.pop_front() else {
            own.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: bytes.len(), stride: bytes.len() };
        buffers.free_buffers().next().unwrap()[..bytes.len()].copy_from_slice(&bytes);
        buffers.push([(meta, false)]);
        Poll::Ready(Ok(1))
    }

    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let mut network = self.network.borrow_mut();
        network.sockets.get_mut(&self.address).unwrap().passing = receivers.map(<[u32]>::to_vec);
        receivers.is_some()
    }

    fn stats(&self) -> UdpStats {
        self.stats
    }

    fn rebind(&mut self, _: Option<u16>, _: Option<u32>) -> Result<u16, BindError> {
        Err(BindError::NoAddressFamily)
    }
}

/// One daemon: what plays its kernel, and the way to ask it.
struct Node {
    address: SocketAddr,
    kernel: MemoryPeer,
    commands: async_mpsc::Sender<Command>,
    network: SharedNetwork,
}

impl Node {
    async fn snapshot(&self) -> Snapshot {
        let (answer, answered) = mpsc::sync_channel(1);
        self.commands.send(Command::Snapshot { peers: Vec::new(), answer }).await.unwrap();
        until(|| answered.try_recv().ok()).await
    }

    fn refuse_sends(&self, refuses: bool) {
        let mut network = self.network.borrow_mut();
        let socket = network.sockets.get_mut(&self.address).unwrap();
        socket.refuses = refuses;
        if let Some(waker) = socket.writer.take() {
            waker.wake();
        }
    }

    fn waiting_datagrams(&self) -> usize {
        self.network.borrow().sockets[&self.address].inbox.len()
    }
}

/// Waits for `condition` by letting everything else run.
async fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = condition() {
            return value;
        }
        tokio::task::yield_now().await;
    }
}

/// Runs `test` with a number of daemons, each a peer of each: node `i` owns 10.0.0.i.
fn with_nodes<F: Future<Output = ()> + 'static>(
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
fn packet(from: u8, to: u8, number: u32) -> Vec<u8> {
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

fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(*packet[28..].first_chunk().unwrap())
}

/// Sends one packet through and waits for it: both have a session afterwards.
async fn shake_hands(nodes: &[Node], from: u8, to: u8) {
    nodes[usize::from(from)].kernel.inject(&packet(from, to, u32::MAX), Offload::None).unwrap();
    let arrived = nodes[usize::from(to)].kernel.recv().await.unwrap();
    assert_eq!(number(&arrived), u32::MAX);
}

/// Injects numbered packets until the kernel's queue stays full though everything had its turn.
async fn inject_until_blocked(nodes: &[Node], from: u8, to: u8) -> u32 {
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

async fn expect_in_order(node: &Node, numbers: std::ops::Range<u32>) {
    for expected in numbers {
        assert_eq!(number(&node.kernel.recv().await.unwrap()), expected);
    }
}

const SMALL: Limits = Limits { outbound_packets: 64, slabs: 3, inbound_packets: 64 };

#[test]
fn a_socket_that_takes_nothing_stops_the_reading_and_loses_nothing() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[0].refuse_sends(true);
        let sent = inject_until_blocked(&nodes, 0, 1).await;
        // 64 in the kernel's queue, 3 slabs of at most 93 packets, and the batches that were sealed.
        assert!(sent < 64 + 3 * 93 + 8 * 64, "{sent} packets went in and none came out");
        nodes[0].refuse_sends(false);
        expect_in_order(&nodes[1], 0..sent).await;
        assert_eq!(nodes[0].snapshot().await.drops.total(), 0);
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn a_send_that_fails_costs_what_it_carried_and_what_follows_keeps_its_order() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let failed = |kind: io::ErrorKind| SendError::Failed(kind.into());
        let errors = [
            io::ErrorKind::Other,
            io::ErrorKind::OutOfMemory,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable,
        ];
        let errors = errors.into_iter().map(failed).chain([SendError::TooLong]);
        let (mut next, mut counted) = (0, 0);
        for error in errors {
            let description = format!("{error:?}");
            nodes[0].network.borrow_mut().sockets.get_mut(&nodes[0].address).unwrap().send_errors =
                VecDeque::from([error]);
            let end = next + 200;
            let (mut injected, mut arrived) = (next, Vec::new());
            let (mut dropped, mut turns) = (0, 0);
            while arrived.len() as u64 + dropped < 200 {
                turns += 1;
                assert!(turns < 10_000, "{description}: {} arrived, {dropped} are counted", arrived.len());
                while injected < end && nodes[0].kernel.inject(&packet(0, 1, injected), Offload::None).is_ok()
                {
                    injected += 1;
                }
                tokio::task::yield_now().await;
                while let Some(packet) = nodes[1].kernel.take() {
                    arrived.push(number(&packet));
                }
                dropped = nodes[0].snapshot().await.drops.total() - counted;
            }
            assert!(dropped > 0, "{description}: one send has failed");
            assert_eq!(arrived.len() as u64 + dropped, 200, "{description}");
            assert!(arrived.is_sorted() && arrived.iter().all(|number| (next..end).contains(number)));
            (next, counted) = (end, counted + dropped);
        }
        let drops = nodes[0].snapshot().await.drops;
        let too_long = drops.get(DropReason::DatagramTooLong);
        assert!(too_long > 0 && drops.get(DropReason::UdpSendFailed) + too_long == counted, "{drops:?}");
    });
}

#[test]
fn a_blocked_socket_does_not_stop_decryption() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[0].refuse_sends(true);
        inject_until_blocked(&nodes, 0, 1).await;
        for n in 0..1000 {
            nodes[1].kernel.inject(&packet(1, 0, n), Offload::None).unwrap();
            assert_eq!(number(&nodes[0].kernel.recv().await.unwrap()), n);
        }
    });
}

#[test]
fn a_tun_that_takes_nothing_for_a_moment_loses_nothing_and_does_not_stop_encryption() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..500 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        assert!(nodes[1].waiting_datagrams() > 400, "what has no room stays in the socket");
        for n in 0..500 {
            nodes[1].kernel.inject(&packet(1, 0, n), Offload::None).unwrap();
            assert_eq!(number(&nodes[0].kernel.recv().await.unwrap()), n);
        }
        assert!(nodes[1].waiting_datagrams() > 400);
        nodes[1].kernel.set_accepting(true);
        expect_in_order(&nodes[1], 0..500).await;
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn a_stalled_tun_costs_data_only_and_handshakes_of_others_go_on() {
    with_nodes(3, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..100 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        // The clock stands still but for this.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        until(|| (nodes[1].waiting_datagrams() == 0).then_some(())).await;
        nodes[2].kernel.inject(&packet(2, 1, 0), Offload::None).unwrap();
        let handshakes = loop {
            let handshakes = nodes[2].snapshot().await.tunnel.handshakes;
            if handshakes > 0 {
                break handshakes;
            }
        };
        assert_eq!(handshakes, 1);
        let drops = nodes[1].snapshot().await.drops;
        // The packet of the third is data too, and so is the keepalive that ends its handshake.
        assert!((100..=102).contains(&drops.get(DropReason::TunStalled)), "{drops:?}");
        assert_eq!(drops.total(), drops.get(DropReason::TunStalled));
        nodes[1].kernel.set_accepting(true);
        // One packet brings the loop back to the TUN; everything from then on arrives.
        nodes[0].kernel.inject(&packet(0, 1, 1000), Offload::None).unwrap();
        assert_eq!(number(&nodes[1].kernel.recv().await.unwrap()), 1000);
    });
}

#[test]
fn a_tun_that_takes_one_packet_after_the_other_is_not_stalled() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        for n in 0..100 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        nodes[1].kernel.set_accepting(false);
        let mut numbers = Vec::new();
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            numbers.push(number(&nodes[1].kernel.take().unwrap()));
        }
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
        nodes[1].kernel.set_accepting(true);
        while numbers.len() < 100 {
            numbers.push(number(&nodes[1].kernel.recv().await.unwrap()));
        }
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn handshakes_go_on_while_the_tun_takes_nothing_and_data_waits_for_it() {
    with_nodes(3, SMALL, async |nodes| {
        nodes[0].network.borrow_mut().apart = Apart::Handshakes;
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..500 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        // It stands still for less than a second: the clock does not move.
        nodes[2].kernel.inject(&packet(2, 1, 500), Offload::None).unwrap();
        while nodes[2].snapshot().await.tunnel.handshakes == 0 {
            tokio::task::yield_now().await;
        }
        assert!(nodes[1].waiting_datagrams() > 400, "what has no room stays in the socket");
        nodes[1].kernel.set_accepting(true);
        let mut numbers = Vec::new();
        for _ in 0..501 {
            numbers.push(number(&nodes[1].kernel.recv().await.unwrap()));
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..501).collect::<Vec<_>>());
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn receive_errors_between_handshake_messages_do_not_end_the_event_loop() {
    with_nodes(2, SMALL, async |nodes| {
        {
            let mut network = nodes[1].network.borrow_mut();
            network.apart = Apart::Handshakes;
            let socket = network.sockets.get_mut(&nodes[1].address).unwrap();
            socket.handshakes_fail = true;
            // More errors than may come one after the other.
            socket.handshakes.extend((0..1100).map(|_| (nodes[0].address, vec![1, 0, 0, 0])));
        }
        shake_hands(&nodes, 0, 1).await;
    });
}

#[test]
fn while_the_kernel_drops_unknown_receiver_indices_sessions_go_on_and_begin_both_ways() {
    with_nodes(4, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let network = Rc::clone(&nodes[1].network);
        let is_filtering = || network.borrow().sockets[&nodes[1].address].passing.is_some();
        assert!(!is_filtering());
        for index in 0..2000_u32 {
            let mut junk = vec![0; 64];
            junk[0] = 4;
            junk[4..8].copy_from_slice(&index.to_le_bytes());
            let mut network = network.borrow_mut();
            let socket = network.sockets.get_mut(&nodes[1].address).unwrap();
            socket.inbox.push_back((nodes[3].address, junk));
            socket.reader.take().into_iter().for_each(Waker::wake);
        }
        until(|| is_filtering().then_some(())).await;
        for (from, to) in [(0, 1), (2, 1), (1, 3), (1, 0), (1, 2), (3, 1)] {
            nodes[usize::from(from)].kernel.inject(&packet(from, to, 7), Offload::None).unwrap();
            let arrived = nodes[usize::from(to)].kernel.recv();
            // At once: a message that was dropped would be sent again after 5 s.
            let arrived = tokio::time::timeout(Duration::from_secs(4), arrived).await;
            assert_eq!(number(&arrived.expect("nothing arrives").unwrap()), 7, "from {from} to {to}");
            assert!(is_filtering());
        }
    });
}

#[test]
fn data_that_arrives_with_handshake_messages_is_not_lost() {
    with_nodes(2, SMALL, async |nodes| {
        nodes[0].network.borrow_mut().apart = Apart::All;
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..5 {
            nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).unwrap();
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        nodes[1].kernel.set_accepting(true);
        expect_in_order(&nodes[1], 0..5).await;
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn packets_that_were_read_together_are_sent_with_one_call() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let before = nodes[0].snapshot().await.udp;
        for n in 0..45 {
            nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).unwrap();
        }
        expect_in_order(&nodes[1], 0..45).await;
        let after = nodes[0].snapshot().await.udp;
        assert_eq!(after.datagrams_sent - before.datagrams_sent, 45);
        assert_eq!(after.batches_sent - before.batches_sent, 1);
    });
}

/// Peers, each with two prefixes; with an endpoint they are to be kept in reach.
fn many_peers(count: u32, endpoint: Option<SocketAddr>) -> Vec<Change> {
    (0..count)
        .map(|n| {
            let mut key = [9; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            let [_, a, b, c] = n.to_be_bytes();
            let config = PeerConfig {
                public_key: PublicKey::from_bytes(key),
                endpoint,
                allowed_ips: vec![
                    format!("11.{a}.{b}.{c}/32").parse().unwrap(),
                    format!("fd00::{n:x}/128").parse().unwrap(),
                ],
                settings: PeerSettings {
                    persistent_keepalive: endpoint.and(NonZero::new(25)),
                    ..PeerSettings::default()
                },
            };
            Change::AddPeer(Box::new(config))
        })
        .collect()
}

/// Packets go to and fro, one at a time, until `done`: how many went through meanwhile.
async fn packets_until<T>(nodes: &[Node], mut done: impl FnMut() -> Option<T>) -> (u32, T) {
    for n in 0..u32::MAX {
        if let Some(value) = done() {
            return (n, value);
        }
        nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).unwrap();
        assert_eq!(number(&nodes[1].kernel.recv().await.unwrap()), n);
    }
    panic!("it never ends");
}

#[test]
fn ten_thousand_peers_come_are_counted_and_go_in_slices_between_which_packets_pass() {
    const PEERS: u32 = 10_000;
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let changes = many_peers(PEERS, None);
        let keys = changes.iter().filter_map(|change| match change {
            Change::AddPeer(peer) => Some(peer.public_key),
            _ => None,
        });
        let gone: Vec<Change> = keys.map(Change::RemovePeer).collect();

        let (answer, answered) = mpsc::sync_channel(1);
        nodes[0].commands.send(Command::Change { changes, answer }).await.unwrap();
        let (passed, ()) = packets_until(&nodes, || answered.try_recv().ok()).await;
        // A packet needs a turn of the loop, and each turn makes 128 steps of the 60,000 that these peers
        // are.
        assert!(passed > 200, "{passed} packets while {PEERS} peers were added");

        let (answer, answered) = mpsc::sync_channel(1);
        nodes[0].commands.send(Command::Snapshot { peers: Vec::new(), answer }).await.unwrap();
        let (passed, snapshot) = packets_until(&nodes, || answered.try_recv().ok()).await;
        assert_eq!(snapshot.peers.len(), PEERS as usize + 1);
        assert!(passed >= 5, "{passed} packets while {PEERS} peers were read, 512 a turn");

        let (answer, answered) = mpsc::sync_channel(1);
        // Their prefixes would each be looked for in the whole table: this is what the control thread sends
        // first.
        let prefixes = gone.iter().filter_map(|change| match change {
            Change::RemovePeer(peer) => Some((*peer, peer.as_bytes()[..4].try_into().unwrap())),
            _ => None,
        });
        let prefixes = prefixes.map(|(peer, n)| {
            let n = u32::from_le_bytes(n);
            let [_, a, b, c] = n.to_be_bytes();
            let remove = vec![
                format!("11.{a}.{b}.{c}/32").parse().unwrap(),
                format!("fd00::{n:x}/128").parse().unwrap(),
            ];
            Change::AllowedIps { peer, add: Vec::new(), remove }
        });
        let changes = prefixes.collect::<Vec<_>>().into_iter().chain(gone).collect();
        nodes[0].commands.send(Command::Change { changes, answer }).await.unwrap();
        let (passed, ()) = packets_until(&nodes, || answered.try_recv().ok()).await;
        assert!(passed > 200, "{passed} packets while {PEERS} peers were removed");
        let snapshot = nodes[0].snapshot().await;
        assert_eq!((snapshot.peers.len(), snapshot.drops.total()), (1, 0));
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn timers_of_a_thousand_peers_that_are_due_at_once_need_nothing_else_to_happen() {
    const PEERS: usize = 1_500;
    with_nodes(1, SMALL, async |nodes| {
        let silent = SocketAddr::from(([192, 0, 2, 99], 51820));
        nodes[0].network.borrow_mut().sockets.insert(silent, Socket::default());
        let initiations = || nodes[0].network.borrow().sockets[&silent].inbox.len();
        let (answer, answered) = mpsc::sync_channel(1);
        let changes = many_peers(u32::try_from(PEERS).unwrap(), Some(silent));
        nodes[0].commands.send(Command::Change { changes, answer }).await.unwrap();
        until(|| answered.try_recv().ok()).await;
        // As long as it takes within the budget of handshakes: time passes by itself while nothing else is to
        // be done.
        let all_have = async |times: usize| {
            let mut waited = Duration::ZERO;
            while initiations() < times * PEERS && waited < Duration::from_secs(20) {
                tokio::time::sleep(Duration::from_millis(10)).await;
                waited += Duration::from_millis(10);
            }
            assert!(initiations() >= times * PEERS, "{} initiations after {waited:?}", initiations());
        };
        all_have(1).await;
        // As after a pause of the process: every one of them is to be tried again.
        tokio::time::advance(Duration::from_secs(6)).await;
        all_have(2).await;
    });
}

#[test]
fn a_device_that_is_gone_ends_the_event_loop() {
    with_nodes(2, SMALL, async |mut nodes| {
        let Node { kernel, commands, .. } = nodes.remove(0);
        drop(kernel);
        commands.closed().await;
    });
}

/// Keeps an event loop from running.
#[derive(Default)]
struct Gate {
    is_shut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    /// Runs `event_loop` while the gate is open.
    async fn run<T>(self: Rc<Self>, event_loop: impl Future<Output = T>) -> T {
        let mut event_loop = std::pin::pin!(event_loop);
        std::future::poll_fn(|cx| {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            if self.is_shut.get() { Poll::Pending } else { event_loop.as_mut().poll(cx) }
        })
        .await
    }

    fn open(&self) {
        self.is_shut.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A daemon with two packet threads, as node 0, and one with one, as node 1, each a peer of the other. Runs
/// `test` with what plays the kernel of each packet thread and of node 1, the handle of node 0, the key of
/// node 1, and the gate of the first packet thread.
fn with_two_packet_threads<F: Future<Output = ()> + 'static>(
    test: impl FnOnce([MemoryPeer; 3], Handle, PublicKey, Rc<Gate>) -> F,
) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let keys = [0, 1].map(|_| PrivateKey::generate().unwrap());
        let [gateway, thread_0, thread_1, peer]: [SocketAddr; 4] =
            [1, 2, 3, 4].map(|host| SocketAddr::from(([192, 0, 2, host], 51820)));
        let network = SharedNetwork::default();
        network.borrow_mut().shards.insert(gateway, vec![thread_0, thread_1]);
        let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
        let cookies = CookieRoot::generate(Instant::now());
        let (handle, mut queues) = Handle::of_several(2, UdpConfig::default());
        let mut siblings = Siblings::of(2).into_iter();
        let peer_of = |key: &PrivateKey, endpoint, address: &str| {
            Change::AddPeer(Box::new(PeerConfig {
                public_key: key.public_key(),
                endpoint,
                allowed_ips: vec![address.parse().unwrap()],
                settings: PeerSettings::default(),
            }))
        };
        let (commands, queue) = async_mpsc::channel(8);
        queues.push(queue);
        let mut queues = queues.into_iter();
        let gate = Rc::new(Gate::default());
        let kernels = [thread_0, thread_1, peer].map(|address| {
            network.borrow_mut().sockets.insert(address, Socket::default());
            let udp = FakeUdp { address, network: Rc::clone(&network), stats: UdpStats::default() };
            let (tun, kernel) = memory::pair(Limits::default());
            let number = [thread_0, thread_1].iter().position(|of| *of == address);
            let tunnel = match number {
                Some(number) => {
                    Tunnel::of_shard(keys[0].clone(), config, Shard::new(number as u16, 2), &cookies)
                }
                None => Tunnel::new(keys[1].clone(), config),
            };
            let mut event_loop = EventLoop::new(tunnel, tun, udp, queues.next().unwrap(), Default::default);
            match number {
                Some(_) => event_loop.join(siblings.next().unwrap()),
                None => event_loop.configure(vec![peer_of(&keys[0], Some(gateway), "10.0.0.0/32")]),
            }
            let gate = if number == Some(0) { Rc::clone(&gate) } else { Rc::default() };
            tokio::task::spawn_local(gate.run(event_loop.run()));
            kernel
        });
        let add = vec![peer_of(&keys[1], Some(peer), "10.0.0.1/32")];
        elsewhere(&handle, move |handle| handle.change(add)).await.unwrap();
        tokio::task::spawn_local(test(kernels, handle, keys[1].public_key(), gate)).await.unwrap();
        drop(commands);
    });
}

/// Calls the handle on another thread, which waits for the event loops.
async fn elsewhere<T: Send + 'static>(
    handle: &Handle,
    call: impl FnOnce(&Handle) -> T + Send + 'static,
) -> T {
    let handle = handle.clone();
    let thread = std::thread::spawn(move || call(&handle));
    until(|| thread.is_finished().then_some(())).await;
    thread.join().unwrap()
}

#[test]
fn the_next_session_of_a_peer_that_moved_does_not_overtake_the_last_one() {
    with_two_packet_threads(async |[thread_0, thread_1, peer], handle, key, _| {
        let send = |number| peer.inject(&packet(1, 0, number), Offload::None).unwrap();
        send(0);
        assert_eq!(number(&thread_0.recv().await.unwrap()), 0, "it belongs to the first thread");
        assert!(elsewhere(&handle, move |handle| handle.move_peer(key, 1)).await.unwrap());
        assert!(!elsewhere(&handle, move |handle| handle.move_peer(key, 0)).await.unwrap(), "it just moved");
        // Handed over.
        send(1);
        assert_eq!(number(&thread_1.recv().await.unwrap()), 1);
        // The clock stands still but for this: the next handshake may be five seconds after the first.
        let renewed_at = |handle: &Handle| {
            let peers = handle.snapshot(1).unwrap().peers;
            peers.iter().map(|peer| peer.last_handshake).max().unwrap()
        };
        let before = elsewhere(&handle, renewed_at).await;
        tokio::time::sleep(Duration::from_millis(4900)).await;
        // The first thread receives nothing while its TUN takes nothing.
        thread_0.set_accepting(false);
        for number in 2..100 {
            send(number);
        }
        until(|| (peer.outbound_len() == 0).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(elsewhere(&handle, renewed_at).await > before, "there is a next session");
        for number in 100..150 {
            send(number);
        }
        until(|| (peer.outbound_len() == 0).then_some(())).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(thread_1.take().is_none(), "it waits for the first thread");
        thread_0.set_accepting(true);
        for number in 2..150 {
            assert_eq!(self::number(&thread_1.recv().await.unwrap()), number);
        }
        let snapshot = elsewhere(&handle, |handle| handle.snapshot(1).unwrap()).await;
        assert_eq!((snapshot.drops.total(), snapshot.moves, snapshot.tunnel.opened), (0, 1, 150));
        // It may move again.
        assert!(elsewhere(&handle, move |handle| handle.move_peer(key, 0)).await.unwrap());
    });
}

#[test]
fn messages_of_the_next_session_do_not_wait_for_ever() {
    with_two_packet_threads(async |[thread_0, thread_1, peer], handle, key, gate| {
        let send = |number| peer.inject(&packet(1, 0, number), Offload::None).unwrap();
        send(0);
        thread_0.recv().await.unwrap();
        assert!(elsewhere(&handle, move |handle| handle.move_peer(key, 1)).await.unwrap());
        tokio::time::sleep(Duration::from_millis(4900)).await;
        gate.is_shut.set(true);
        for number in 1..10 {
            send(number);
        }
        until(|| (peer.outbound_len() == 0).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        for number in 10..20 {
            send(number);
        }
        for number in 10..20 {
            assert_eq!(self::number(&thread_1.recv().await.unwrap()), number, "after two seconds");
        }
        // What comes too late would be out of order.
        gate.open();
        let overload = |handle: &Handle| handle.snapshot(1).unwrap().drops.get(DropReason::Overload);
        while elsewhere(&handle, overload).await < 9 {}
        send(20);
        assert_eq!(number(&thread_1.recv().await.unwrap()), 20);
    });
}
