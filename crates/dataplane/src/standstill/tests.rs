//! Event loops on separate threads, each a reader of packets for one address. The peer of the address moves
//! between them, or the address moves between peers.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use weft_tunnel::{
    Change, CookieRoot, DropReason, MovedPeer, Offload, PacketMut, PeerConfig, PeerSettings, PrivateKey,
    PublicKey, Shard, TransmitQueue, Tunnel, TunnelConfig,
};

use super::*;
use crate::barrier::DRAIN;

const LOOPS: u16 = 3;
const ADDRESS: &str = "10.0.0.1/32";

/// A packet, by its reader and its number there.
type Packet = (u16, u64);

/// What to do at a barrier.
#[derive(Clone, Copy)]
enum Order {
    /// The peer moves to this loop.
    Move(PublicKey, u16),
    /// The address moves to this peer.
    Reroute(PublicKey),
}

/// A barrier to take part in, and where to answer.
type Command = (Arc<Barrier<MovedPeer>>, Order, mpsc::SyncSender<()>);

/// What the loops share: the inbox of each, and the packets that were sealed, each with the loop that did it,
/// in order.
#[derive(Default)]
struct World {
    inboxes: [Mutex<VecDeque<Packet>>; LOOPS as usize],
    sealed: Mutex<Vec<(u16, Packet)>>,
    commands: [Mutex<Option<Command>>; LOOPS as usize],
    is_over: AtomicBool,
    /// A loop that does not run.
    hangs: Mutex<Option<u16>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// An inner packet to the address.
fn packet() -> Vec<u8> {
    let mut packet = vec![0; 28 + weft_tunnel::TAILROOM];
    packet[0] = 0x45;
    packet[3] = 28;
    packet[9] = 17;
    packet[16..20].copy_from_slice(&[10, 0, 0, 1]);
    packet
}

struct Loop<'a> {
    number: u16,
    tunnel: Tunnel,
    ahead: VecDeque<Packet>,
    read: u64,
    standstill: Option<(Participant<MovedPeer>, Order, mpsc::SyncSender<()>)>,
    world: &'a World,
}

impl Loop<'_> {
    fn turn(&mut self) {
        let now = Instant::now();
        let (mut reads, mut halts, mut is_over) = (true, false, false);
        if let Some((participant, order, _)) = &mut self.standstill {
            let left = || Left {
                in_device: !lock(&self.world.inboxes[usize::from(self.number)]).is_empty(),
                in_loop: !self.ahead.is_empty(),
            };
            match participant.advance(now, left) {
                Next::GoOn => {}
                Next::ReadNothing => reads = false,
                Next::Halt => halts = true,
                Next::Lead => {
                    let moved = match *order {
                        Order::Move(key, to) => Some(self.tunnel.take_peer(&key, to, now).unwrap()),
                        Order::Reroute(_) => None,
                    };
                    if let Err(Some(moved)) = participant.pass(moved) {
                        self.tunnel.adopt_peer(moved, now);
                    }
                    halts = true;
                }
                Next::Passed => match *order {
                    Order::Move(_, to) if to == self.number => match participant.take_cargo() {
                        Some(moved) => {
                            self.tunnel.adopt_peer(moved, now);
                            is_over = true;
                        }
                        None => halts = true,
                    },
                    Order::Move(key, to) => {
                        self.tunnel.foreign_peer_moved(&key, to);
                        is_over = true;
                    }
                    Order::Reroute(peer) => {
                        let (add, remove) = (vec![ADDRESS.parse().unwrap()], Vec::new());
                        assert!(self.tunnel.apply(Change::AllowedIps { peer, add, remove }, now));
                        is_over = true;
                    }
                },
                Next::CalledOff => is_over = true,
            }
        }
        if is_over {
            let (.., answer) = self.standstill.take().unwrap();
            let _ = answer.try_send(());
        }
        if let Some((barrier, order, answer)) = lock(&self.world.commands[usize::from(self.number)]).take() {
            let participant = Participant::new(barrier, self.number, now, Waker::noop().clone());
            self.standstill = Some((participant, order, answer));
        }
        if halts {
            return;
        }
        // Seals some of what it has, and reads the more.
        for _ in 0..3 {
            let Some(next) = self.ahead.pop_front() else { break };
            self.seal(next, now);
        }
        self.ahead.append(&mut lock(&self.world.inboxes[usize::from(self.number)]));
        if reads && self.ahead.len() < 100 {
            self.read();
        }
    }

    fn seal(&mut self, packet: Packet, now: Instant) {
        let (mut bytes, mut out) = (self::packet(), TransmitQueue::new(2));
        let mut inner = PacketMut::new(&mut bytes, 28, Offload::None).unwrap();
        let result = self.tunnel.handle_tun_packet(&mut inner, now, &mut out);
        assert_eq!(result, Err(DropReason::NoEndpoint), "loop {} has no peer for it", self.number);
        lock(&self.world.sealed).push((self.number, packet));
    }

    fn read(&mut self) {
        for _ in 0..2 {
            let packet = (self.number, self.read);
            self.read += 1;
            match self.tunnel.shard_of(&self::packet()[..28]) {
                None => self.ahead.push_back(packet),
                Some(other) => lock(&self.world.inboxes[usize::from(other)]).push_back(packet),
            }
        }
    }

    fn run(mut self) -> u64 {
        while !self.world.is_over.load(Ordering::SeqCst) {
            if *lock(&self.world.hangs) != Some(self.number) {
                self.turn();
            }
            std::thread::yield_now();
        }
        self.read
    }
}

/// The tunnels of all loops. The first loop has the peer of the address, the second one another peer.
fn tunnels(peers: [PublicKey; 2]) -> Vec<Tunnel> {
    let (private, now) = (PrivateKey::generate().unwrap(), Instant::now());
    let cookies = CookieRoot::generate(now);
    let tunnel = |number| {
        let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
        let mut tunnel = Tunnel::of_shard(private.clone(), config, Shard::new(number, LOOPS), &cookies);
        for (shard, peer) in (0..).zip(peers) {
            let allowed_ips = [ADDRESS].into_iter().filter(|_| shard == 0);
            let allowed_ips = allowed_ips.map(|address| address.parse().unwrap()).collect();
            let change = match shard == number {
                true => Change::AddPeer(Box::new(PeerConfig {
                    public_key: peer,
                    endpoint: None,
                    allowed_ips,
                    settings: PeerSettings::default(),
                })),
                false => Change::AddForeignPeer { peer, shard, endpoint: None, allowed_ips },
            };
            assert!(tunnel.apply(change, now));
        }
        tunnel
    };
    (0..LOOPS).map(tunnel).collect()
}

/// Asks loops to come to this barrier. Returns the answers that they will give.
fn ask(
    world: &World,
    barrier: &Arc<Barrier<MovedPeer>>,
    order: Order,
    loops: impl IntoIterator<Item = u16>,
) -> Vec<mpsc::Receiver<()>> {
    let ask = |number| {
        let (answer, answered) = mpsc::sync_channel(1);
        *lock(&world.commands[usize::from(number)]) = Some((Arc::clone(barrier), order, answer));
        answered
    };
    loops.into_iter().map(ask).collect()
}

/// Asks all loops, and waits for their answers. Returns whether it was done.
fn order(world: &World, order: Order, leader: u16) -> bool {
    let barrier = Arc::new(Barrier::new(LOOPS.into(), leader));
    let answers = ask(world, &barrier, order, 0..LOOPS);
    answers.iter().for_each(|answered| answered.recv().unwrap());
    barrier.conclude()
}

/// Runs the loops while `control` gives orders. Returns what it returns, and checks what was sealed: each
/// loop that sealed packets of a reader did so in order.
fn with_loops<T>(control: impl FnOnce(&World, [PublicKey; 2]) -> T) -> T {
    let peers = [(); 2].map(|()| PrivateKey::generate().unwrap().public_key());
    let (world, tunnels) = (World::default(), tunnels(peers));
    let (result, read) = std::thread::scope(|threads| {
        let start = |(number, tunnel)| {
            let (ahead, world) = (VecDeque::new(), &world);
            let of = Loop { number, tunnel, ahead, read: 0, standstill: None, world };
            threads.spawn(move || of.run())
        };
        let loops: Vec<_> = (0..).zip(tunnels).map(start).collect();
        let result = control(&world, peers);
        world.is_over.store(true, Ordering::SeqCst);
        (result, loops.into_iter().map(|of| of.join().unwrap()).collect::<Vec<_>>())
    });
    let sealed = world.sealed.into_inner().unwrap();
    for (reader, read) in (0..LOOPS).zip(read) {
        let of = |by: Option<u16>| -> Vec<u64> {
            let of = sealed
                .iter()
                .filter(|(sealer, packet)| packet.0 == reader && by.is_none_or(|by| by == *sealer));
            of.map(|(_, packet)| packet.1).collect()
        };
        for sealer in 0..LOOPS {
            assert!(of(Some(sealer)).is_sorted(), "out of order: {reader} by {sealer}");
        }
        let mut all = of(None);
        all.sort_unstable();
        // All but what was under way at the end.
        assert!(all.iter().copied().eq(0..all.len() as u64) && all.len() as u64 <= read, "lost: {reader}");
    }
    result
}

/// Gives orders until `count` of them were carried out, which a loaded machine calls off now and then.
fn carried_out(count: u32, mut next: impl FnMut(u32) -> bool) -> u32 {
    let mut done = 0;
    for _ in 0..10_000 {
        done += u32::from(next(done));
        if done == count {
            break;
        }
    }
    done
}

#[test]
fn a_peer_that_moves_between_busy_event_loops_keeps_every_packet_in_order() {
    let moves = with_loops(|world, [peer, _]| {
        let mut owner = 0;
        carried_out(100, |round| {
            let to = (owner + 1 + round as u16 % (LOOPS - 1)) % LOOPS;
            let has_moved = order(world, Order::Move(peer, to), owner);
            owner = if has_moved { to } else { owner };
            has_moved
        })
    });
    assert_eq!(moves, 100);
}

#[test]
fn an_address_that_moves_between_peers_of_busy_event_loops_keeps_every_packet() {
    let moves = with_loops(|world, peers| {
        carried_out(100, |round| order(world, Order::Reroute(peers[(round as usize + 1) % 2]), 0))
    });
    assert_eq!(moves, 100);
}

#[test]
fn a_barrier_is_called_off_if_an_event_loop_does_not_run_and_the_others_go_on() {
    with_loops(|world, [peer, _]| {
        *lock(&world.hangs) = Some(2);
        let sealed = || lock(&world.sealed).len();
        let barrier = Arc::new(Barrier::new(LOOPS.into(), 0));
        let to_move = |loops| ask(world, &barrier, Order::Move(peer, 1), loops);
        to_move(0..2).iter().for_each(|answered| answered.recv().unwrap());
        assert!(!barrier.conclude());
        let before = sealed();
        while sealed() < before + 1000 {
            std::thread::yield_now();
        }
        // Later it takes part, and there is nothing left to take part in.
        let answers = to_move(2..3);
        *lock(&world.hangs) = None;
        answers[0].recv().unwrap();
        assert!(!barrier.conclude());
    });
}

/// Returns the participants at a barrier that the first of them passes.
fn participants(now: Instant) -> (Arc<Barrier<()>>, Vec<Participant<()>>) {
    let barrier = Arc::new(Barrier::new(LOOPS.into(), 0));
    let participant = |number| Participant::new(Arc::clone(&barrier), number, now, Waker::noop().clone());
    let all = (0..LOOPS).map(participant).collect();
    (barrier, all)
}

#[test]
fn the_leader_passes_only_when_no_event_loop_has_anything_left() {
    use Next::{Halt, Lead, Passed, ReadNothing};
    let now = Instant::now();
    let (_, mut each) = participants(now);
    let (none, in_device, in_loop) = (
        Left { in_device: false, in_loop: false },
        Left { in_device: true, in_loop: false },
        Left { in_device: false, in_loop: true },
    );
    let mut go = |number: usize, left| each[number].advance(now, || left);
    // The first turn still hands over what was read before.
    assert_eq!([0, 1, 2].map(|number| go(number, none)), [ReadNothing; 3]);
    // One of them holds packets of a flow that changes queues: they may be for any other.
    assert_eq!([go(0, none), go(1, none), go(2, in_device)], [ReadNothing; 3]);
    assert_eq!([go(0, none), go(2, none)], [ReadNothing, Halt]);
    assert_eq!([go(0, in_device), go(0, in_loop)], [ReadNothing; 2]);
    assert_eq!([go(1, none), go(2, none), go(0, in_loop)], [Halt, Halt, ReadNothing]);
    assert_eq!([go(0, none), go(1, none)], [Lead, Halt]);
    each[0].pass(None).unwrap();
    assert!(each.iter_mut().all(|of| of.advance(now + DRAIN, || none) == Passed));
}

#[test]
fn whatever_is_against_it_all_go_on() {
    let now = Instant::now();
    let none = Left { in_device: false, in_loop: false };
    // Nothing is left of one of them in time.
    let (barrier, mut each) = participants(now);
    for _ in 0..3 {
        each[0].advance(now, || none);
        each[1].advance(now, || Left { in_device: false, in_loop: true });
        each[2].advance(now, || none);
    }
    assert_eq!(each[2].advance(now + DRAIN, || none), Next::CalledOff);
    assert_eq!([0, 1].map(|number: usize| each[number].advance(now, || none)), [Next::CalledOff; 2]);
    assert!(!barrier.conclude() && each[0].pass(Some(())) == Err(Some(())));
    // One of them cannot take part.
    let (barrier, mut each) = participants(now);
    each[0].call_off();
    assert!(each.iter_mut().all(|of| of.advance(now, || none) == Next::CalledOff) && !barrier.conclude());
}
