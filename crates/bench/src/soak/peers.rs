//! Peers that come, exchange packets with an echo behind the gateway, roam, and go.
//!
//! A peer is added over UAPI when it comes and removed when it goes. It has one packet on its way, and every
//! answer has to be the one to its last packet.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::Ipv4Net;
use nix::sys::socket::{setsockopt, sockopt};
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_lab::Namespace;
use weft_uapi::client::UapiError;

use super::STALL;
use super::site::Peers;
use crate::peers::client::{Client, Workbench};
use crate::peers::gateway::inner;
use crate::peers::packet::{HEADERS, STAMP, Stamp};
use crate::site::GATEWAY;
use crate::worker::Worker;

const ECHO: u16 = 4100;
const ECHO_BUFFER: usize = 32 << 20;
const TICK: Duration = Duration::from_millis(4);
/// How often a peer that expects nothing looks for messages of the gateway.
const LOOK: Duration = Duration::from_millis(100);
const SEND_EVERY: Duration = Duration::from_millis(200);
const SHORTEST_STAY: Duration = Duration::from_secs(20);
const LONGEST_ABSENCE: Duration = Duration::from_secs(8);
const ROAM_EVERY: Duration = Duration::from_secs(15);
/// An answer after this time is lost.
const LOST: Duration = Duration::from_secs(2);
/// Sizes of the inner packets, in turn.
const SIZES: [usize; 5] = [100, 1420, 64, 900, 1300];

/// What the peers did and saw. Counters only rise.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) present: AtomicU64,
    pub(super) visits: AtomicU64,
    pub(super) roams: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) answered: AtomicU64,
    /// Packets without an answer, without those of a restart.
    pub(super) lost: AtomicU64,
    /// Answers that came after their packet was taken for lost.
    pub(super) late: AtomicU64,
    /// How many packets of which peer were lost since they were last asked for.
    losers: Mutex<BTreeMap<usize, u64>>,
    faults: Mutex<Vec<String>>,
    /// Changes of the interface wait while the daemon is restarted.
    is_down: AtomicBool,
    /// Rises when a restart begins, and when it is over: what was sent before is not accounted for after.
    period: AtomicU64,
    /// Rises when the daemon crashed and may have forgotten the last second.
    crashes: AtomicU64,
}

/// Running peers. They end when this is dropped.
pub(super) struct Visitors {
    pub(super) seen: Arc<Seen>,
    _workers: [Worker<()>; 2],
}

struct Visitor {
    number: usize,
    visits: u32,
    /// When it comes or goes.
    turn: Instant,
    present: Option<Present>,
}

struct Present {
    client: Client,
    /// When it got the last answer, or came.
    answered: Instant,
    roam: Instant,
    place: usize,
    next: u64,
    due: Instant,
    looked: Instant,
    awaited: Option<Awaited>,
    is_answered: bool,
    crashes: u64,
}

/// A packet without an answer.
#[derive(Clone, Copy)]
struct Awaited {
    since: Instant,
    period: u64,
}

impl Visitors {
    /// Starts all peers, one by one within `ramp`.
    pub(super) fn start(peers: &Peers, gateway: &Namespace, ramp: Duration) -> Result<Self> {
        let seen = Arc::<Seen>::default();
        let socket = gateway.run(|| UdpSocket::bind((GATEWAY, ECHO)))?;
        // A packet of every peer fits, however late it is read.
        setsockopt(&socket, sockopt::RcvBufForce, &ECHO_BUFFER)?;
        socket.set_read_timeout(Some(LOOK))?;
        let (peers, told) = (peers.clone(), Arc::clone(&seen));
        let visit = move |stop: &AtomicBool| {
            let _ = visit(&peers, ramp, &told, stop).inspect_err(|error| told.fault(format!("{error:#}")));
        };
        let _workers =
            [Worker::start("visitors", visit)?, Worker::start("echo", move |stop| echo(&socket, stop))?];
        Ok(Self { seen, _workers })
    }

    /// Notes that the daemon ends, and lets changes wait.
    pub(super) fn pause(&self) {
        self.seen.is_down.store(true, Relaxed);
        self.seen.period.fetch_add(1, Relaxed);
    }

    /// Notes that the daemon is back.
    pub(super) fn go_on(&self, has_crashed: bool) {
        self.seen.crashes.fetch_add(has_crashed.into(), Relaxed);
        self.seen.is_down.store(false, Relaxed);
    }

    /// Notes that the peers have had the time to make sessions with the daemon that came back.
    pub(super) fn settled(&self) {
        self.seen.period.fetch_add(1, Relaxed);
    }

    /// Returns the faults since the last call.
    pub(super) fn faults(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Seen {
    /// Returns how many packets of which peer were lost since the last call.
    pub(super) fn losers(&self) -> BTreeMap<usize, u64> {
        std::mem::take(&mut *self.losers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fault(&self, text: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

fn echo(socket: &UdpSocket, stop: &AtomicBool) {
    let mut packet = [0; 2048];
    while !stop.load(Relaxed) {
        if let Ok((len, source)) = socket.recv_from(&mut packet) {
            // The kernel refuses it where the interface is gone; the peer counts it as lost.
            let _ = socket.send_to(&packet[..len], source);
        }
    }
}

fn visit(peers: &Peers, ramp: Duration, seen: &Seen, stop: &AtomicBool) -> Result<()> {
    let mut bench = Workbench::new();
    let start = Instant::now();
    let count = peers.keys.len();
    let visitor = |number| {
        let turn = start + ramp * number as u32 / count as u32;
        Visitor { number, visits: 0, turn, present: None }
    };
    let mut visitors: Vec<Visitor> = (0..count).map(visitor).collect();
    while !stop.load(Relaxed) {
        for visitor in &mut visitors {
            visitor.step(peers, seen, &mut bench)?;
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

impl Visitor {
    fn step(&mut self, peers: &Peers, seen: &Seen, bench: &mut Workbench) -> Result<()> {
        let now = Instant::now();
        let is_down = seen.is_down.load(Relaxed);
        let Some(present) = &mut self.present else {
            if now >= self.turn && !is_down && change(peers, self.number, false)? {
                self.come(peers, seen, now)?;
            }
            return Ok(());
        };
        if now >= self.turn && !is_down && present.awaited.is_none() && present.is_answered {
            if change(peers, self.number, true)? {
                self.present = None;
                self.turn = now + spread(LONGEST_ABSENCE, self.number * 5 + self.visits as usize * 3);
                seen.present.fetch_sub(1, Relaxed);
            }
            return Ok(());
        }
        let crashes = seen.crashes.load(Relaxed);
        if present.crashes != crashes && !is_down {
            present.crashes = crashes;
            change(peers, self.number, false)?;
        }
        if now >= present.roam && present.is_answered && present.awaited.is_none() {
            present.place += 7;
            present.client.roam(peers.socket(present.place)?)?;
            present.roam = now + ROAM_EVERY;
            seen.roams.fetch_add(1, Relaxed);
        }
        present.exchange(self.number, self.visits, seen, now, bench)
    }

    fn come(&mut self, peers: &Peers, seen: &Seen, now: Instant) -> Result<()> {
        self.visits += 1;
        let place = self.number + self.visits as usize * 11;
        self.present = Some(Present {
            client: peers.client(self.number, place)?,
            answered: now,
            roam: now + ROAM_EVERY,
            place,
            next: 0,
            due: now,
            looked: now,
            awaited: None,
            is_answered: false,
            crashes: seen.crashes.load(Relaxed),
        });
        self.turn =
            now + SHORTEST_STAY + spread(SHORTEST_STAY * 2, self.number * 7 + self.visits as usize * 13);
        seen.visits.fetch_add(1, Relaxed);
        seen.present.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Present {
    /// Sends the next packet if it is due, and takes answers.
    fn exchange(
        &mut self,
        number: usize,
        visit: u32,
        seen: &Seen,
        now: Instant,
        bench: &mut Workbench,
    ) -> Result<()> {
        let stamp = Stamp { run: visit, peer: number as u32, number: self.next };
        let bytes = SIZES[self.next as usize % SIZES.len()];
        if self.awaited.is_none() && now >= self.due {
            self.client.send((4000, ECHO), bytes, stamp, 1, now, bench)?;
            self.awaited = Some(Awaited { since: now, period: seen.period.load(Relaxed) });
            self.due = now + SEND_EVERY;
            seen.sent.fetch_add(1, Relaxed);
        }
        if self.awaited.is_none() && now < self.looked + LOOK {
            return Ok(());
        }
        self.looked = now;
        let mut answers = 0;
        self.client.receive(now, bench, |_, payload| {
            let is_zero = payload.get(STAMP..).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
            match Stamp::read(payload) {
                Some(read) if read == stamp && is_zero && payload.len() == bytes - HEADERS => answers += 1,
                Some(read) if read.peer == stamp.peer && read.run == visit && read.number < stamp.number => {
                    seen.late.fetch_add(1, Relaxed);
                }
                read => seen.fault(format!("peer {number} got {read:?} instead of {stamp:?}")),
            }
        })?;
        self.client.timers(now, bench)?;
        if let Some(awaited) = &mut self.awaited
            && !self.client.has_session()
        {
            // It waits for the handshake.
            awaited.since = now;
        }
        match self.awaited {
            Some(_) if answers > 0 => {
                if answers > 1 {
                    seen.fault(format!("peer {number} got an answer {answers} times"));
                }
                seen.answered.fetch_add(1, Relaxed);
                (self.awaited, self.is_answered, self.answered) = (None, true, now);
                self.next += 1;
            }
            Some(Awaited { since, period }) if now >= since + LOST => {
                if period == seen.period.load(Relaxed) {
                    seen.lost.fetch_add(1, Relaxed);
                    *seen.losers.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_default() +=
                        1;
                }
                self.awaited = None;
                self.next += 1;
            }
            _ => {}
        }
        if now >= self.answered + STALL {
            let has_session = self.client.has_session();
            seen.fault(format!("peer {number} got no answer within {} s ({has_session})", STALL.as_secs()));
            self.answered = now;
        }
        Ok(())
    }
}

/// Returns a time up to `most` that differs from number to number.
fn spread(most: Duration, number: usize) -> Duration {
    most * (number % 16) as u32 / 16
}

/// Adds a peer over UAPI, or removes it. Returns false if no daemon answers, as during a restart.
fn change(peers: &Peers, number: usize, remove: bool) -> Result<bool> {
    let mut change = PeerChange::new(peers.keys[number].public_key());
    change.remove = remove;
    if !remove {
        change.allowed_ips = vec![AllowedIpChange::Add(Ipv4Net::from(inner(number)).into())];
    }
    let change = DeviceChange { peers: vec![change], ..DeviceChange::default() };
    match weft_uapi::client::set(&peers.interface, &change) {
        Ok(()) => Ok(true),
        Err(UapiError::NotRunning { .. } | UapiError::NotOurs { .. } | UapiError::Broken { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
