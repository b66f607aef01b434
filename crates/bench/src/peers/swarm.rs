//! Many clients on one thread, by epoll.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use weft_tunnel::PublicKey;

use super::client::{Client, MTU, Workbench};
use super::ledger::Ledger;
use super::packet::{HEADERS, STAMP, Stamp};
use super::roster::Roster;
use super::turns::{LOST, PAUSE, Turns};
use crate::interrupt::Interrupt;

/// Ports of the gateway: two that only listen, the second one to whoever floods, and one that answers.
pub(super) const SINK: u16 = 4000;
pub(super) const HEAVY_SINK: u16 = 4003;
pub(super) const ECHO: u16 = 4001;
/// Where the clients listen.
pub(super) const CLIENT: u16 = 4002;
/// How often the timers of all clients are looked at.
const TIMERS: Duration = Duration::from_millis(20);
/// Bursts between two looks at what has arrived.
const BURSTS: u32 = 32;
/// A ping without an answer.
const PING_LOST: Duration = Duration::from_millis(500);
/// Between an answer and the next ping.
const PING_PAUSE: Duration = Duration::from_millis(1);
const EVENTS: usize = 256;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of an inner packet.
    pub(super) bytes: usize,
    /// Packets that a peer sends, or is sent, one behind the other.
    pub(super) burst: u64,
    /// Packets that may be on their way, all peers together.
    pub(super) window: u64,
    /// Where clients send to.
    pub(super) port: u16,
}

impl Shape {
    /// Bytes of a packet of 1,400: what a full TCP segment has.
    pub(super) fn full(burst: u64, window: u64) -> Self {
        Self { bytes: 1400, burst, window, port: SINK }
    }

    /// UDP payload of a packet.
    pub(super) fn payload(self) -> usize {
        self.bytes.clamp(HEADERS + STAMP, MTU.into()) - HEADERS
    }
}

/// Clients that share a thread.
pub(super) struct Swarm {
    clients: Vec<Client>,
    epoll: Epoll,
    bench: Workbench,
    timers_at: Instant,
}

/// How long the pings of one client took, and how many had no answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Pings {
    pub(super) millis: Vec<f64>,
    pub(super) lost: u64,
}

impl Swarm {
    /// These peers of the roster. Has to be called in the clients' namespace; what the swarm does later can be done
    /// anywhere.
    pub(super) fn new(roster: &Roster, peers: Range<usize>) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let gateway: PublicKey = roster.gateway.public_key();
        let mut clients = Vec::with_capacity(peers.len());
        for number in peers {
            let key = roster.active.get(number).context("there is no such peer")?;
            let client = Client::new(number, key, gateway)?;
            epoll.add(client.socket(), EpollEvent::new(EpollFlags::EPOLLIN, clients.len() as u64))?;
            clients.push(client);
        }
        Ok(Self { clients, epoll, bench: Workbench::new(), timers_at: Instant::now() })
    }

    /// How many clients there are.
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Begins a handshake with each client at once, and gives how long the slowest took, and the half of them. An
    /// error if some took longer than `limit`.
    pub(super) fn shake_hands(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let nobody = Ledger::new(0, 0);
        for number in 0..self.clients.len() {
            let stamp = Stamp { run: 0, lane: 0, number: 0 };
            let now = Instant::now();
            self.clients[number].send((CLIENT, SINK), HEADERS + STAMP, stamp, 1, now, &mut self.bench)?;
            if number % BURSTS as usize == 0 {
                self.serve(Duration::ZERO, &nobody, |_| {})?;
            }
        }
        let mut half = None;
        loop {
            let done = self.clients.iter().filter(|client| client.has_session()).count();
            if 2 * done >= self.clients.len() {
                half.get_or_insert_with(|| start.elapsed());
            }
            if done == self.clients.len() {
                let all = start.elapsed();
                return Ok((half.unwrap_or(all), all));
            }
            interrupt.check()?;
            let left = self.clients.len() - done;
            anyhow::ensure!(start.elapsed() < limit, "{left} handshakes are not done after {limit:?}");
            self.serve(Duration::from_millis(5), &nobody, |_| {})?;
        }
    }

    /// Sends to the gateway until it has to stop: each of the first `count` clients a burst in turn, as long as less
    /// than the window is on its way; or whatever the socket takes.
    pub(super) fn upload(
        &mut self,
        count: usize,
        shape: Shape,
        is_flood: bool,
        ledger: &Ledger,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let bytes = shape.payload() + HEADERS;
        let count = count.clamp(1, self.clients.len());
        let mut turns = Turns::new(shape, count, is_flood);
        let mut bursts = 0_u32;
        while !stop.load(Relaxed) {
            let Some(lane) = turns.next(ledger) else {
                self.serve(Duration::ZERO, ledger, |_| {})?;
                std::thread::sleep(PAUSE);
                continue;
            };
            if bursts.is_multiple_of(BURSTS) {
                self.serve(Duration::ZERO, ledger, |_| {})?;
            }
            bursts = bursts.wrapping_add(1);
            let number = ledger.send(lane, shape.burst);
            let stamp = Stamp { run: ledger.run(), lane: lane as u32, number };
            let (ports, now) = ((CLIENT, shape.port), Instant::now());
            self.clients[lane].send(ports, bytes, stamp, shape.burst, now, &mut self.bench)?;
        }
        Ok(())
    }

    /// Takes what arrives until it has to stop.
    pub(super) fn listen(&mut self, ledger: &Ledger, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Relaxed) {
            self.serve(Duration::from_millis(5), ledger, |_| {})?;
        }
        Ok(())
    }

    /// The clients ping the gateway in turn, one ping after the other. Those that are sent before `counts_from` do not count:
    /// what a load does when it begins is not what it does as it stays.
    pub(super) fn ping(
        &mut self,
        run: u32,
        counts_from: Instant,
        stop: &AtomicBool,
    ) -> io::Result<Vec<Pings>> {
        let nobody = Ledger::new(0, 0);
        let mut pings = vec![Pings::default(); self.clients.len()];
        for (number, lane) in (0..).zip((0..self.clients.len()).cycle()) {
            if stop.load(Relaxed) {
                break;
            }
            let stamp = Stamp { run, lane: lane as u32, number };
            let start = Instant::now();
            self.clients[lane].send((CLIENT, ECHO), 92, stamp, 1, start, &mut self.bench)?;
            let mut answered = None;
            while answered.is_none() && start.elapsed() < PING_LOST {
                self.serve(Duration::from_millis(1), &nobody, |echo| {
                    if echo == stamp {
                        answered = Some(start.elapsed());
                    }
                })?;
            }
            match answered {
                _ if start < counts_from => {}
                Some(time) => pings[lane].millis.push(time.as_secs_f64() * 1000.0),
                None => pings[lane].lost += 1,
            }
            std::thread::sleep(PING_PAUSE);
        }
        Ok(pings)
    }

    /// Waits for at most so long, takes what has arrived and does what is due. Answers to pings are shown to `echo`.
    fn serve(&mut self, wait: Duration, ledger: &Ledger, mut echo: impl FnMut(Stamp)) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let wait = EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO);
        let ready = match self.epoll.wait(&mut events, wait) {
            Err(nix::errno::Errno::EINTR) => 0,
            result => result?,
        };
        let now = Instant::now();
        for event in &events[..ready] {
            let lane = event.data() as usize;
            let Some(client) = self.clients.get_mut(lane) else { continue };
            client.receive(now, &mut self.bench, |port, payload| {
                // An answer comes to the port that asked; what is sent to a client carries its lane.
                if let (CLIENT, Some(stamp)) = (port, Stamp::read(payload)) {
                    ledger.arrived(stamp.run, stamp.lane as usize, stamp.number);
                    echo(stamp);
                }
            })?;
        }
        if now >= self.timers_at {
            self.timers_at = now + TIMERS;
            for client in &mut self.clients {
                client.timers(now, &mut self.bench)?;
            }
        }
        Ok(())
    }

    /// Where the clients are reached in the tunnel.
    pub(super) fn inner(&self) -> Vec<std::net::Ipv4Addr> {
        self.clients.iter().map(|client| client.inner).collect()
    }
}

/// Waits until nothing arrives any more, or everything has.
pub(super) fn drain(ledger: &Ledger) {
    let (mut arrived, mut since) = (ledger.arrived_so_far(), Instant::now());
    while ledger.arrived_so_far() < ledger.totals().sent && since.elapsed() < LOST {
        std::thread::sleep(Duration::from_millis(2));
        let now = ledger.arrived_so_far();
        if now != arrived {
            (arrived, since) = (now, Instant::now());
        }
    }
}
