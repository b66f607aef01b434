//! Two endpoints and a link between them, in virtual time.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use weft_endpoint::{Chunk, Config, Endpoint, Event, Limits, PacketSink, StreamError, StreamId};
use weft_lab::emulator::Pipe;
use weft_tunnel::{Offload, PacketMut, TAILROOM};

/// A generator that depends on the seed alone.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.next(count) == 0
    }
}

/// Takes packets as the tunnel does, and splits super-packets as it does.
pub(crate) struct Sink {
    buffer: Vec<u8>,
    used: usize,
    pub(crate) segments: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

impl Sink {
    pub(crate) fn new(bytes: usize) -> Self {
        let buffer = vec![0xee; bytes];
        Self { buffer, used: 0, segments: Vec::new(), scratch: Vec::new() }
    }
}

impl PacketSink for Sink {
    fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..]
    }

    fn commit(&mut self, len: usize, offload: Offload) -> bool {
        let end = self.used + len + TAILROOM;
        if end > self.buffer.len() {
            return false;
        }
        let packet = PacketMut::new(&mut self.buffer[self.used..end], len, offload).unwrap();
        let segments = &mut self.segments;
        let before = segments.len();
        weft_tunnel::each_segment(&packet, &mut self.scratch, |segment| segments.push(segment.to_vec()));
        assert!(self.segments.len() > before, "the tunnel refused a packet");
        self.used = end;
        true
    }
}

/// What the link does besides what [`Pipe`] does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mischief {
    /// One packet in so many comes twice, or has a wrong bit.
    pub(crate) duplicate: u64,
    pub(crate) corrupt: u64,
}

/// Returns the ECN field of a packet.
pub(crate) fn ecn(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 4 { packet[1] & 3 } else { packet[1] >> 4 & 3 }
}

pub(crate) fn set_ecn(packet: &mut [u8], ecn: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = packet[1] & !3 | ecn;
        weft_tunnel::ip::write_ipv4_checksum(packet, 20);
    } else {
        packet[1] = packet[1] & !0x30 | ecn << 4;
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) pipes: [Pipe<Vec<u8>>; 2],
    pub(crate) random: Random,
    pub(crate) mischief: Mischief,
    pub(crate) mtu: usize,
    /// Packets arrive together if they are due within this time.
    pub(crate) batch: Duration,
    pub(crate) events: [Vec<Event>; 2],
    /// Packets that wait longer than this for the link are marked if they may be.
    pub(crate) mark: Option<Duration>,
    /// Nothing passes any more.
    pub(crate) is_cut: bool,
    /// The right edge of each window that was seen so far.
    edges: HashMap<(SocketAddr, SocketAddr), u64>,
}

pub(crate) fn address(end: usize, is_ipv4: bool) -> IpAddr {
    let text = match (end, is_ipv4) {
        (0, true) => "10.0.0.1",
        (0, false) => "fd00::1",
        (_, true) => "10.0.0.2",
        (_, false) => "fd00::2",
    };
    text.parse().unwrap()
}

pub(crate) fn config(end: usize) -> Config {
    Config {
        addresses: vec![address(end, true), address(end, false)],
        mtu: 1420,
        memory: 256 << 20,
        limits: Limits::default(),
        secret: [end as u8 + 1; 32],
    }
}

impl World {
    pub(crate) fn new(link: &str, seed: u64) -> Self {
        Self::with(link, seed, [config(0), config(1)])
    }

    pub(crate) fn with(link: &str, seed: u64, configs: [Config; 2]) -> Self {
        let now = Instant::now();
        let spec = format!("{link},seed={seed}").parse().unwrap();
        let mtu = usize::from(configs[0].mtu.max(configs[1].mtu));
        Self {
            now,
            start: now,
            ends: configs.map(|config| Endpoint::new(config, now)),
            pipes: [Pipe::new(&spec, 0), Pipe::new(&spec, 1)],
            random: Random(seed),
            mischief: Mischief::default(),
            mtu,
            batch: Duration::from_micros(50),
            events: [Vec::new(), Vec::new()],
            mark: None,
            is_cut: false,
            edges: HashMap::new(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Puts what both ends send on the link.
    fn transmit(&mut self) {
        for end in 0..2 {
            loop {
                let mut sink = Sink::new(70_000 + self.random.next(130_000) as usize);
                let is_full = self.ends[end].transmit(self.now, &mut sink);
                self.ends[end].check();
                assert!(!is_full || !sink.segments.is_empty(), "an empty sink is full");
                for packet in sink.segments {
                    assert!(packet.len() <= self.mtu, "{} bytes", packet.len());
                    if self.is_cut {
                        continue;
                    }
                    let mut copies = vec![packet];
                    if self.random.one_in(self.mischief.duplicate) {
                        copies.push(copies[0].clone());
                    }
                    for mut packet in copies {
                        if self.random.one_in(self.mischief.corrupt) {
                            let at = self.random.next(packet.len() as u64) as usize;
                            packet[at] ^= 1 << self.random.next(8);
                        }
                        if self.mark.is_some_and(|mark| self.pipes[end].wait(self.now) > mark)
                            && ecn(&packet) != 0
                        {
                            set_ecn(&mut packet, 3);
                        }
                        drop(self.pipes[end].enqueue(self.now, packet.len(), packet));
                    }
                }
                if !is_full {
                    break;
                }
            }
        }
    }

    /// Sends, then goes to the next thing that happens. Returns false if nothing ever does.
    pub(crate) fn step(&mut self) -> bool {
        self.transmit();
        let deadlines = self.ends.iter().filter_map(|end| end.poll_timeout());
        let arrivals = self.pipes.iter().filter_map(|pipe| pipe.next_deadline().map(|at| at + self.batch));
        let Some(next) = deadlines.chain(arrivals).min() else { return false };
        self.now = self.now.max(next);
        for end in 0..2 {
            let mut packets = Vec::new();
            while let Some(packet) = self.pipes[1 - end].due(self.now) {
                packets.push(packet);
            }
            if !packets.is_empty() {
                self.ends[end].handle_batch(packets.iter().map(Vec::as_slice), self.now);
                self.ends[end].check();
            }
            self.ends[end].handle_timeout(self.now);
            self.ends[end].check();
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push(event);
            }
            for stream in self.ends[end].streams() {
                let edge = stream.bytes_received + stream.receive_window;
                let before = self.edges.insert((stream.local, stream.peer), edge);
                assert!(before <= Some(edge), "a window has shrunk: {stream:?}");
            }
        }
        true
    }

    /// Steps until `done` says so. Panics after this much virtual time.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let until = self.now + limit;
        while !done(self) {
            assert!(self.now < until, "not done after {:?}: {:?}", self.elapsed(), self.states());
            assert!(self.step(), "nothing happens any more: {:?}", self.states());
        }
    }

    pub(crate) fn states(&self) -> Vec<Vec<weft_endpoint::StreamStats>> {
        self.ends.iter().map(|end| end.streams().collect()).collect()
    }

    /// Opens a connection from end 0 to a listener of end 1.
    pub(crate) fn connect(&mut self, is_ipv4: bool) -> [StreamId; 2] {
        let at = SocketAddr::new(address(1, is_ipv4), 80);
        let listener = self.ends[1].listen(at, 16).unwrap();
        let client = self.ends[0].connect(at, self.now).unwrap();
        let mut server = None;
        self.run(Duration::from_secs(300), |world| {
            server = server.or_else(|| world.ends[1].accept(listener));
            server.is_some() && world.events[0].contains(&Event::Connected(client))
        });
        [client, server.unwrap()]
    }
}

/// After how many bytes a stream repeats: a prime, so that no mistake by a power of two goes unseen.
const PERIOD: u64 = 65_521;

/// The bytes of a stream from a place on, at most 64 KiB.
pub(crate) fn content(stream: u64, at: u64) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Random(99);
        let period: Vec<u8> = (0..PERIOD).map(|_| random.next(256) as u8).collect();
        period.iter().cycle().take(2 * (64 << 10)).copied().collect()
    });
    &BYTES[((at + stream * 31_337) % PERIOD) as usize..][..64 << 10]
}

/// An application that writes `total` bytes, reads until the end, and checks what it reads.
#[derive(Clone, Debug)]
pub(crate) struct Application {
    pub(crate) id: StreamId,
    pub(crate) write: u64,
    pub(crate) total: u64,
    pub(crate) read: u64,
    pub(crate) has_ended: bool,
    pub(crate) error: Option<StreamError>,
    pub(crate) finished: bool,
    pub(crate) stream: u64,
    /// Bytes of a write, at most; 0: as many as there is room for.
    pub(crate) piece: u64,
    pub(crate) reads: bool,
}

impl Application {
    pub(crate) fn new(id: StreamId, total: u64, stream: u64) -> Self {
        Self {
            id,
            write: 0,
            total,
            read: 0,
            has_ended: false,
            error: None,
            finished: false,
            stream,
            piece: 0,
            reads: true,
        }
    }

    /// Does what can be done now. `peer` is the number of the stream that it reads.
    pub(crate) fn work(&mut self, end: &mut Endpoint, peer: u64, now: Instant) {
        while self.error.is_none() && self.write < self.total {
            match end.reserve(self.id) {
                Ok(Some(mut chunk)) => {
                    let mut left = self.total - self.write;
                    if self.piece > 0 {
                        left = left.min(self.piece);
                    }
                    let count = left.min(chunk.spare_mut().len() as u64);
                    chunk.fill(&content(self.stream, self.write)[..count as usize]);
                    self.write += count;
                    end.put(self.id, chunk, now).unwrap();
                }
                Ok(None) => break,
                Err(error) => self.error = Some(error),
            }
        }
        if self.write == self.total && !self.finished {
            self.finished = true;
            end.finish(self.id, now);
        }
        while self.reads && !self.has_ended {
            match end.take(self.id, now) {
                Ok(Some(chunk)) if chunk.is_empty() => self.has_ended = true,
                Ok(Some(chunk)) => {
                    self.check(&chunk, peer);
                    end.give_back(chunk);
                }
                Ok(None) => break,
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
    }

    fn check(&mut self, chunk: &Chunk, peer: u64) {
        let expected = &content(peer, self.read)[..chunk.len()];
        assert!(chunk.bytes() == expected, "{} bytes at {} of stream {peer}", chunk.len(), self.read);
        self.read += chunk.len() as u64;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.error.is_some() || (self.has_ended && self.finished)
    }
}

/// Lets two applications exchange these many bytes until both have everything or know that they have not.
pub(crate) fn exchange(
    world: &mut World,
    ids: [StreamId; 2],
    totals: [u64; 2],
    limit: Duration,
) -> [Application; 2] {
    let mut applications = [Application::new(ids[0], totals[0], 0), Application::new(ids[1], totals[1], 1)];
    exchange_with(world, &mut applications, limit);
    applications
}

pub(crate) fn exchange_with(world: &mut World, applications: &mut [Application; 2], limit: Duration) {
    exchange_until(world, applications, limit, |applications| applications.iter().all(Application::is_done));
}

pub(crate) fn exchange_until(
    world: &mut World,
    applications: &mut [Application; 2],
    limit: Duration,
    done: impl Fn(&[Application; 2]) -> bool,
) {
    world.run(limit, |world| {
        let now = world.now;
        for (end, application) in applications.iter_mut().enumerate() {
            application.work(&mut world.ends[end], 1 - end as u64, now);
        }
        done(applications)
    });
}
