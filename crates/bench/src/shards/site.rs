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
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::sendfile::sendfile;
use nix::sys::socket::{setsockopt, sockopt};
use weft::up::{Daemon, Options};
use weft_config::{PacketThreads, TunThreads};
use weft_lab::client::{Client, Flow, HEADERS, STAMP, Stamp, Workbench, socket};
use weft_lab::{Namespace, cpu};
use weft_tunnel::{MAX_BATCH_BYTES, PrivateKey};

use crate::interrupt::Interrupt;
use crate::peers::gateway::inner;
use crate::site::{self, GATEWAY, Interface, MTU, Net, Peer};

const LINK: Net = Net(0);
/// No host has it: forwarding is off, so the kernel drops what is for it.
const BEHIND: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 200, 0, 1), 9);
const PORT: u16 = 4002;
/// Begins the names of the packet threads.
const THREAD_NAME: &str = "packets";

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
const TICK: Duration = Duration::from_micros(100);
/// Flows that are tried until one is read by the wanted packet thread.
const FLOWS: u16 = 512;

/// A gateway with its packet threads.
pub(super) struct Gateway {
    daemon: Daemon,
    inside: Namespace,
    threads: Vec<i32>,
    /// Segments of the longest super-packet that its TUN takes, and their contents.
    segments: usize,
    contents: File,
}

impl Gateway {
    /// Returns the packets opened, and the packets sealed, by packet thread.
    pub(super) fn handled(&self) -> Result<[Vec<u64>; 2]> {
        let each = self.daemon.snapshot()?.packet_threads;
        Ok([
            each.iter().map(|thread| thread.opened).collect(),
            each.iter().map(|thread| thread.sealed).collect(),
        ])
    }

    /// Returns how many bytes were read by another packet thread than their peer's.
    fn handed_over_bytes(&self) -> Result<u64> {
        Ok(self.daemon.snapshot()?.packet_threads.iter().map(|thread| thread.handed_over_bytes).sum())
    }

    /// Returns the CPU time of the packet threads so far.
    pub(super) fn cpu(&self) -> Duration {
        cpu::Meter::new(self.threads.iter().copied()).total()
    }
}

/// A gateway with its peers, all of which have a session.
pub(super) struct Site {
    gateway: Gateway,
    peers: Vec<SitePeer>,
    bench: Workbench,
    _clients: Namespace,
}

struct SitePeer {
    client: Client,
    shard: usize,
    /// A socket in the gateway's namespace, connected to the peer.
    flow: Option<UdpSocket>,
    /// Sealed messages, in batches: how many there are, and how many of them are sent.
    messages: File,
    batches: usize,
    sent: usize,
}

impl Site {
    /// Starts a gateway with these numbers of packet threads and peers, and performs the handshakes.
    pub(super) fn start(packet_threads: NonZeroU16, peers: usize, interrupt: &Interrupt) -> Result<Self> {
        let (inside, clients) = (site::namespace("gateway")?, site::namespace("clients")?);
        LINK.join(&inside, &clients, 2)?;
        let (key, keys) = (site::key()?, site::keys(peers)?);
        let gateway = start(inside, packet_threads, &key, &keys)?;
        let mut site = Self { gateway, peers: Vec::new(), bench: Workbench::default(), _clients: clients };
        let mut by_shard = vec![0; usize::from(packet_threads.get())];
        for (number, own) in keys.iter().enumerate() {
            let socket = site._clients.run(|| socket::bind(LINK.v4(2), 0))?;
            let mut client = Client::over(socket, LINK.endpoint(1), inner(number), own, key.public_key())?;
            let shard = shake_hands(&site.gateway, &mut client, &mut site.bench, interrupt)?;
            by_shard[shard] += 1;
            let messages = memory_file()?;
            site.peers.push(SitePeer { client, shard, flow: None, messages, batches: 0, sent: 0 });
        }
        let spread = by_shard.iter().max().zip(by_shard.iter().min());
        ensure!(spread.is_some_and(|(most, fewest)| most - fewest <= 1), "peers by thread: {by_shard:?}");
        Ok(site)
    }

    /// Finds a flow to each peer that its packet thread reads, or that another one does. The kernel chooses
    /// the queue by a hash, so flows are tried one after the other.
    pub(super) fn find_flows(&mut self, foreign: bool, interrupt: &Interrupt) -> Result<()> {
        let Self { gateway, peers, .. } = self;
        for SitePeer { client, shard, flow, .. } in peers {
            for _ in 0..FLOWS {
                let address = (client.inner, PORT);
                let socket = gateway.inside.run(|| {
                    let socket = socket::bind(GATEWAY, 0)?;
                    socket.connect(address)?;
                    set_segment(&socket, PAYLOAD)?;
                    std::io::Result::Ok(socket)
                })?;
                let (handed_over, [_, sealed]) = (gateway.handed_over_bytes()?, gateway.handled()?);
                send_file(&socket, &gateway.contents, 0, gateway.segments * PAYLOAD)?;
                let wanted = sealed[*shard] + gateway.segments as u64;
                interrupt.wait_closely("a packet to a peer", PATIENCE, TICK, || {
                    let [_, sealed] = gateway.handled()?;
                    Ok((sealed[*shard] >= wanted).then_some(()))
                })?;
                if (gateway.handed_over_bytes()? > handed_over) == foreign {
                    *flow = Some(socket);
                    break;
                }
            }
            ensure!(flow.is_some(), "of {FLOWS} flows to a peer none is read by the wanted thread");
        }
        Ok(())
    }

    /// Seals messages of `bytes` bytes in total, in place of those that are left.
    pub(super) fn seal(&mut self, bytes: usize, interrupt: &Interrupt) -> Result<()> {
        let Self { peers, bench, .. } = self;
        let mut batch = Vec::with_capacity(BATCH_DISTANCE);
        let count = (bytes / peers.len() / (MESSAGES * MESSAGE)).max(1);
        for SitePeer { client, messages, batches, sent, .. } in peers {
            interrupt.check()?;
            (*batches, *sent) = (count, 0);
            let (flow, now) = (Flow { source: (client.inner, PORT), destination: BEHIND }, Instant::now());
            for number in 0..count {
                batch.clear();
                let segment = client.seal_for_later(flow, PACKET, MESSAGES, now, bench, &mut batch);
                ensure!((segment, batch.len()) == (MESSAGE, MESSAGES * MESSAGE), "a peer has no session");
                messages.write_all_at(&batch, (number * BATCH_DISTANCE) as u64)?;
            }
            set_segment(&client.socket, MESSAGE)?;
        }
        Ok(())
    }

    /// Returns the gateway, and what sends to it: the sealed messages of each peer, and super-packets for
    /// each peer.
    pub(super) fn senders(&mut self, upload: bool, download: bool) -> (&Gateway, [Vec<Sender<'_>>; 2]) {
        let (gateway, mut uploads, mut downloads) = (&self.gateway, Vec::new(), Vec::new());
        for SitePeer { client, shard, flow, messages, batches, sent } in &mut self.peers {
            if upload {
                let (step, bytes, left) = (BATCH_DISTANCE, MESSAGES * MESSAGE, Some((sent, *batches)));
                uploads.push(Sender {
                    shard: *shard,
                    socket: &client.socket,
                    file: messages,
                    step,
                    bytes,
                    left,
                });
            }
            if let (true, Some(socket)) = (download, flow) {
                let (file, bytes) = (&gateway.contents, gateway.segments * PAYLOAD);
                downloads.push(Sender { shard: *shard, socket, file, step: 0, bytes, left: None });
            }
        }
        (gateway, [uploads, downloads])
    }
}

fn start(inside: Namespace, count: NonZeroU16, key: &PrivateKey, peers: &[PrivateKey]) -> Result<Gateway> {
    let peers = peers.iter().enumerate();
    let peers = peers.map(|(number, key)| Peer::new(key.public_key(), inner(number), None)).collect();
    let file = Interface::new(key.clone(), Some(site::PORT), GATEWAY, peers)?.file();
    let config = weft_config::parse(&file, "gateway".as_ref(), "tun0".parse()?)?.config;
    let options = Options {
        packet_threads: PacketThreads::Fixed(count),
        tun_threads: TunThreads::Fixed(0),
        thread_name: THREAD_NAME.to_owned(),
        ..Options::default()
    };
    let before = cpu::threads()?;
    let endpoints = vec![None; config.peers.len()];
    let daemon = inside.run(|| Daemon::start(&config, &endpoints, &options, || ()))?;
    let opened = daemon.opened().context("the gateway has ended")?;
    ensure!(opened.offload.udp, "the kernel's TUN has no UDP segmentation (Linux 6.2)");
    let is_packet_thread = |thread: &i32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
        !before.contains(thread) && name.is_ok_and(|name| name.starts_with(THREAD_NAME))
    };
    let threads: Vec<i32> = cpu::threads()?.into_iter().filter(is_packet_thread).collect();
    ensure!(threads.len() == usize::from(count.get()), "{} packet threads run", threads.len());
    // A longer super-packet would be split by the kernel before weft reads it.
    let limit = weft::interface::queue_limits(MTU).gso_max_bytes.context("no limit of super-packets")?;
    let segments = (limit as usize - HEADERS) / PAYLOAD;
    let contents = memory_file()?;
    contents.set_len((segments * PAYLOAD) as u64)?;
    Ok(Gateway { daemon, inside, threads, segments, contents })
}

/// Performs the handshake of a peer, and returns its packet thread.
fn shake_hands(
    gateway: &Gateway,
    client: &mut Client,
    bench: &mut Workbench,
    interrupt: &Interrupt,
) -> Result<usize> {
    let flow = Flow { source: (client.inner, PORT), destination: BEHIND };
    let [before, _] = gateway.handled()?;
    client.send(flow, HEADERS + STAMP, Stamp::default(), 1, Instant::now(), bench)?;
    let shard = interrupt.wait_closely("a handshake with the gateway", PATIENCE, TICK, || {
        let now = Instant::now();
        client.timers(now, bench)?;
        client.receive(now, bench, |_, _| {})?;
        let [opened, _] = gateway.handled()?;
        Ok((0..opened.len()).find(|shard| opened[*shard] > before[*shard]))
    })?;
    // Nothing reads what arrives from now on: the kernel drops what this buffer does not hold.
    setsockopt(&client.socket, sockopt::RcvBuf, &1)?;
    Ok(shard)
}

pub(super) struct Sender<'a> {
    /// The packet thread that handles what is sent.
    pub(super) shard: usize,
    socket: &'a UdpSocket,
    /// What is sent: `bytes` bytes at every `step`.
    file: &'a File,
    step: usize,
    bytes: usize,
    /// How many were sent, and how many there are; `None` without an end.
    left: Option<(&'a mut usize, usize)>,
}

impl Sender<'_> {
    /// Sends the next super-packet, and returns the number of its packets; `None` if there is none left.
    pub(super) fn send(&mut self) -> std::io::Result<Option<u64>> {
        let number = match &self.left {
            Some((sent, all)) if **sent == *all => return Ok(None),
            Some((sent, _)) => **sent,
            None => 0,
        };
        match send_file(self.socket, self.file, number * self.step, self.bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Some(0)),
            result => result?,
        }
        if let Some((sent, _)) = &mut self.left {
            **sent += 1;
        }
        Ok(Some((self.bytes / if self.step > 0 { MESSAGE } else { PAYLOAD }) as u64))
    }
}

/// Lets the system calls of [`send_file`] send datagrams of `segment` bytes.
fn set_segment(socket: &UdpSocket, segment: usize) -> std::io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGsoSegment, &i32::try_from(segment).map_err(std::io::Error::other)?)?)
}

/// Sends `count` bytes of a file as datagrams of the length that the socket was given, with one call. The
/// kernel copies nothing, so the bytes stay as they are until they were received.
///
/// They have to begin at a page and fill no more than 16.
fn send_file(socket: &UdpSocket, file: &File, offset: usize, count: usize) -> std::io::Result<()> {
    let mut position = i64::try_from(offset).map_err(std::io::Error::other)?;
    let sent = sendfile(socket, file, Some(&mut position), count)?;
    if sent == count {
        Ok(())
    } else {
        Err(std::io::Error::other(format!("{sent} bytes of {count} were sent")))
    }
}

/// Creates a file in memory, for [`send_file`].
fn memory_file() -> std::io::Result<File> {
    Ok(memfd_create(c"weft-bench", MFdFlags::MFD_CLOEXEC)?.into())
}
