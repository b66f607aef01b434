//! Event loops on separate threads, each a reader of packets for one peer, which moves between them.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use weft_tunnel::{Change, CookieRoot, PeerConfig, PeerSettings, PrivateKey, Shard, Tunnel, TunnelConfig};

use super::*;

const LOOPS: u16 = 3;

/// A packet, by its reader and its number there.
type Packet = (u16, u64);

/// A move to take part in, and where to answer.
type Command = (Arc<Relocation>, mpsc::SyncSender<()>);

/// What the loops share: the inbox of each, and the packets that were sealed, in order.
#[derive(Default)]
struct World {
    inboxes: [Mutex<VecDeque<Packet>>; LOOPS as usize],
    sealed: Mutex<Vec<Packet>>,
    commands: [Mutex<Option<Command>>; LOOPS as usize],
    is_over: AtomicBool,
    /// A loop that does not run.
    hangs: Mutex<Option<u16>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// An inner packet to the peer.
fn packet() -> Vec<u8> {
    let mut packet = vec![0; 28];
    packet[0] = 0x45;
    packet[3] = 28;
    packet[9] = 17;
    packet[16..20].copy_from_slice(&[10, 0, 0, 1]);
    packet
}

struct Loop<'a> {
    number: u16,
    tunnel: Tunnel,
    key: PublicKey,
    ahead: VecDeque<Packet>,
    read: u64,
    participant: Option<Participant>,
    world: &'a World,
}

impl Loop<'_> {
    fn turn(&mut self) {
        let now = Instant::now();
        let (mut reads, mut halts) = (true, false);
        if let Some(participant) = &mut self.participant {
            let in_device = !lock(&self.world.inboxes[usize::from(self.number)]).is_empty();
            let mut goes_on = false;
            match participant.advance(now, Left { in_device, in_loop: !self.ahead.is_empty() }) {
                Next::GoOn => {}
                Next::ReadNothing => reads = false,
                Next::Halt => halts = true,
                Next::Take => {
                    let peer = self.tunnel.take_peer(&self.key, participant.to(), now).unwrap();
                    if let Err(Cargo { peer, .. }) = participant.hand_out(Cargo { peer, flows: None }) {
                        self.tunnel.adopt_peer(peer, now);
                    }
                    halts = true;
                }
                Next::Adopt(Cargo { peer, .. }) => {
                    self.tunnel.adopt_peer(peer, now);
                    goes_on = true;
                }
                Next::Record => {
                    self.tunnel.foreign_peer_moved(&self.key, participant.to());
                    goes_on = true;
                }
                Next::Done => goes_on = true,
            }
            if goes_on {
                self.participant.take().unwrap().answer();
            }
        }
        if let Some((relocation, answer)) = lock(&self.world.commands[usize::from(self.number)]).take() {
            self.participant =
                Some(Participant::new(relocation, self.number, now, answer, Waker::noop().clone()));
        }
        if halts {
            return;
        }
        // Seals some of what it has, and reads the more.
        for _ in 0..3 {
            let Some(next) = self.ahead.pop_front() else { break };
            assert!(self.tunnel.has_peer(&self.key), "loop {} has given the peer away", self.number);
            lock(&self.world.sealed).push(next);
        }
        self.ahead.append(&mut lock(&self.world.inboxes[usize::from(self.number)]));
        if reads && self.ahead.len() < 100 {
            self.read();
        }
    }

    fn read(&mut self) {
        for _ in 0..2 {
            let packet = (self.number, self.read);
            self.read += 1;
            match self.tunnel.shard_of(&self::packet()) {
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

fn tunnels() -> (Vec<Tunnel>, PublicKey) {
    let (private, key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap().public_key());
    let (cookies, now) = (CookieRoot::generate(Instant::now()), Instant::now());
    let tunnel = |number| {
        let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
        let mut tunnel = Tunnel::of_shard(private.clone(), config, Shard::new(number, LOOPS), &cookies);
        let allowed_ips = vec!["10.0.0.1/32".parse().unwrap()];
        let change = match number {
            0 => Change::AddPeer(Box::new(PeerConfig {
                public_key: key,
                endpoint: None,
                allowed_ips,
                settings: PeerSettings::default(),
            })),
            _ => Change::AddForeignPeer { peer: key, shard: 0, endpoint: None, allowed_ips },
        };
        assert!(tunnel.apply(change, now));
        tunnel
    };
    ((0..LOOPS).map(tunnel).collect(), key)
}

/// Asks all loops to move the peer, and waits for their answers. Returns whether it moved.
fn move_peer(world: &World, key: PublicKey, from: u16, to: u16) -> bool {
    let relocation = Arc::new(Relocation::new(key, from, to, LOOPS.into()));
    let mut answers = Vec::new();
    for command in &world.commands {
        let (answer, answered) = mpsc::sync_channel(1);
        *lock(command) = Some((Arc::clone(&relocation), answer));
        answers.push(answered);
    }
    answers.iter().for_each(|answered| answered.recv().unwrap());
    relocation.conclude()
}

/// Runs the loops while `control` gives orders. Returns what it returns, and checks what was sealed.
fn with_loops<T>(control: impl FnOnce(&World, PublicKey) -> T) -> T {
    let (world, (tunnels, key)) = (World::default(), tunnels());
    let (result, read) = std::thread::scope(|threads| {
        let start = |(number, tunnel)| {
            let (ahead, world) = (VecDeque::new(), &world);
            let of = Loop { number, tunnel, key, ahead, read: 0, participant: None, world };
            threads.spawn(move || of.run())
        };
        let loops: Vec<_> = (0..).zip(tunnels).map(start).collect();
        let result = control(&world, key);
        world.is_over.store(true, Ordering::SeqCst);
        (result, loops.into_iter().map(|of| of.join().unwrap()).collect::<Vec<_>>())
    });
    let sealed = world.sealed.into_inner().unwrap();
    for (reader, read) in (0..LOOPS).zip(read) {
        let of = sealed.iter().filter(|packet| packet.0 == reader).map(|packet| packet.1);
        let of: Vec<_> = of.collect();
        // All but what was under way at the end.
        assert!(of.iter().copied().eq(0..of.len() as u64), "lost or out of order: {reader}");
        assert!(of.len() as u64 <= read);
    }
    result
}

#[test]
fn a_peer_that_moves_between_busy_event_loops_keeps_every_packet_in_order() {
    let moves = with_loops(|world, key| {
        let (mut owner, mut moves) = (0, 0);
        // A loaded machine calls some of them off.
        for round in 0..10_000_u16 {
            let to = (owner + 1 + round % (LOOPS - 1)) % LOOPS;
            if move_peer(world, key, owner, to) {
                (owner, moves) = (to, moves + 1);
            }
            if moves == 100 {
                break;
            }
        }
        moves
    });
    assert_eq!(moves, 100);
}

#[test]
fn a_move_is_called_off_if_an_event_loop_does_not_run_and_the_others_go_on() {
    with_loops(|world, key| {
        *lock(&world.hangs) = Some(2);
        let sealed = || lock(&world.sealed).len();
        let relocation = Arc::new(Relocation::new(key, 0, 1, LOOPS.into()));
        let answers = [0, 1].map(|number| {
            let (answer, answered) = mpsc::sync_channel(1);
            *lock(&world.commands[number]) = Some((Arc::clone(&relocation), answer));
            answered
        });
        answers.iter().for_each(|answered| answered.recv().unwrap());
        assert!(!relocation.conclude());
        let before = sealed();
        while sealed() < before + 1000 {
            std::thread::yield_now();
        }
        // Later it takes part, and there is nothing left to take part in.
        let (answer, answered) = mpsc::sync_channel(1);
        *lock(&world.commands[2]) = Some((Arc::clone(&relocation), answer));
        *lock(&world.hangs) = None;
        answered.recv().unwrap();
        assert!(!relocation.conclude());
    });
}

/// Returns the participants of a move from loop 0 to loop 1.
fn participants(now: Instant) -> (Arc<Relocation>, Vec<Participant>) {
    let key = PrivateKey::generate().unwrap().public_key();
    let relocation = Arc::new(Relocation::new(key, 0, 1, LOOPS.into()));
    let participant = |number| {
        let (answer, waker) = (mpsc::sync_channel(1).0, Waker::noop().clone());
        Participant::new(Arc::clone(&relocation), number, now, answer, waker)
    };
    let all = (0..LOOPS).map(participant).collect();
    (relocation, all)
}

#[test]
fn the_peer_is_taken_only_when_no_event_loop_has_anything_left() {
    let now = Instant::now();
    let (_, mut each) = participants(now);
    let (none, in_device, in_loop) = (
        Left { in_device: false, in_loop: false },
        Left { in_device: true, in_loop: false },
        Left { in_device: false, in_loop: true },
    );
    let mut go = |number: usize, left| format!("{:?}", each[number].advance(now, left));
    // The first turn still hands over what was read before.
    assert_eq!([0, 1, 2].map(|number| go(number, none)), ["ReadNothing"; 3]);
    // One of them holds packets of a flow that changes queues: they may be for any other.
    assert_eq!([go(0, none), go(1, none), go(2, in_device)], ["ReadNothing"; 3]);
    assert_eq!([go(0, none), go(2, none)], ["ReadNothing", "Halt"]);
    assert_eq!([go(0, in_device), go(0, in_loop)], ["ReadNothing"; 2]);
    assert_eq!([go(1, none), go(2, none), go(0, in_loop)], ["Halt", "Halt", "ReadNothing"]);
    assert_eq!([go(0, none), go(1, none)], ["Take", "Halt"]);
}

#[test]
fn whatever_stops_a_move_all_go_on() {
    let now = Instant::now();
    let none = Left { in_device: false, in_loop: false };
    // Nothing is left of one of them in time.
    let (relocation, mut each) = participants(now);
    for _ in 0..3 {
        each[0].advance(now, none);
        each[1].advance(now, Left { in_device: false, in_loop: true });
        each[2].advance(now, none);
    }
    assert!(matches!(each[2].advance(now + DRAIN, none), Next::Done));
    assert!(
        [0, 1]
            .map(|number: usize| each[number].advance(now, none))
            .iter()
            .all(|next| matches!(next, Next::Done))
    );
    assert!(!relocation.conclude());
    // The peer cannot move.
    let (relocation, mut each) = participants(now);
    each[0].call_off();
    assert!(each.iter_mut().all(|of| matches!(of.advance(now, none), Next::Done)) && !relocation.conclude());
}
