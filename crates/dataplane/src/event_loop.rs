//! The event loop: two independent directions, timers and commands, each with a budget per turn.
//!
//! A turn never blocks. A direction that cannot continue has registered its waker; a direction that used up
//! its budget yields to the others and is called again at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::Sleep;
use weft_sched::LogLimit;
use weft_tun::{Tun, TunStatsSnapshot};
use weft_tunnel::{Change, ControlQueue, DropCounters, DropReason, Event, PublicKey, Tunnel};
use weft_udp::Udp;

use crate::capture::Captures;
use crate::commands::LongCommand;
use crate::inbound::Inbound;
use crate::initiation_filter::InitiationFilter;
use crate::junk_filter::JunkFilter;
use crate::outbound::Outbound;
use crate::parts::{Observer, Parts, Turn};
use crate::siblings::Siblings;
use crate::timing::{Stage, TurnClock, x25519_time};
use crate::{
    Command, DataplaneError, MovedPeer, OnEvent, OnSockets, PacketThread, QueueDepths, SendFailure, Snapshot,
};

/// Maximum number of handshake messages and keepalives that wait for the socket.
const CONTROL_SLOTS: usize = 256;
/// Number of turns that a whole queue of a TUN takes, of 1,000 packets of 1,500 bytes.
const LAST_TURNS: usize = 32;

/// Moves packets between one TUN and one pair of sockets through one tunnel.
pub struct EventLoop<T, U, S> {
    pub(super) tunnel: Tunnel,
    pub(super) tun: T,
    pub(super) udp: U,
    pub(super) control: ControlQueue,
    outbound: Outbound,
    inbound: Inbound,
    junk_filter: JunkFilter,
    initiation_filter: InitiationFilter,
    commands: mpsc::Receiver<Command>,
    /// The unfinished part of a command. No other command is taken until it is done.
    unfinished: Option<LongCommand>,
    on_event: Option<OnEvent>,
    on_sockets: Option<OnSockets>,
    timer: Pin<Box<Sleep>>,
    armed_for: Option<Instant>,
    /// The newest datagram that could not be sent.
    send_failure: Option<SendFailure>,
    tun_stats: S,
    clock: TurnClock,
    captures: Captures,
    /// The connections to the other packet threads of the interface, if there are any.
    siblings: Option<Siblings>,
    moved_limit: LogLimit,
    failed_limit: LogLimit,
}

impl<T: Tun, U: Udp, S: Fn() -> Vec<TunStatsSnapshot>> EventLoop<T, U, S> {
    /// Creates an event loop over `tun` and `udp`; `tun_stats` reads the counters of each queue of the TUN.
    /// Must be called inside a runtime with time enabled.
    pub fn new(tunnel: Tunnel, tun: T, udp: U, commands: mpsc::Receiver<Command>, tun_stats: S) -> Self {
        let socket_bytes = udp.features().wanted_receive_buffer_bytes;
        Self {
            tunnel,
            tun,
            udp,
            control: ControlQueue::new(CONTROL_SLOTS),
            outbound: Outbound::new(),
            inbound: Inbound::new(usize::try_from(socket_bytes).unwrap_or(usize::MAX)),
            junk_filter: JunkFilter::default(),
            initiation_filter: InitiationFilter::default(),
            commands,
            unfinished: None,
            on_event: None,
            on_sockets: None,
            timer: Box::pin(tokio::time::sleep(std::time::Duration::ZERO)),
            armed_for: None,
            send_failure: None,
            tun_stats,
            clock: TurnClock::new(),
            captures: Captures::default(),
            siblings: None,
            moved_limit: LogLimit::default(),
            failed_limit: LogLimit::default(),
        }
    }

    /// Makes this event loop one of several of an interface.
    pub fn join(&mut self, siblings: Siblings) {
        self.siblings = Some(siblings);
    }

    /// Reports events of peers to `on_event`.
    pub fn report_events(&mut self, on_event: Option<OnEvent>) {
        self.on_event = on_event;
    }

    /// Hands new sockets to `on_sockets`, before anything is sent through them.
    pub fn report_sockets(&mut self, on_sockets: OnSockets) {
        self.on_sockets = Some(on_sockets);
    }

    /// Applies changes to the tunnel before it runs.
    pub fn configure(&mut self, changes: Vec<Change>) {
        let now = Instant::now();
        for change in changes {
            let _void = self.tunnel.apply(change, now);
        }
    }

    /// Runs until a command ends it or the device is gone. Packets that were sent before [`Command::Stop`]
    /// still leave, such as the reset of a connection that ends with the interface.
    pub async fn run(mut self) -> Result<(), DataplaneError> {
        // A turn has its own budgets, and the runtime has no other task that could starve.
        let last_turns = tokio::task::unconstrained(poll_fn(|cx| self.poll_turn(cx))).await?;
        for _ in 0..last_turns {
            // The runtime looks at its descriptors before it goes on.
            tokio::task::yield_now().await;
            let now = self.clock.begin();
            let last = poll_fn(|cx| Poll::Ready(self.captured_packets(cx, now)));
            // The device may be gone by now.
            if !matches!(tokio::task::unconstrained(last).await, Ok(Turn::Busy)) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of turns to the end once a command ends it.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, DataplaneError>> {
        let now = self.clock.begin();
        if let Poll::Ready(last_turns) = self.commands(cx, now) {
            return Poll::Ready(Ok(last_turns));
        }
        let packets = self.captured_packets(cx, now)?;
        self.log_events(now);
        self.arm_timer(cx, now);
        let is_busy = self.unfinished.is_some() || packets == Turn::Busy;
        self.clock.end(is_busy);
        if is_busy {
            cx.waker().wake_by_ref();
            // Lets other threads run on this core now instead of at the next scheduler tick (every 1 to
            // 10 ms): under load the other end of a connection waits for this core, and everything else
            // behind it.
            std::thread::yield_now();
        }
        Poll::Pending
    }

    /// Moves packets past the captures.
    fn captured_packets(&mut self, cx: &mut Context<'_>, now: Instant) -> Result<Turn, DataplaneError> {
        if !self.captures.is_on() {
            return self.packets(cx, now, &mut ());
        }
        let mut captures = std::mem::take(&mut self.captures);
        captures.set_port(self.udp.port());
        let packets = self.packets(cx, now, &mut captures);
        captures.turn(cx, matches!(packets, Ok(Turn::Idle)));
        self.captures = captures;
        packets
    }

    /// Moves packets both ways, handshakes before data.
    fn packets(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        observer: &mut impl Observer,
    ) -> Result<Turn, DataplaneError> {
        let Self { inbound, outbound, junk_filter, clock, tunnel, tun, udp, control, send_failure, .. } =
            self;
        let siblings = self.siblings.as_mut();
        let parts = &mut Parts { now, clock, tunnel, tun, udp, control, siblings, send_failure, observer };
        let handshakes = inbound.handshakes(cx, parts)?;
        parts.timers();
        parts.send_control(cx, junk_filter);
        let turns = [handshakes, inbound.turn(cx, parts)?, outbound.turn(cx, parts)?];
        parts.write_answers(cx)?;
        junk_filter.turn(now, parts.tunnel, parts.udp);
        let unread_at = parts.tunnel.handshake_load(now).unread_at;
        let Parts { tunnel, udp, .. } = parts;
        self.initiation_filter.turn(now, unread_at, *udp, || tunnel.calibrate(x25519_time()));
        // In this turn, packets without a session requested handshakes, and datagrams caused answers.
        parts.timers();
        parts.send_control(cx, junk_filter);
        let is_busy = turns.contains(&Turn::Busy)
            || parts.has_timers_left()
            || parts.tunnel.has_ready_staged() && !outbound.is_blocked();
        Ok(if is_busy { Turn::Busy } else { Turn::Idle })
    }

    /// Executes commands, a slice per turn. Returns the number of turns to the end on [`Command::Stop`] and
    /// [`Command::Leave`], or if no sender of commands is left.
    fn commands(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<usize> {
        loop {
            if let Some(command) = self.unfinished.take() {
                self.clock.begin_stage();
                let (times, busy_ns) = (self.clock.times(), self.clock.busy_ns());
                let (udp, tun) = (&self.udp, &self.tun_stats);
                let queues = QueueDepths { control: self.control.len(), ..self.outbound.depths() };
                let send_failure = self.send_failure;
                let handed_over_bytes = self.outbound.handed_over_bytes();
                let counters = |tunnel: &Tunnel, peers| {
                    let (udp_features, udp, tun_queues) = (udp.features(), udp.stats(), tun());
                    let tun = tun_queues.iter().copied().sum();
                    let handshakes = tunnel.handshake_load(now);
                    let (tunnel, drops) = (tunnel.stats().clone(), drops(tunnel, &tun));
                    let times = times.clone();
                    let packet_thread = PacketThread {
                        peers: Vec::len(&peers),
                        busy_ns,
                        sealed: tunnel.sealed,
                        opened: tunnel.opened,
                        handed_over_bytes,
                    };
                    Snapshot {
                        udp,
                        udp_features,
                        tunnel,
                        drops,
                        peers,
                        tun,
                        tun_queues,
                        queues,
                        times,
                        send_failure,
                        handshakes,
                        packet_threads: vec![packet_thread],
                        moves: 0,
                    }
                };
                self.unfinished = command.turn(&mut self.tunnel, now, counters);
                self.clock.end_stage(Stage::Commands);
                if self.unfinished.is_some() {
                    return Poll::Pending;
                }
            }
            match ready!(self.commands.poll_recv(cx)) {
                Some(Command::Snapshot { peers, answer }) => {
                    self.unfinished = Some(LongCommand::Snapshot { place: 0, peers, answer });
                }
                Some(Command::Change { changes, answer }) => {
                    self.unfinished = Some(LongCommand::Change { rest: changes.into_iter(), answer });
                }
                Some(Command::Rebind { port, fwmark, answer }) => {
                    let before = self.udp.port();
                    let bound = self.udp.rebind(port, fwmark);
                    if let Some(on_sockets) = self.on_sockets.as_mut().filter(|_| self.udp.port() != before) {
                        on_sockets(self.udp.descriptors());
                    }
                    let _ = answer.try_send(bound);
                }
                Some(Command::Open { config, shards, answer }) => {
                    let _ = answer.try_send(weft_udp::open_shards(Vec::new(), &config, shards));
                }
                Some(Command::Replace { sockets, answer }) => {
                    let replaced = sockets.map_or(Ok(()), |sockets| self.udp.replace(*sockets));
                    let _ = answer.try_send(replaced);
                }
                Some(Command::Sockets { answer }) => {
                    let _ = answer.try_send(self.udp.descriptors());
                }
                Some(Command::Capture { tap, answer }) => {
                    let _ = answer.try_send(tap.is_none_or(|tap| self.captures.add(*tap)));
                }
                Some(Command::Load { answer }) => {
                    let _ = answer.try_send(self.clock.busy_ns());
                }
                Some(Command::TakePeer { peer, to, answer }) => {
                    let _ = answer.try_send(self.take_peer(cx, now, &peer, to));
                }
                Some(Command::PeerMoved { peer, to, moved, answer }) => {
                    self.peer_moved(now, &peer, to, moved);
                    let _ = answer.try_send(());
                }
                Some(Command::Ping { answer }) => {
                    let _ = answer.try_send(());
                }
                Some(Command::Leave) => return Poll::Ready(0),
                Some(Command::Stop) | None => return Poll::Ready(LAST_TURNS),
            }
        }
    }

    /// Takes out a peer, which goes to another packet thread. What was opened for it is in the kernel, so
    /// that the other thread overtakes nothing.
    fn take_peer(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        peer: &PublicKey,
        to: u16,
    ) -> Option<Box<MovedPeer>> {
        let Poll::Ready(Ok(())) = self.tun.poll_send_ready(cx) else { return None };
        let peer = self.tunnel.take_peer(peer, to, now, self.outbound.queue())?;
        Some(Box::new(MovedPeer { peer, flows: self.tun.flow_queues() }))
    }

    /// Takes over a peer that moved here, or notes where it went.
    fn peer_moved(&mut self, now: Instant, peer: &PublicKey, to: u16, moved: Option<Box<MovedPeer>>) {
        let Some(moved) = moved else { return self.tunnel.foreign_peer_moved(peer, to) };
        if let Some(flows) = &moved.flows {
            self.tun.inherit_flow_queues(flows);
        }
        self.tunnel.adopt_peer(moved.peer, now, self.outbound.queue());
    }

    fn arm_timer(&mut self, cx: &mut Context<'_>, now: Instant) {
        let deadline = self.tunnel.poll_timeout().map(|(at, _)| at);
        // Timers that are due and not handled wait for the control queue: either the socket wakes the loop,
        // or the loop is busy.
        let deadline = deadline.filter(|at| *at > now);
        let deadline = [deadline, self.inbound.deadline()].into_iter().flatten().min();
        let Some(deadline) = deadline else {
            self.armed_for = None;
            return;
        };
        if self.armed_for != Some(deadline) {
            self.timer.as_mut().reset(deadline.into());
            self.armed_for = Some(deadline);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            self.armed_for = None;
            cx.waker().wake_by_ref();
        }
    }

    fn log_events(&mut self, now: Instant) {
        while let Some(event) = self.tunnel.poll_event() {
            if let Some(on_event) = &mut self.on_event {
                on_event(event);
            }
            match event {
                Event::HandshakeComplete { peer } => tracing::debug!(%peer, "handshake complete"),
                Event::HandshakeUnanswered { peer, initiations } => {
                    tracing::debug!(%peer, initiations, "no answer to handshakes so far");
                }
                Event::HandshakeFailed { peer } => {
                    if let Some(left_out) = self.failed_limit.allow(now) {
                        tracing::info!(
                            %peer,
                            left_out,
                            "no answer to handshakes for 90 s; trying again when there is something to send"
                        );
                    }
                }
                Event::EndpointChanged { peer, endpoint } => {
                    // The first knows its own: a message to itself could set an endpoint back.
                    if let Some(siblings) =
                        self.siblings.as_ref().filter(|_| self.tunnel.shard().number() > 0)
                    {
                        siblings.tell_endpoint(peer, endpoint);
                    }
                    if let Some(left_out) = self.moved_limit.allow(now) {
                        tracing::info!(%peer, %endpoint, left_out, "peer is at a new endpoint");
                    }
                }
            }
        }
    }
}

fn drops(tunnel: &Tunnel, tun: &TunStatsSnapshot) -> DropCounters {
    let mut drops = tunnel.drops().clone();
    drops.add(DropReason::TunWriteFailed, tun.write_failures);
    drops.add(DropReason::MalformedPacket, tun.malformed_reads);
    drops
}
