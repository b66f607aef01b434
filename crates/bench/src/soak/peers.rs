//! Peers that come, exchange packets with an echo behind the gateway, roam, and go.
//!
//! A peer is added over UAPI when it comes and removed when it goes. It has one packet on its way, and every
//! answer has to be the one to its last packet.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::Ipv4Net;
use nix::sys::socket::{setsockopt, sockopt};
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange};
use weft_lab::client::{Client, HEADERS, STAMP, Stamp, Workbench};

use super::STALL;
use super::site::Site;
use crate::peers::gateway::inner;
use crate::site::{GATEWAY, to_gateway};
use crate::worker::Worker;

const ECHO: u16 = 4100;
const ECHO_BUFFER: usize = 32 << 20;
const TICK: Duration = Duration::from_millis(100);
const SEND_EVERY: Duration = Duration::from_millis(200);
const SHORTEST_STAY: Duration = Duration::from_secs(20);
const LONGEST_ABSENCE: Duration = Duration::from_secs(8);
const ROAM_EVERY: Duration = Duration::from_secs(15);
const LOST: Duration = Duration::from_secs(2);
/// Sizes of the inner packets, in turn.
const SIZES: [usize; 5] = [100, 1420, 64, 900, 1300];

/// What the peers did and saw. Counters only rise.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) visits: u64,
    pub(super) roams: u64,
    pub(super) sent: u64,
    /// Packets without an answer, without those of a restart.
    pub(super) lost: u64,
    /// Answers that came after their packet was taken for lost.
    pub(super) late: u64,
    pub(super) faults: Vec<String>,
}

pub(super) struct Visitors {
    pub(super) seen: Seen,
    visitors: Vec<Visitor>,
    bench: Workbench,
    _echo: Worker<()>,
}

struct Visitor {
    number: usize,
    visits: usize,
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
    /// Since when a packet has no answer.
    awaited: Option<Instant>,
    is_answered: bool,
}

impl Visitors {
    /// Creates the peers, which come one by one within `ramp`.
    pub(super) fn start(site: &Site, ramp: Duration) -> Result<Self> {
        let socket = site.networks.inside.run(|| UdpSocket::bind((GATEWAY, ECHO)))?;
        // A packet of every peer fits, however late it is read.
        setsockopt(&socket, sockopt::RcvBufForce, &ECHO_BUFFER)?;
        socket.set_read_timeout(Some(TICK))?;
        let (start, count) = (Instant::now(), site.keys.len() as u32);
        let visitor = |number: u32| {
            let turn = start + ramp * number / count;
            Visitor { number: number as usize, visits: 0, turn, present: None }
        };
        let visitors = (0..count).map(visitor).collect();
        let _echo = Worker::start("echo", move |stop| echo(&socket, stop))?;
        Ok(Self { seen: Seen::default(), visitors, bench: Workbench::default(), _echo })
    }

    pub(super) fn step(&mut self, site: &Site) -> Result<()> {
        let Self { seen, visitors, bench, .. } = self;
        visitors.iter_mut().try_for_each(|visitor| visitor.step(site, seen, bench))
    }

    /// Notes that the daemon was restarted: what was on its way is not accounted for. One that crashed may
    /// have forgotten the peers of the last second.
    pub(super) fn restarted(&mut self, site: &Site, has_crashed: bool) -> Result<()> {
        for Visitor { number, present, .. } in &mut self.visitors {
            let Some(present) = present else { continue };
            present.next += u64::from(present.awaited.take().is_some());
            present.answered = Instant::now();
            if has_crashed {
                change(site, *number, false)?;
            }
        }
        Ok(())
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

impl Visitor {
    fn step(&mut self, site: &Site, seen: &mut Seen, bench: &mut Workbench) -> Result<()> {
        let now = Instant::now();
        let Self { number, visits, turn, .. } = *self;
        let is_due = now >= turn;
        match &mut self.present {
            None if is_due => {
                change(site, number, false)?;
                let place = number + visits * 11;
                self.visits += 1;
                self.turn = now + SHORTEST_STAY + spread(SHORTEST_STAY * 2, number * 7 + visits * 13);
                seen.visits += 1;
                self.present = Some(Present {
                    client: site.client(number, place)?,
                    answered: now,
                    roam: now + ROAM_EVERY,
                    place,
                    next: 0,
                    due: now,
                    looked: now,
                    awaited: None,
                    is_answered: false,
                });
            }
            None => {}
            Some(present) if is_due && present.is_idle() => {
                change(site, number, true)?;
                self.present = None;
                self.turn = now + spread(LONGEST_ABSENCE, number * 5 + visits * 3);
            }
            Some(present) => {
                if now >= present.roam && present.is_idle() {
                    present.place += 7;
                    present.client.roam(site.socket(present.place)?)?;
                    present.roam = now + ROAM_EVERY;
                    seen.roams += 1;
                }
                present.exchange(number as u32, visits as u32, seen, now, bench)?;
            }
        }
        Ok(())
    }
}

impl Present {
    /// Reports whether it has a session, and nothing is on its way.
    fn is_idle(&self) -> bool {
        self.is_answered && self.awaited.is_none()
    }

    /// Sends the next packet if it is due, and takes answers.
    fn exchange(
        &mut self,
        peer: u32,
        run: u32,
        seen: &mut Seen,
        now: Instant,
        bench: &mut Workbench,
    ) -> Result<()> {
        let stamp = Stamp { run, peer, number: self.next };
        let bytes = SIZES[self.next as usize % SIZES.len()];
        if self.awaited.is_none() && now >= self.due {
            self.client.send(to_gateway(&self.client, 4000, ECHO), bytes, stamp, 1, now, bench)?;
            (self.awaited, self.due) = (Some(now), now + SEND_EVERY);
            seen.sent += 1;
        }
        // One that expects nothing seldom looks for messages of the gateway.
        if self.awaited.is_none() && now < self.looked + TICK {
            return Ok(());
        }
        self.looked = now;
        let mut answers = 0;
        self.client.receive(now, bench, |_, payload| {
            let is_zero = payload.get(STAMP..).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
            match Stamp::read(payload) {
                Some(read) if read == stamp && is_zero && payload.len() == bytes - HEADERS => answers += 1,
                Some(read) if (read.peer, read.run) == (peer, run) && read.number < stamp.number => {
                    seen.late += 1;
                }
                read => seen.faults.push(format!("peer {peer} got {read:?} instead of {stamp:?}")),
            }
        })?;
        self.client.timers(now, bench)?;
        if answers > 1 {
            seen.faults.push(format!("peer {peer} got an answer {answers} times"));
        }
        // A packet that waits for the handshake is not on its way.
        self.awaited = self.awaited.map(|since| if self.client.has_session() { since } else { now });
        if answers > 0 && self.awaited.take().is_some() {
            (self.is_answered, self.answered) = (true, now);
            self.next += 1;
        } else if self.awaited.is_some_and(|since| now >= since + LOST) {
            self.awaited = None;
            seen.lost += 1;
            self.next += 1;
        }
        if now >= self.answered + STALL {
            seen.faults.push(format!("peer {peer} got no answer within {} s", STALL.as_secs()));
            self.answered = now;
        }
        Ok(())
    }
}

/// Returns a time up to `most` that differs from number to number.
fn spread(most: Duration, number: usize) -> Duration {
    most * (number % 16) as u32 / 16
}

fn change(site: &Site, number: usize, remove: bool) -> Result<()> {
    let mut change = PeerChange::new(site.keys[number].public_key());
    change.remove = remove;
    if !remove {
        change.allowed_ips = vec![AllowedIpChange::Add(Ipv4Net::from(inner(number)).into())];
    }
    let change = DeviceChange { peers: vec![change], ..DeviceChange::default() };
    Ok(weft_uapi::client::set(&site.interface.name, &change)?)
}
