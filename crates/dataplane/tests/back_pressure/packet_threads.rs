//! What two packet threads of an interface hand each other, while a peer moves from one to the other.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use weft_control::Handle;
use weft_dataplane::{EventLoop, Siblings};
use weft_tun::memory::{self, Limits, MemoryPeer};
use weft_tunnel::{
    Change, CookieRoot, DropReason, Offload, PeerConfig, PeerSettings, PrivateKey, PublicKey, Shard, Tunnel,
    TunnelConfig,
};
use weft_udp::{UdpConfig, UdpStats};

use crate::network::{FakeUdp, SharedNetwork, Socket};
use crate::nodes::{number, packet, until};

/// Keeps an event loop from running.
#[derive(Default)]
struct Gate {
    is_shut: Cell<bool>,
    /// Turns that the event loop may take nevertheless.
    turns: Cell<u32>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    /// Runs `event_loop` while the gate is open.
    async fn run<T>(self: Rc<Self>, event_loop: impl Future<Output = T>) -> T {
        let mut event_loop = std::pin::pin!(event_loop);
        std::future::poll_fn(|cx| {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            if self.is_shut.get() {
                let Some(turns) = self.turns.get().checked_sub(1) else { return Poll::Pending };
                self.turns.set(turns);
            }
            event_loop.as_mut().poll(cx)
        })
        .await
    }

    fn open(&self) {
        self.is_shut.set(false);
        self.wake();
    }

    /// Lets the event loop take one turn.
    fn take_turn(&self) {
        self.turns.set(1);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A daemon with two packet threads, as node 0, and one with one, as node 1, each a peer of the other. Runs
/// `test` with what plays the kernel of each packet thread and of node 1, the handle of node 0, the key of
/// node 1, the gate of the first packet thread, and the network.
fn with_two_packet_threads<F: Future<Output = ()> + 'static>(
    test: impl FnOnce([MemoryPeer; 3], Handle, PublicKey, Rc<Gate>, SharedNetwork) -> F,
) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let keys = [0, 1].map(|_| PrivateKey::generate().unwrap());
        let [gateway, thread_0, thread_1, peer]: [SocketAddr; 4] =
            [1, 2, 3, 4].map(|host| SocketAddr::from(([192, 0, 2, host], 51820)));
        let network = SharedNetwork::default();
        network.borrow_mut().shards.insert(gateway, vec![thread_0, thread_1]);
        let config = TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 };
        let cookies = CookieRoot::generate(Instant::now());
        let (handle, mut queues) = Handle::of_several(2, UdpConfig::default());
        let mut siblings = Siblings::of(2).into_iter();
        let peer_of = |key: &PrivateKey, endpoint, address: &str| {
            Change::AddPeer(Box::new(PeerConfig {
                public_key: key.public_key(),
                endpoint,
                allowed_ips: vec![address.parse().unwrap()],
                settings: PeerSettings::default(),
            }))
        };
        let (commands, queue) = mpsc::channel(8);
        queues.push(queue);
        let mut queues = queues.into_iter();
        let gate = Rc::new(Gate::default());
        let kernels = [thread_0, thread_1, peer].map(|address| {
            network.borrow_mut().sockets.insert(address, Socket::default());
            let udp = FakeUdp { address, network: Rc::clone(&network), stats: UdpStats::default() };
            let (tun, kernel) = memory::pair(Limits::default());
            let number = [thread_0, thread_1].iter().position(|of| *of == address);
            let tunnel = match number {
                Some(number) => {
                    Tunnel::of_shard(keys[0].clone(), config, Shard::new(number as u16, 2), &cookies)
                }
                None => Tunnel::new(keys[1].clone(), config),
            };
            let mut event_loop = EventLoop::new(tunnel, tun, udp, queues.next().unwrap(), Default::default);
            match number {
                Some(_) => event_loop.join(siblings.next().unwrap()),
                None => event_loop.configure(vec![peer_of(&keys[0], Some(gateway), "10.0.0.0/32")]),
            }
            let gate = if number == Some(0) { Rc::clone(&gate) } else { Rc::default() };
            tokio::task::spawn_local(gate.run(event_loop.run()));
            kernel
        });
        let add = vec![peer_of(&keys[1], Some(peer), "10.0.0.1/32")];
        elsewhere(&handle, move |handle| handle.change(add)).await.unwrap();
        tokio::task::spawn_local(test(kernels, handle, keys[1].public_key(), gate, network)).await.unwrap();
        drop(commands);
    });
}

/// Calls the handle on another thread, which waits for the event loops.
async fn elsewhere<T: Send + 'static>(
    handle: &Handle,
    call: impl FnOnce(&Handle) -> T + Send + 'static,
) -> T {
    let handle = handle.clone();
    let thread = std::thread::spawn(move || call(&handle));
    until(|| thread.is_finished().then_some(())).await;
    thread.join().unwrap()
}

/// Moves the peer, which the event loop that has it may refuse while its TUN takes nothing.
fn move_peer(handle: &Handle, peer: PublicKey, to: u16) {
    weft_lab::until("the peer moves", || handle.move_peer(peer, to).unwrap());
}

#[test]
fn messages_of_the_last_session_of_a_peer_that_moved_are_dropped_after_one_of_the_next() {
    with_two_packet_threads(async |[thread_0, thread_1, peer], handle, key, _, _| {
        let send = |number| peer.inject(&packet(1, 0, number), Offload::None).unwrap();
        send(0);
        assert_eq!(number(&thread_0.recv().await.unwrap()), 0, "it belongs to the first thread");
        elsewhere(&handle, move |handle| move_peer(handle, key, 1)).await;
        assert!(!elsewhere(&handle, move |handle| handle.move_peer(key, 0)).await.unwrap(), "it just moved");
        // Handed over.
        send(1);
        assert_eq!(number(&thread_1.recv().await.unwrap()), 1);
        // The clock stands still but for this: the next handshake may be five seconds after the first.
        let renewed_at = |handle: &Handle| {
            let peers = handle.snapshot(1).unwrap().peers;
            peers.iter().map(|peer| peer.last_handshake).max().unwrap()
        };
        let before = elsewhere(&handle, renewed_at).await;
        tokio::time::sleep(Duration::from_millis(4900)).await;
        // The first thread receives nothing while its TUN takes nothing.
        thread_0.set_accepting(false);
        for number in 2..100 {
            send(number);
        }
        until(|| (peer.outbound_len() == 0).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(elsewhere(&handle, renewed_at).await > before, "there is a next session");
        for number in 100..150 {
            send(number);
        }
        for number in 100..150 {
            assert_eq!(self::number(&thread_1.recv().await.unwrap()), number);
        }
        thread_0.set_accepting(true);
        let overload = |handle: &Handle| handle.snapshot(1).unwrap().drops.get(DropReason::Overload);
        while elsewhere(&handle, overload).await < 98 {}
        let snapshot = elsewhere(&handle, |handle| handle.snapshot(1).unwrap()).await;
        assert_eq!((snapshot.drops.total(), snapshot.moves, snapshot.tunnel.opened), (98, 1, 52));
        assert!(thread_1.take().is_none(), "they would be out of order");
        // It may move again.
        elsewhere(&handle, move |handle| move_peer(handle, key, 0)).await;
    });
}

#[test]
fn a_message_of_a_session_that_ended_after_the_move_does_not_go_round_between_the_threads() {
    with_two_packet_threads(async |[thread_0, _, peer], handle, key, _, _| {
        let send = |number| peer.inject(&packet(1, 0, number), Offload::None).unwrap();
        send(0);
        thread_0.recv().await.unwrap();
        elsewhere(&handle, move |handle| move_peer(handle, key, 1)).await;
        elsewhere(&handle, move |handle| handle.change(vec![Change::EndSession(key)])).await.unwrap();
        // The peer does not know that its session has ended.
        send(1);
        until(|| (peer.outbound_len() == 0).then_some(())).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let snapshot = elsewhere(&handle, |handle| handle.snapshot(1).unwrap()).await;
        let reasons = [DropReason::UnknownReceiverIndex, DropReason::Overload];
        assert_eq!(reasons.map(|reason| snapshot.drops.get(reason)).into_iter().sum::<u64>(), 1);
    });
}

#[test]
fn messages_that_the_kernel_gives_to_the_wrong_thread_stay_in_order_while_their_peer_moves() {
    with_two_packet_threads(async |[thread_0, thread_1, peer], handle, key, gate, network| {
        let send = |number| peer.inject(&packet(1, 0, number), Offload::None).unwrap();
        send(0);
        thread_0.recv().await.unwrap();
        // From now on, the second thread receives everything, and hands it over. The first one has more to
        // open than it can before the peer moves.
        network.borrow_mut().shards.values_mut().for_each(|shards| *shards = vec![shards[1]]);
        gate.is_shut.set(true);
        let waiting = 1..400;
        for number in waiting.clone() {
            send(number);
            until(|| (peer.outbound_len() == 0).then_some(())).await;
        }
        let moving = std::thread::spawn({
            let handle = handle.clone();
            move || move_peer(&handle, key, 1)
        });
        let mut arrived = Vec::new();
        let mut next = waiting.end;
        let take = |arrived: &mut Vec<u32>| {
            let packets = std::iter::from_fn(|| thread_0.take().or_else(|| thread_1.take()));
            arrived.extend(packets.map(|packet| number(&packet)));
        };
        while !moving.is_finished() {
            assert!(next < 100_000, "{:?} of {next} after the move", arrived.last());
            send(next);
            next += 1;
            gate.take_turn();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            take(&mut arrived);
        }
        moving.join().unwrap();
        gate.open();
        let overload = |handle: &Handle| handle.snapshot(1).unwrap().drops.get(DropReason::Overload);
        loop {
            let lost = elsewhere(&handle, overload).await;
            take(&mut arrived);
            if arrived.len() as u64 + lost + 1 == u64::from(next) {
                break;
            }
        }
        assert!(arrived.is_sorted_by(|a, b| a < b));
        assert!(arrived.contains(&(next - 1)), "it goes on after the move");
    });
}
