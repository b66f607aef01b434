//! Commands to the event loops from other threads.

use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc as async_mpsc;
use weft_dataplane::{Command, Snapshot, capture};
use weft_tunnel::{Change, PublicKey};
use weft_udp::{self as udp, BindError, UdpConfig};

use crate::Ended;
use crate::balance::Balance;
use crate::placement::Placement;

/// Capacity of the channel of commands to an event loop.
const COMMANDS: usize = 64;

/// A handle for sending commands to the packet threads of an interface. Its calls wait for the event loops,
/// usually a fraction of a millisecond; they must not be made from within a tokio runtime.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The event loops, in order. There is at least one.
    event_loops: Vec<EventLoopHandle>,
    /// What several event loops share; `None` if there is one.
    shared: Option<Arc<Mutex<Shared>>>,
}

#[derive(Clone, Debug)]
struct EventLoopHandle(async_mpsc::Sender<Command>);

#[derive(Debug)]
struct Shared {
    placement: Placement,
    balance: Balance,
    /// Peers that moved between event loops so far.
    moves: u64,
    /// The sockets in use.
    udp: UdpConfig,
}

impl Shared {
    fn new(count: usize, udp: UdpConfig) -> Self {
        Self { placement: Placement::new(count), balance: Balance::default(), moves: 0, udp }
    }
}

/// An answer that an event loop will give.
struct Awaited<T>(mpsc::Receiver<T>);

impl<T> Awaited<T> {
    fn wait(self) -> Result<T, Ended> {
        self.0.recv().map_err(|_| Ended)
    }
}

impl EventLoopHandle {
    /// Sends a command with an answer.
    fn ask<T>(&self, command: impl FnOnce(mpsc::SyncSender<T>) -> Command) -> Result<Awaited<T>, Ended> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.0.blocking_send(command(answer)).map_err(|_| Ended)?;
        Ok(Awaited(answered))
    }
}

impl Handle {
    /// Returns a handle of one event loop, and the queue of its commands.
    pub fn new() -> (Self, async_mpsc::Receiver<Command>) {
        let (commands, queue) = async_mpsc::channel(COMMANDS);
        (Self { event_loops: vec![EventLoopHandle(commands)], shared: None }, queue)
    }

    /// Returns a handle of `count` event loops, and the queues of their commands in order. `udp` is the
    /// configuration of their sockets.
    pub fn of_several(count: usize, udp: UdpConfig) -> (Self, Vec<async_mpsc::Receiver<Command>>) {
        let (handles, queues) = (0..count.max(1)).map(|_| Self::new()).unzip::<_, _, Vec<_>, Vec<_>>();
        let shared = (count > 1).then(|| Arc::new(Mutex::new(Shared::new(count, udp))));
        let event_loops = handles.into_iter().flat_map(|handle| handle.event_loops).collect();
        (Self { event_loops, shared }, queues)
    }

    /// Ends the event loops that have not ended.
    pub fn stop(&self) {
        self.end(|| Command::Stop);
    }

    /// The same, and leaves the packets of the device to the process that has it next.
    pub fn leave(&self) {
        self.end(|| Command::Leave);
    }

    fn end(&self, command: impl Fn() -> Command) {
        for event_loop in &self.event_loops {
            // This fails if the channel is closed: then the loop has ended already.
            let _ = event_loop.0.blocking_send(command());
        }
    }

    /// Returns every counter and peer. Memory for `peers` peers is allocated here, not on a packet thread.
    pub fn snapshot(&self, peers: usize) -> Result<Snapshot, Ended> {
        // While the lock is held, no peer moves from an event loop that was asked to one that was not.
        let shared = self.lock();
        self.snapshot_of_all(peers, shared.as_deref())
    }

    fn snapshot_of_all(&self, peers: usize, shared: Option<&Shared>) -> Result<Snapshot, Ended> {
        let each =
            self.ask_each(|_, answer| Command::Snapshot { peers: Vec::with_capacity(peers), answer })?;
        let moves = shared.map_or(0, |shared| shared.moves);
        Snapshot::of_all(each).map(|all| Snapshot { moves, ..all }).ok_or(Ended)
    }

    /// Moves a peer between event loops if they have unequal work for long. Call it every few seconds. With
    /// one event loop there is nothing to do.
    pub fn balance(&self) -> Result<(), Ended> {
        let Some(mut shared) = self.lock() else { return Ok(()) };
        let busy_ns = self.ask_each(|_, answer| Command::Load { answer })?;
        let now = Instant::now();
        let uneven = shared.balance.observe(now, busy_ns);
        let Shared { placement, balance, .. } = &mut *shared;
        placement.observe(balance.shares());
        let Some(uneven) = uneven else { return Ok(()) };
        let all = self.snapshot_of_all(shared.placement.count(), None)?.peers;
        let traffic = all.iter().filter_map(|peer| {
            let shard = shared.placement.shard_of(&peer.public_key)?;
            Some((peer.public_key, shard, peer.sent_bytes + peer.received_bytes))
        });
        let traffic: Vec<_> = traffic.collect();
        if let Some(peer) = shared.balance.choose(now, uneven, &traffic) {
            self.relocate(&mut shared, peer, uneven.idlest)?;
        }
        Ok(())
    }

    /// Moves a peer to an event loop. Returns false if that is not possible now: there is no such peer, it is
    /// there already, or an event loop has too much to do.
    pub fn move_peer(&self, peer: PublicKey, to: u16) -> Result<bool, Ended> {
        let Some(mut shared) = self.lock() else { return Ok(false) };
        self.relocate(&mut shared, peer, to)
    }

    fn relocate(&self, shared: &mut Shared, peer: PublicKey, to: u16) -> Result<bool, Ended> {
        let from = shared.placement.shard_of(&peer);
        let Some(from) = from.filter(|from| *from != to && usize::from(to) < self.event_loops.len()) else {
            return Ok(false);
        };
        let asked = self.send_each(|_, answer| Command::TakePeer { peer, to, answer })?;
        // Only the event loop that has the peer is waited for: until the other one has it, its packets are
        // dropped.
        let taken = asked.into_iter().nth(usize::from(from)).map(Awaited::wait).transpose()?.flatten();
        let Some(moved) = taken else {
            shared.balance.called_off(peer);
            tracing::debug!(%peer, from, to, "a peer cannot move between packet threads now");
            return Ok(false);
        };
        let mut moved = Some(moved);
        self.ask_each(|number, answer| {
            let moved = moved.take_if(|_| number == usize::from(to));
            Command::PeerMoved { peer, to, moved, answer }
        })?;
        shared.placement.moved(peer, to);
        shared.balance.moved(Instant::now());
        shared.moves += 1;
        tracing::info!(%peer, from, to, "a peer moved to a packet thread that has less to do");
        Ok(true)
    }

    /// Returns the changes for the tunnel of each event loop, in order. None of them runs yet.
    pub fn configure(&self, changes: Vec<Change>) -> Vec<Vec<Change>> {
        let Some(mut shared) = self.lock() else { return vec![changes] };
        shared.placement.assign(changes)
    }

    /// Applies changes to the tunnels, and returns when all are applied.
    pub fn change(&self, changes: Vec<Change>) -> Result<(), Ended> {
        if changes.is_empty() {
            return Ok(());
        }
        let Some(mut shared) = self.lock() else {
            return self.event_loops[0].ask(|answer| Command::Change { changes, answer })?.wait();
        };
        // The lock is held, so that all event loops apply all changes in the same order.
        let mut each = shared.placement.assign(changes).into_iter();
        let change = |_, answer| Command::Change { changes: each.next().unwrap_or_default(), answer };
        self.ask_each(change).map(drop)
    }

    /// Changes the UDP port and the mark, both or neither. Returns the port in use.
    pub fn rebind(&self, port: Option<u16>, fwmark: Option<u32>) -> Result<Result<u16, BindError>, Ended> {
        match self.lock() {
            None => self.event_loops[0].ask(|answer| Command::Rebind { port, fwmark, answer })?.wait(),
            Some(mut shared) => self.rebind_all(&mut shared.udp, port, fwmark),
        }
    }

    fn rebind_all(
        &self,
        config: &mut UdpConfig,
        port: Option<u16>,
        fwmark: Option<u32>,
    ) -> Result<Result<u16, BindError>, Ended> {
        let wanted = UdpConfig {
            port: port.unwrap_or(config.port),
            fwmark: fwmark.unwrap_or(config.fwmark),
            ..*config
        };
        if port.is_none_or(|port| port == config.port) {
            for (number, event_loop) in self.event_loops.iter().enumerate() {
                if let Err(error) = event_loop.set_mark(wanted.fwmark)? {
                    // The previous mark could be set before, so it can be set again.
                    for before in &self.event_loops[..number] {
                        let _restored = before.set_mark(config.fwmark)?;
                    }
                    return Ok(Err(error));
                }
            }
            *config = wanted;
            return Ok(Ok(config.port));
        }
        // First all new sockets are opened: nothing changes if that fails. Unread datagrams of the old port
        // are lost, like those that arrive there a moment later.
        let shards = self.event_loops.len();
        let open = |answer| Command::Open { config: wanted, shards, answer };
        let sockets = match self.event_loops[0].ask(open)?.wait()? {
            Ok(sockets) => sockets,
            Err(error) => return Ok(Err(error)),
        };
        let port = sockets.first().map_or(0, udp::ShardSockets::port);
        let mut sockets = sockets.into_iter();
        let replaced =
            self.ask_each(|_, answer| Command::Replace { sockets: sockets.next().map(Box::new), answer })?;
        *config = UdpConfig { port, ..wanted };
        Ok(replaced.into_iter().collect::<Result<Vec<()>, _>>().map(|_| port))
    }

    /// Returns duplicates of the descriptors of the UDP sockets, in the order of the packet threads.
    pub fn sockets(&self) -> Result<io::Result<Vec<udp::Descriptor>>, Ended> {
        let each = self.ask_each(|_, answer| Command::Sockets { answer })?;
        Ok(each.into_iter().collect::<io::Result<Vec<_>>>().map(|each| each.into_iter().flatten().collect()))
    }

    /// Begins a capture. Returns `None` if too many captures are running.
    pub fn capture(&self, filter: capture::CaptureFilter) -> Result<Option<capture::Capture>, Ended> {
        let (capture, taps) = capture::Capture::new(filter, self.event_loops.len());
        let mut taps = taps.into_iter();
        let taken = self.ask_each(|_, answer| Command::Capture { tap: taps.next().map(Box::new), answer })?;
        Ok(taken.into_iter().all(|taken| taken).then_some(capture))
    }

    /// Returns the number of packet threads.
    pub fn packet_threads(&self) -> usize {
        self.event_loops.len()
    }

    /// Returns the packet threads whose event loops take no turn within `patience`, by number. Never waits
    /// longer, even if an event loop hangs.
    pub fn silent(&self, patience: Duration) -> Vec<usize> {
        let deadline = Instant::now() + patience;
        let ask = |event_loop: &EventLoopHandle| {
            let (answer, answered) = mpsc::sync_channel(1);
            // A full queue means that the event loop takes no commands: other callers wait for answers too.
            event_loop.0.try_send(Command::Ping { answer }).is_ok().then_some(answered)
        };
        let asked: Vec<_> = self.event_loops.iter().map(ask).collect();
        let is_silent = |answered: Option<mpsc::Receiver<()>>| {
            let left = deadline.saturating_duration_since(Instant::now());
            answered.is_none_or(|answered| answered.recv_timeout(left).is_err())
        };
        let silent = asked
            .into_iter()
            .enumerate()
            .filter_map(|(number, answered)| is_silent(answered).then_some(number));
        silent.collect()
    }

    /// Sends a command to each event loop, and returns their answers, in order. They work at the same time.
    fn ask_each<T>(
        &self,
        command: impl FnMut(usize, mpsc::SyncSender<T>) -> Command,
    ) -> Result<Vec<T>, Ended> {
        self.send_each(command)?.into_iter().map(Awaited::wait).collect()
    }

    fn send_each<T>(
        &self,
        mut command: impl FnMut(usize, mpsc::SyncSender<T>) -> Command,
    ) -> Result<Vec<Awaited<T>>, Ended> {
        let asked = self.event_loops.iter().enumerate();
        asked.map(|(number, event_loop)| event_loop.ask(|answer| command(number, answer))).collect()
    }

    fn lock(&self) -> Option<std::sync::MutexGuard<'_, Shared>> {
        // A thread that panics ends the process.
        Some(self.shared.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl EventLoopHandle {
    fn set_mark(&self, fwmark: u32) -> Result<Result<(), BindError>, Ended> {
        let rebind = |answer| Command::Rebind { port: None, fwmark: Some(fwmark), answer };
        Ok(self.ask(rebind)?.wait()?.map(drop))
    }
}
