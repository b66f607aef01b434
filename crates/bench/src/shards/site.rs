//! A gateway in this process, and its peers.
//!
//! ```text
//!   gateway  eth0 198.18.0.1 ───── veth ───── 198.18.0.2 eth0  clients: a socket for each peer
//! tun0 10.0.0.1, peers 10.1.0.0 and on; what peers send is for 10.200.0.1, where the kernel drops it
//! ```

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::num::NonZeroU16;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use weft::up::{Daemon, Options};
use weft_config::{PacketThreads, TunThreads};
use weft_lab::{Namespace, cpu};
use weft_tunnel::{MAX_BATCH_BYTES, PrivateKey};

use super::Case;
use crate::interrupt::Interrupt;
use crate::peers::client::{Client, Workbench};
use crate::peers::gateway::inner;
use crate::peers::packet::{Flow, HEADERS, STAMP, Stamp};
use crate::peers::socket;
use crate::site::{self, GATEWAY, Interface, MTU, Net, Peer};

const LINK: Net = Net(0);
/// No host has it: forwarding is off, so the kernel drops what is for it.
const BEHIND: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 200, 0, 1), 9);
const PORT: u16 = 4002;
/// Begins the names of the packet threads.
const THREAD_NAME: &str = "packets";
const TUN: &str = "tun0";

/// Bytes of an inner packet, and of its message. It has a header and a tag of 16 bytes each; a packet of the
/// MTU is not padded.
pub(super) const PACKET: usize = MTU as usize;
const MESSAGE: usize = PACKET + 32;
/// Messages that a sender of datagrams gives to the kernel at once.
const MESSAGES: usize = MAX_BATCH_BYTES / MESSAGE;
/// Distance of the batches in the file of a peer: whole pages.
const BATCH_DISTANCE: usize = 1 << 16;
const PAYLOAD: usize = PACKET - HEADERS;

/// Patience with a handshake, or a packet that is to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Flows that are tried until one is read by the wanted packet thread.
const FLOWS: u16 = 512;

/// The counters of the packet threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// Packets opened, and packets sealed, by packet thread.
    pub(super) handled: [Vec<u64>; 2],
    pub(super) handed_over_bytes: u64,
}

impl Counters {
    pub(super) fn sealed(&self) -> u64 {
        self.handled[1].iter().sum()
    }

    pub(super) fn all(&self) -> u64 {
        self.handled.iter().flatten().sum()
    }
}

/// A gateway with its packet threads.
pub(super) struct Gateway {
    daemon: Daemon,
    inside: Namespace,
    threads: Vec<i32>,
    /// Segments of the longest super-packet that its TUN takes.
    segments: usize,
    /// Their contents.
    contents: File,
}

impl Gateway {
    /// Returns the counters of the packet threads, in order.
    pub(super) fn counters(&self) -> Result<Counters> {
        let each = self.daemon.snapshot()?.packet_threads;
        Ok(Counters {
            handled: [
                each.iter().map(|thread| thread.opened).collect(),
                each.iter().map(|thread| thread.sealed).collect(),
            ],
            handed_over_bytes: each.iter().map(|thread| thread.handed_over_bytes).sum(),
        })
    }

    /// Returns the CPU time of the packet threads so far.
    pub(super) fn cpu(&self) -> Duration {
        cpu::Meter::new(self.threads.iter().copied()).total()
    }

    /// Returns the bytes that the TUN reads for this number of segments of super-packets.
    pub(super) fn read_bytes(&self, segments: u64) -> f64 {
        segments as f64 * (PAYLOAD as f64 + HEADERS as f64 / self.segments as f64)
    }
}

/// A gateway with its peers, all of which have a session.
pub(super) struct Site {
    pub(super) gateway: Gateway,
    peers: Vec<SitePeer>,
    bench: Workbench,
    _clients: Namespace,
}

struct SitePeer {
    client: Client,
    shard: usize,
    /// Sockets in the gateway's namespace, connected to the peer: what the first one sends is read by the
    /// peer's packet thread, what the second one sends by another.
    flows: [Option<UdpSocket>; 2],
    stock: Stock,
}

/// Sealed messages of a peer, in batches.
struct Stock {
    messages: File,
    batches: usize,
    sent: usize,
}

impl Site {
    /// Starts a gateway with these numbers of packet threads and peers, and performs the handshakes.
    pub(super) fn start(packet_threads: NonZeroU16, peers: usize, interrupt: &Interrupt) -> Result<Self> {
        let (inside, clients) = (site::namespace("gateway")?, site::namespace("clients")?);
        LINK.join(&inside, &clients, 2)?;
        let keys = site::keys(peers + 1)?;
        let (gateway_key, keys) = keys.split_last().context("there is no key")?;
        let gateway = Self::gateway(inside, packet_threads, gateway_key, keys)?;
        let client = |(number, key): (usize, &PrivateKey)| {
            let socket = clients.run(|| socket::bind(LINK.v4(2), 0))?;
            let client =
                Client::over(socket, LINK.endpoint(1), inner(number), key, gateway_key.public_key())?;
            let stock = Stock { messages: socket::file()?, batches: 0, sent: 0 };
            Ok(SitePeer { client, shard: 0, flows: [None, None], stock })
        };
        let peers = keys.iter().enumerate().map(client).collect::<Result<_>>()?;
        let mut site = Self { gateway, peers, bench: Workbench::new(), _clients: clients };
        for number in 0..site.peers.len() {
            site.shake_hands(number, interrupt)?;
        }
        Ok(site)
    }

    fn gateway(
        inside: Namespace,
        packet_threads: NonZeroU16,
        key: &PrivateKey,
        peers: &[PrivateKey],
    ) -> Result<Gateway> {
        let peers = peers.iter().enumerate();
        let peers = peers.map(|(number, key)| Peer::new(key.public_key(), inner(number), None)).collect();
        let file = Interface::new(key.clone(), Some(site::PORT), GATEWAY, peers)?.file();
        let config = weft_config::parse(&file, "gateway".as_ref(), TUN.parse()?)?.config;
        let options = Options {
            packet_threads: PacketThreads::Fixed(packet_threads),
            tun_threads: TunThreads::Fixed(0),
            thread_name: THREAD_NAME.to_owned(),
            ..Options::default()
        };
        let before = cpu::threads()?;
        let endpoints = vec![None; config.peers.len()];
        let daemon = inside.run(|| Daemon::start(&config, &endpoints, &options, || ()))?;
        let opened = daemon.opened().context("the gateway has ended")?;
        ensure!(opened.offload.udp, "the kernel's TUN has no UDP segmentation (Linux 6.2)");
        ensure!(opened.packet_threads == usize::from(packet_threads.get()), "fewer packet threads run");
        let is_packet_thread = |thread: &i32| {
            let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            !before.contains(thread) && name.is_ok_and(|name| name.starts_with(THREAD_NAME))
        };
        let threads: Vec<i32> = cpu::threads()?.into_iter().filter(is_packet_thread).collect();
        ensure!(threads.len() == opened.packet_threads, "the packet threads are not found by their names");
        // A longer super-packet would be split by the kernel before weft reads it.
        let limit = weft::interface::queue_limits(MTU).gso_max_bytes.context("no limit of super-packets")?;
        let segments = (limit as usize - HEADERS) / PAYLOAD;
        let contents = socket::file()?;
        contents.set_len((segments * PAYLOAD) as u64)?;
        Ok(Gateway { daemon, inside, threads, segments, contents })
    }

    /// Performs the handshake of a peer, and finds its packet thread.
    fn shake_hands(&mut self, number: usize, interrupt: &Interrupt) -> Result<()> {
        let Self { gateway, peers, bench, .. } = self;
        let peer = &mut peers[number];
        let flow = Flow { source: (peer.client.inner, PORT), destination: BEHIND };
        let [before, _] = gateway.counters()?.handled;
        let stamp = Stamp::default();
        peer.client.send_flow(flow, HEADERS + STAMP, stamp, 1, Instant::now(), bench)?;
        let limit = Instant::now() + PATIENCE;
        peer.shard = loop {
            let now = Instant::now();
            ensure!(now < limit, "a handshake with the gateway is not done after {PATIENCE:?}");
            interrupt.check()?;
            peer.client.timers(now, bench)?;
            peer.client.receive(now, bench, |_, _| {})?;
            let [opened, _] = gateway.counters()?.handled;
            if let Some(shard) = (0..opened.len()).find(|shard| opened[*shard] > before[*shard]) {
                break shard;
            }
            std::thread::sleep(Duration::from_micros(100));
        };
        // Nothing reads what arrives from now on: the kernel drops what this buffer does not hold.
        Ok(setsockopt(&peer.client.socket, sockopt::RcvBuf, &1)?)
    }

    /// Returns the number of peers of each packet thread.
    pub(super) fn peers_by_shard(&self) -> Vec<usize> {
        let mut peers = vec![0; self.gateway.threads.len()];
        self.peers.iter().for_each(|peer| peers[peer.shard] += 1);
        peers
    }

    /// Finds flows to each peer that its packet thread reads, and others if there are several packet threads.
    /// The kernel chooses the queue by a hash, so flows are tried one after the other.
    pub(super) fn find_flows(&mut self, interrupt: &Interrupt) -> Result<()> {
        let Self { gateway, peers, .. } = self;
        let shards = gateway.threads.len();
        for peer in peers {
            for _ in 0..FLOWS {
                if peer.flows[0].is_some() && (shards == 1 || peer.flows[1].is_some()) {
                    break;
                }
                let address = (peer.client.inner, PORT);
                let socket = gateway.inside.run(|| {
                    let socket = socket::bind(GATEWAY, 0)?;
                    socket.connect(address)?;
                    socket::set_segment(&socket, PAYLOAD)?;
                    std::io::Result::Ok(socket)
                })?;
                let before = gateway.counters()?;
                socket::send_file(&socket, &gateway.contents, 0, gateway.segments * PAYLOAD)?;
                let wanted = before.handled[1][peer.shard] + gateway.segments as u64;
                let limit = Instant::now() + PATIENCE;
                let after = loop {
                    let now = gateway.counters()?;
                    if now.handled[1][peer.shard] >= wanted {
                        break now;
                    }
                    interrupt.check()?;
                    ensure!(Instant::now() < limit, "a packet to a peer was lost");
                    std::thread::sleep(Duration::from_micros(50));
                };
                let is_foreign = after.handed_over_bytes > before.handed_over_bytes;
                peer.flows[usize::from(is_foreign)].get_or_insert(socket);
            }
            let found = peer.flows.iter().flatten().count();
            ensure!(found == shards.min(2), "of {FLOWS} flows to a peer none is read by the wanted thread");
        }
        Ok(())
    }

    /// Seals messages of `bytes` bytes in total, in place of those that are left.
    pub(super) fn seal(&mut self, bytes: usize, interrupt: &Interrupt) -> Result<()> {
        let Self { peers, bench, .. } = self;
        let mut batch = Vec::with_capacity(BATCH_DISTANCE);
        let batches = (bytes / peers.len() / (MESSAGES * MESSAGE)).max(1);
        for SitePeer { client, stock, .. } in peers {
            interrupt.check()?;
            (stock.batches, stock.sent) = (batches, 0);
            let (flow, now) = (Flow { source: (client.inner, PORT), destination: BEHIND }, Instant::now());
            for number in 0..batches {
                batch.clear();
                let segment = client.seal_for_later(flow, PACKET, MESSAGES, now, bench, &mut batch);
                ensure!((segment, batch.len()) == (MESSAGE, MESSAGES * MESSAGE), "a peer has no session");
                stock.messages.write_all_at(&batch, (number * BATCH_DISTANCE) as u64)?;
            }
            socket::set_segment(&client.socket, MESSAGE)?;
        }
        Ok(())
    }

    /// Returns the gateway, and what sends to it for a case: the sealed messages of each peer, and
    /// super-packets for each peer.
    pub(super) fn senders(&mut self, case: Case) -> (&Gateway, [Vec<Sender<'_>>; 2]) {
        let (gateway, mut uploads, mut downloads) = (&self.gateway, Vec::new(), Vec::new());
        for (number, SitePeer { client, shard, flows, stock }) in self.peers.iter_mut().enumerate() {
            if case.has_upload() {
                uploads.push(Sender { shard: *shard, what: What::Upload(&client.socket, stock) });
            }
            if let [Some(own), other] = flows
                && case.has_download()
            {
                let what = What::Download {
                    flows: [own, other.as_ref().unwrap_or(own)],
                    foreign: case.foreign.unwrap_or(0).into(),
                    // Each peer begins at another place, so that the foreign packets of all do not come
                    // together.
                    sent: number as u64 * 37,
                    gateway,
                };
                downloads.push(Sender { shard: *shard, what });
            }
        }
        (gateway, [uploads, downloads])
    }
}

/// What sends super-packets of one peer, or to it.
pub(super) struct Sender<'a> {
    /// The packet thread that handles what is sent.
    pub(super) shard: usize,
    what: What<'a>,
}

enum What<'a> {
    /// Sealed messages of the peer.
    Upload(&'a UdpSocket, &'a mut Stock),
    /// Super-packets to the peer, of which `foreign` percent go into the second flow.
    Download { flows: [&'a UdpSocket; 2], foreign: u64, sent: u64, gateway: &'a Gateway },
}

impl Sender<'_> {
    /// Sends the next super-packet, and returns the number of its packets; `None` if there is none left.
    pub(super) fn send(&mut self) -> std::io::Result<Option<u64>> {
        match &mut self.what {
            What::Upload(_, Stock { batches, sent, .. }) if *sent == *batches => Ok(None),
            What::Upload(socket, Stock { messages, sent, .. }) => {
                match socket::send_file(socket, messages, *sent * BATCH_DISTANCE, MESSAGES * MESSAGE) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Some(0)),
                    result => result?,
                }
                *sent += 1;
                Ok(Some(MESSAGES as u64))
            }
            What::Download { flows, foreign, sent, gateway } => {
                // Evenly spread.
                let is_foreign = (*sent + 1) * *foreign / 100 > *sent * *foreign / 100;
                *sent += 1;
                let flow = flows[usize::from(is_foreign)];
                socket::send_file(flow, &gateway.contents, 0, gateway.segments * PAYLOAD)?;
                Ok(Some(gateway.segments as u64))
            }
        }
    }
}
