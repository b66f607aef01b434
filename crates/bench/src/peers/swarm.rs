//! Many clients on one thread, with epoll.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use weft_lab::client::{Client, HEADERS, STAMP, Stamp, Workbench};

use super::gateway::Roster;
use super::task::Task;
use super::{CLIENT, ECHO, SINK};
use crate::interrupt::Interrupt;
use crate::pacing::{Ledger, PAUSE};
use crate::site::to_gateway;

/// Interval at which the timers of all clients are checked.
const TIMERS: Duration = Duration::from_millis(20);
/// Bursts between two checks for received packets.
const BURSTS: u32 = 32;
const PING_LOST: Duration = Duration::from_millis(500);
/// Pause between an answer, or a timeout, and the next ping.
const PING_PAUSE: Duration = Duration::from_millis(1);
const EVENTS: usize = 256;

pub(super) struct Swarm {
    clients: Vec<Client>,
    epoll: Epoll,
    bench: Workbench,
    timers_at: Instant,
}

/// Round-trip times of one client's pings, and the number of unanswered ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Pings {
    pub(super) millis: Vec<f64>,
    pub(super) lost: u64,
}

impl Swarm {
    /// Creates clients for these peers of the roster. Call it in the clients' namespace; the other methods
    /// work in any namespace.
    pub(super) fn new(roster: &Roster, peers: Range<usize>) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut clients = Vec::with_capacity(peers.len());
        for number in peers {
            let client = roster.client(number)?;
            epoll.add(&client.socket, EpollEvent::new(EpollFlags::EPOLLIN, clients.len() as u64))?;
            clients.push(client);
        }
        Ok(Self { clients, epoll, bench: Workbench::default(), timers_at: Instant::now() })
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Starts the handshakes of all clients without a session at once. Returns how long the fastest half
    /// took, and all of them; an error if some took longer than `limit`.
    pub(super) fn shake_hands(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let no_peers = Ledger::new(0, 0);
        for number in 0..self.clients.len() {
            let stamp = Stamp::default();
            let now = Instant::now();
            self.send(number, SINK, HEADERS + STAMP, stamp, 1, now)?;
            if number % BURSTS as usize == 0 {
                self.serve(Duration::ZERO, &no_peers, |_| {})?;
            }
        }
        let mut half = None;
        loop {
            let done = self.clients.iter().filter(|client| !client.waits_for_session()).count();
            if 2 * done >= self.clients.len() {
                half.get_or_insert_with(|| start.elapsed());
            }
            if done == self.clients.len() {
                let all = start.elapsed();
                return Ok((half.unwrap_or(all), all));
            }
            interrupt.check()?;
            let missing = self.clients.len() - done;
            ensure!(start.elapsed() < limit, "{missing} handshakes are not done after {limit:?}");
            self.serve(Duration::from_millis(5), &no_peers, |_| {})?;
        }
    }

    /// Sends to the gateway: each of the first `count` clients one burst in turn, while less than the window
    /// is in flight; a flood sends without a window.
    pub(super) fn upload(&mut self, count: usize, task: Task<'_>) -> io::Result<()> {
        let Task { shape, ledger, port, .. } = task;
        let mut windows = task.windows(count.clamp(1, self.clients.len()));
        let mut bursts = 0_u32;
        while !task.is_over() {
            let Some(peer) = windows.next(ledger) else {
                self.serve(Duration::ZERO, ledger, |_| {})?;
                std::thread::sleep(PAUSE);
                continue;
            };
            if bursts.is_multiple_of(BURSTS) {
                self.serve(Duration::ZERO, ledger, |_| {})?;
            }
            bursts = bursts.wrapping_add(1);
            let number = ledger.send(peer, shape.burst);
            let stamp = Stamp { run: ledger.run(), peer: peer as u32, number };
            let (bytes, now) = (Task::PAYLOAD + HEADERS, Instant::now());
            self.send(peer, port, bytes, stamp, shape.burst, now)?;
        }
        Ok(())
    }

    pub(super) fn listen(&mut self, ledger: &Ledger, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Relaxed) {
            self.serve(Duration::from_millis(5), ledger, |_| {})?;
        }
        Ok(())
    }

    /// Lets the clients ping the gateway in turn, one ping at a time. Pings sent before `counts_from` do not
    /// count, to exclude the start of a load.
    pub(super) fn ping(
        &mut self,
        run: u32,
        counts_from: Instant,
        stop: &AtomicBool,
    ) -> io::Result<Vec<Pings>> {
        let no_peers = Ledger::new(0, 0);
        let mut pings = vec![Pings::default(); self.clients.len()];
        for (number, peer) in (0..).zip((0..self.clients.len()).cycle()) {
            if stop.load(Relaxed) {
                break;
            }
            let stamp = Stamp { run, peer: peer as u32, number };
            let start = Instant::now();
            self.send(peer, ECHO, 92, stamp, 1, start)?;
            let mut answered = None;
            while answered.is_none() && start.elapsed() < PING_LOST {
                self.serve(Duration::from_millis(1), &no_peers, |echo| {
                    if echo == stamp {
                        answered = Some(start.elapsed());
                    }
                })?;
            }
            match answered {
                _ if start < counts_from => {}
                Some(time) => pings[peer].millis.push(time.as_secs_f64() * 1000.0),
                None => pings[peer].lost += 1,
            }
            std::thread::sleep(PING_PAUSE);
        }
        Ok(pings)
    }

    fn send(
        &mut self,
        peer: usize,
        port: u16,
        bytes: usize,
        stamp: Stamp,
        count: u64,
        now: Instant,
    ) -> io::Result<()> {
        let client = &mut self.clients[peer];
        client.send(to_gateway(client, CLIENT, port), bytes, stamp, count, now, &mut self.bench)
    }

    /// Waits at most `wait` for readable sockets, receives, and handles timers. Calls `echo` with the stamp
    /// of each received packet.
    fn serve(&mut self, wait: Duration, ledger: &Ledger, mut echo: impl FnMut(Stamp)) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let wait = EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO);
        let ready = match self.epoll.wait(&mut events, wait) {
            Err(nix::errno::Errno::EINTR) => 0,
            result => result?,
        };
        let now = Instant::now();
        for event in &events[..ready] {
            let peer = event.data() as usize;
            let Some(client) = self.clients.get_mut(peer) else { continue };
            client.receive(now, &mut self.bench, |port, payload| {
                // An answer arrives at the port of the request; a packet to a client carries its peer.
                if let (CLIENT, Some(stamp)) = (port, Stamp::read(payload)) {
                    ledger.arrived(stamp.run, stamp.peer as usize, stamp.number);
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

    /// Returns the addresses in the tunnel of the first `count` clients.
    pub(super) fn inner(&self, count: usize) -> Vec<std::net::Ipv4Addr> {
        self.clients.iter().take(count).map(|client| client.inner).collect()
    }
}
