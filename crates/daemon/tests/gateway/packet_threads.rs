//! A gateway with several packet threads: each serves its peers, hands over what it reads for the others,
//! keeps the order of every flow, and loses nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use weft::up::{Daemon, Options};
use weft_config as config;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange, PeerState};
use weft_config::settings::InterfaceSettingsChange;
use weft_config::{PacketThreads, TunThreads};
use weft_dataplane::PacketThread;
use weft_lab::counters::Counters;
use weft_lab::link::{self, LinkOptions};
use weft_lab::numbered::{Numbered, NumberedOptions, NumberedReport, Replies};
use weft_lab::refusal::Refusal;
use weft_lab::traffic::Amount;
use weft_lab::{Namespace, here, until};
use weft_tunnel::{DropReason, PeerSnapshot, PrivateKey, PublicKey};
use weft_uapi::Control as _;

use crate::machine::{alone, shared};
use crate::stopped_thread::StoppedThread;

const PEERS: u8 = 9;
const THREADS: u16 = 3;
const DATAGRAMS: u64 = 1000;

/// The gateway's address for a peer, and the peer's.
fn inner(peer: u8) -> [IpAddr; 2] {
    [IpAddr::from([10, 40, peer, 1]), IpAddr::from([10, 40, peer, 2])]
}

/// A gateway and its peers, which are interfaces of one other namespace.
struct Scene {
    // They go before their namespaces.
    gateway_daemon: Daemon,
    peers: Vec<Daemon>,
    gateway: Namespace,
    sites: Namespace,
}

/// Flows of numbered datagrams that are under way, and what was counted before them.
struct Traffic {
    flows: Vec<Numbered>,
    overload_before: u64,
    lost_before: u64,
}

impl Scene {
    fn new() -> Option<Self> {
        Self::after(|| ())
    }

    /// `prepare` runs on the thread that starts the gateway, and only there.
    fn after(prepare: impl FnOnce() + Send) -> Option<Self> {
        if !here::tun_permitted() {
            return None;
        }
        if weft_udp::MAX_SHARDS == 1 {
            here::not_run("several packet threads: this build has one");
            return None;
        }
        let [gateway, sites] = ["gateway", "sites"].map(|name| Namespace::new(name).unwrap());
        let outer = LinkOptions {
            addresses_a: vec!["192.0.2.1/24".parse().unwrap()],
            addresses_b: vec!["192.0.2.2/24".parse().unwrap()],
            ..LinkOptions::default()
        };
        link::join_in_order(&gateway, &sites, &outer).unwrap();
        let key = PrivateKey::generate().unwrap();
        let mut text =
            format!("[Interface]\nPrivateKey = {}\nListenPort = 51820\n", key.to_base64().as_str());
        for peer in 0..PEERS {
            text += &format!("Address = {}/32\n", inner(peer)[0]);
        }
        let mut peers = Vec::new();
        for peer in 0..PEERS {
            let own = PrivateKey::generate().unwrap();
            let [near, far] = inner(peer);
            text += &format!("[Peer]\nPublicKey = {}\nAllowedIPs = {far}/32\n", own.public_key());
            let site = format!(
                "[Interface]\nPrivateKey = {}\nAddress = {far}/32\n[Peer]\nPublicKey = {}\nAllowedIPs = {near}/32\n\
                 Endpoint = 192.0.2.1:51820\nPersistentKeepalive = 25\n",
                own.to_base64().as_str(),
                key.public_key(),
            );
            peers.push(start(&sites, &format!("site{peer}"), &site, 1));
        }
        let gateway_daemon = std::thread::scope(|scope| {
            let start = || {
                prepare();
                start(&gateway, "wg0", &text, THREADS)
            };
            scope.spawn(start).join().unwrap()
        });
        let scene = Self { gateway_daemon, peers, gateway, sites };
        // The peers begin: the gateway does not know where they are.
        let has_session = |snapshot: weft_dataplane::Snapshot| {
            snapshot.peers.iter().filter(|peer| peer.last_handshake.is_some()).count() == usize::from(PEERS)
        };
        until("every peer has a session", || has_session(scene.gateway_daemon.snapshot().unwrap()));
        Some(scene)
    }

    /// Sends numbered datagrams to and from every peer at once, and asserts that all arrive in order, but for
    /// overload.
    fn exchange(&self, replies: Replies) {
        self.send([true, false], replies);
    }

    /// Sends numbered datagrams from the gateway (true) and to it (false), and asserts that all arrive in
    /// order, but for overload.
    fn send<const DIRECTIONS: usize>(&self, directions: [bool; DIRECTIONS], replies: Replies) {
        self.send_with(0..PEERS, directions, options(DATAGRAMS, replies));
    }

    /// Does what [`Self::send`] does with some peers.
    fn send_with<const DIRECTIONS: usize>(
        &self,
        peers: impl IntoIterator<Item = u8>,
        directions: [bool; DIRECTIONS],
        options: NumberedOptions,
    ) {
        self.finish(self.start(peers, directions, options));
    }

    fn start<const DIRECTIONS: usize>(
        &self,
        peers: impl IntoIterator<Item = u8>,
        directions: [bool; DIRECTIONS],
        options: NumberedOptions,
    ) -> Traffic {
        let both = peers.into_iter().flat_map(|peer| {
            let [near, far] = inner(peer);
            directions.map(|is_outbound| match is_outbound {
                true => (&self.gateway, near, &self.sites, far),
                false => (&self.sites, far, &self.gateway, near),
            })
        });
        let start = |(from, source, to, destination)| {
            Numbered::start(from, source, to, destination, options).unwrap()
        };
        let (overload_before, lost_before) = (self.overload(), self.lost_outside());
        Traffic { overload_before, lost_before, flows: both.map(start).collect() }
    }

    /// Asserts that everything arrives in order, but for overload.
    fn finish(&self, traffic: Traffic) {
        let Traffic { flows, overload_before, lost_before } = traffic;
        // Each waits until nothing more arrives.
        let ends: Vec<_> = flows.into_iter().map(|flow| std::thread::spawn(|| flow.finish())).collect();
        let reports: Vec<NumberedReport> = ends.into_iter().map(|end| end.join().unwrap()).collect();
        let mut lost = 0;
        for (number, report) in reports.iter().enumerate() {
            for tally in [report.forward, report.replies] {
                let wrong = (tally.out_of_order, tally.duplicates, tally.corrupt);
                assert_eq!(wrong, (0, 0, 0), "{number}: {report:?}");
                lost += tally.lost;
            }
        }
        let told =
            |daemon: &Daemon| daemon.snapshot().map(|of| (of.drops, of.udp, of.tun, of.packet_threads));
        // Nothing counts as dropped that arrived, and nothing is lost that does not count.
        let counted = self.overload() - overload_before..=self.lost_outside() - lost_before;
        assert!(counted.contains(&lost), "{lost} {counted:?}: {reports:?} {:?}", told(&self.gateway_daemon));
    }

    /// Returns the datagrams that arrived faster than the gateway and its peers could open them.
    fn overload(&self) -> u64 {
        self.peers.iter().chain([&self.gateway_daemon]).map(overload).sum()
    }

    /// Returns what kernels dropped between programs and daemons, where a super-packet counts once.
    fn dropped_by_kernels(&self) -> u64 {
        let dropped_in = |namespace| {
            let counters = Counters::read(namespace).unwrap();
            let dropped = counters.interfaces.values().map(|of| of.tx_dropped + of.rx_dropped).sum::<u64>();
            dropped + counters.udp_receive_buffer_full() + counters.udp_send_buffer_full()
        };
        dropped_in(&self.gateway) + dropped_in(&self.sites)
    }

    /// Returns the most datagrams that can have been lost for lack of time, as on a machine that is busy with
    /// other work: as overload, behind the end of their session, and between the kernel and a daemon, where a
    /// super-packet has up to 64.
    fn lost_outside(&self) -> u64 {
        let late = self.gateway_daemon.snapshot().unwrap().drops.get(DropReason::UnknownReceiverIndex);
        64 * self.dropped_by_kernels() + self.overload() + late
    }

    /// Asserts that every thread has worked for its peers, and that nothing was dropped. `steered`: whether
    /// the kernel chooses the thread of each message.
    fn assert_shared(&self, steered: bool) {
        let snapshot = self.gateway_daemon.snapshot().unwrap();
        let threads = &snapshot.packet_threads;
        assert_eq!(threads.len(), usize::from(THREADS));
        for thread in threads {
            assert_eq!(thread.peers, usize::from(PEERS) / threads.len(), "{threads:?}");
            assert!(thread.sealed >= DATAGRAMS && thread.opened >= DATAGRAMS, "{threads:?}");
            assert!(thread.handed_over_bytes > 0, "{threads:?}");
        }
        let sealed: u64 = threads.iter().map(|thread| thread.sealed).sum();
        assert_eq!(sealed, snapshot.tunnel.sealed);
        self.assert_nothing_dropped();
        assert_eq!(snapshot.udp_features.steered, steered);
    }

    #[track_caller]
    fn assert_nothing_dropped(&self) {
        self.assert_nothing_dropped_but(&[]);
    }

    /// Asserts that nothing was dropped but for these reasons and for lack of time.
    #[track_caller]
    fn assert_nothing_dropped_but(&self, reasons: &[DropReason]) {
        let snapshot = self.gateway_daemon.snapshot().unwrap();
        // The kernel's own multicast is for no peer.
        let allowed = [&[DropReason::NoPeer], &LACK_OF_TIME[..], reasons].concat();
        let drops = snapshot.drops.iter().filter(|(reason, _)| !allowed.contains(reason));
        let drops: Vec<_> = drops.filter(|(_, packets)| *packets > 0).collect();
        assert!(drops.is_empty(), "{drops:?}");
    }

    fn key(&self, peer: u8) -> PublicKey {
        let state = self.gateway_daemon.controller().unwrap().get().unwrap();
        let network = ipnet::IpNet::from(inner(peer)[1]);
        state.peers.iter().find(|state| state.allowed_ips == [network]).unwrap().public_key
    }

    /// Returns the packet thread of each peer, and when its last handshake was.
    fn placement(&self) -> HashMap<PublicKey, (usize, Option<Instant>)> {
        let snapshot = self.gateway_daemon.snapshot().unwrap();
        let threads = snapshot.packet_threads.iter().enumerate();
        let threads = threads.flat_map(|(number, thread)| std::iter::repeat_n(number, thread.peers));
        let place = |(peer, thread): (&PeerSnapshot, usize)| (peer.public_key, (thread, peer.last_handshake));
        snapshot.peers.iter().zip(threads).map(place).collect()
    }
}

/// Why packets are dropped on a machine that is busy with other work, and while their peer moves.
const LACK_OF_TIME: [DropReason; 3] =
    [DropReason::Overload, DropReason::PeerMoved, DropReason::PacketThreadStalled];

/// Returns the packets that were dropped for [`LACK_OF_TIME`].
fn overload(daemon: &Daemon) -> u64 {
    let drops = daemon.snapshot().unwrap().drops;
    LACK_OF_TIME.map(|reason| drops.get(reason)).into_iter().sum()
}

fn options(datagrams: u64, replies: Replies) -> NumberedOptions {
    NumberedOptions {
        flows: 20,
        datagram_bytes: 900,
        datagrams_per_second: 400,
        burst: 8,
        amount: Amount::Count(datagrams),
        replies,
        ..NumberedOptions::default()
    }
}

#[track_caller]
fn start(namespace: &Namespace, name: &str, text: &str, threads: u16) -> Daemon {
    let parsed = config::parse(text, std::path::Path::new("wg0.conf"), name.parse().unwrap());
    let config = parsed.unwrap_or_else(|error| panic!("{error}")).config;
    let endpoints = config.endpoint_addresses();
    let packet_threads = PacketThreads::Fixed(threads.try_into().unwrap());
    let options = Options { tun_threads: TunThreads::Fixed(0), packet_threads, ..Options::default() };
    namespace.run(|| Daemon::start(&config, &endpoints, &options, || ())).unwrap()
}

#[test]
fn every_thread_serves_its_peers_in_order_and_nothing_is_lost() {
    let _shared = shared();
    let Some(scene) = Scene::new() else { return };
    // Answered or not: what nothing answers stays on the queue of its hash, whichever thread reads that.
    scene.exchange(Replies::Never);
    scene.exchange(Replies::EveryPackets(5));
    scene.assert_shared(true);
}

#[test]
fn the_port_changes_for_all_threads_and_peers_are_removed_and_added() {
    let _shared = shared();
    let Some(scene) = Scene::new() else { return };
    let controller = scene.gateway_daemon.controller().unwrap();
    controller
        .set(DeviceChange::from(InterfaceSettingsChange { listen_port: Some(0), ..Default::default() }))
        .unwrap();
    assert_ne!(controller.listen_port(), 51820);
    // The peers learn of the new port from the next packet to them.
    scene.send([true], Replies::EveryPackets(3));
    scene.exchange(Replies::Never);
    let state = controller.get().unwrap();
    let remove = |peer: &PeerState| PeerChange { remove: true, ..PeerChange::new(peer.public_key) };
    let peers = state.peers.iter().map(remove).collect();
    controller.set(DeviceChange { peers, ..DeviceChange::default() }).unwrap();
    assert_eq!(scene.gateway_daemon.snapshot().unwrap().peers.len(), 0);
    let add = |peer: &PeerState| PeerChange {
        endpoint: peer.endpoint,
        allowed_ips: peer.allowed_ips.iter().copied().map(AllowedIpChange::Add).collect(),
        ..PeerChange::new(peer.public_key)
    };
    // The first peers go to other threads than before.
    let peers = state.peers.iter().rev().map(add).collect();
    controller.set(DeviceChange { peers, ..DeviceChange::default() }).unwrap();
    // There are new sessions with the first packets to the peers.
    scene.send([true], Replies::EveryPackets(3));
    scene.exchange(Replies::Never);
    let threads = scene.gateway_daemon.snapshot().unwrap().packet_threads;
    assert_eq!(threads.iter().map(|thread| thread.peers).sum::<usize>(), usize::from(PEERS));
}

#[test]
fn a_thread_that_hangs_costs_packets_of_its_peers_and_no_other_thread_stops() {
    let _alone = alone();
    let Some(scene) = Scene::new() else { return };
    // Every thread reads flows to the peers of the one that hangs.
    let placement = scene.placement();
    let of_hanging: Vec<bool> = (0..PEERS).map(|peer| placement[&scene.key(peer)].0 == 1).collect();
    let (is_of_hanging, all) = (|peer: u8| of_hanging[usize::from(peer)], 6 * DATAGRAMS / 2);
    let opened = |peer: u8| scene.peers[usize::from(peer)].snapshot().unwrap().tunnel.opened;
    let before: Vec<u64> = (0..PEERS).map(opened).collect();
    let hanging = StoppedThread::stop("weft-packets-1");
    let start = |peer| {
        let [near, far] = inner(peer);
        Numbered::start(&scene.gateway, near, &scene.sites, far, options(all, Replies::Never)).unwrap()
    };
    let flows: Vec<Numbered> = (0..PEERS).map(start).collect();
    // Of 20 flows some are read by the threads that go on. Without a rule for the one that hangs they would
    // stop after a few packets for its peers.
    until("the peers of other threads get packets", || {
        let others = (0..PEERS).filter(|peer| !is_of_hanging(*peer));
        others.map(|peer| opened(peer) - before[usize::from(peer)]).all(|packets| packets > all / 10)
    });
    drop(hanging);
    let ends: Vec<_> = flows.into_iter().map(|flows| std::thread::spawn(|| flows.finish())).collect();
    let reports: Vec<NumberedReport> = ends.into_iter().map(|end| end.join().unwrap()).collect();
    // The queue of the thread that hangs has flows of all peers, and overflows if that takes seconds.
    let by_kernels = scene.dropped_by_kernels();
    let (mut lost, mut of_others) = (0, 0);
    for (peer, report) in (0..PEERS).zip(&reports) {
        let tally = report.forward;
        assert_eq!((tally.out_of_order, tally.duplicates, tally.corrupt), (0, 0, 0), "{peer}: {report:?}");
        assert!(tally.received > 0, "{peer}: {report:?}");
        // What waited comes all at once, which may be more than a peer can open.
        let of_gateway = tally.lost - overload(&scene.peers[usize::from(peer)]);
        *(if is_of_hanging(peer) { &mut lost } else { &mut of_others }) += of_gateway;
    }
    let drops = scene.gateway_daemon.snapshot().unwrap().drops;
    let stalled = drops.get(DropReason::PacketThreadStalled);
    assert!(stalled > 0 && of_others <= by_kernels, "{of_others} {by_kernels} {drops:?}");
    assert_eq!(lost + of_others, stalled + by_kernels, "{drops:?}");
}

#[test]
fn without_a_program_of_the_kernel_threads_hand_messages_over_and_nothing_is_lost() {
    let _shared = shared();
    let mut refusal = Refusal::of_option(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, libc::EPERM);
    let Some(scene) = Scene::after(move || refusal.apply().unwrap()) else { return };
    scene.exchange(Replies::EveryPackets(5));
    scene.assert_shared(false);
}

#[test]
fn ten_thousand_peers_are_added_and_removed_while_all_threads_are_busy() {
    let _shared = shared();
    let Some(scene) = Scene::new() else { return };
    let controller = scene.gateway_daemon.controller().unwrap();
    let key = |number: u32| {
        let mut bytes = [5; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        PublicKey::from_bytes(bytes)
    };
    let numbers = 0..10_000;
    let add = numbers.clone().map(|number| PeerChange {
        allowed_ips: vec![AllowedIpChange::Add(
            format!("10.128.{}.{}/32", number / 256, number % 256).parse().unwrap(),
        )],
        ..PeerChange::new(key(number))
    });
    let remove = numbers.clone().map(|number| PeerChange { remove: true, ..PeerChange::new(key(number)) });
    let changes: [Vec<PeerChange>; 2] = [add.collect(), remove.collect()];
    let start = |peer| {
        let [near, far] = inner(peer);
        let replies = Replies::EveryPackets(5);
        Numbered::start(&scene.sites, far, &scene.gateway, near, options(DATAGRAMS, replies)).unwrap()
    };
    let flows: Vec<Numbered> = (0..PEERS).map(start).collect();
    for (peers, count) in changes.into_iter().zip([numbers.len(), 0]) {
        controller.set(DeviceChange { peers, ..DeviceChange::default() }).unwrap();
        let threads = scene.gateway_daemon.snapshot().unwrap().packet_threads;
        let (all, of_each) = (count + usize::from(PEERS), (count + usize::from(PEERS)) / threads.len());
        assert_eq!(threads.iter().map(|thread| thread.peers).sum::<usize>(), all);
        // A thread with all work so far gets fewer new peers: each counts as much as one of the first.
        let difference = |thread: &PacketThread| thread.peers.abs_diff(of_each);
        assert!(threads.iter().all(|thread| difference(thread) <= usize::from(PEERS)), "{threads:?}");
    }
    let ends: Vec<_> = flows.into_iter().map(|flows| std::thread::spawn(|| flows.finish())).collect();
    let mut lost = 0;
    for report in ends.into_iter().map(|end| end.join().unwrap()) {
        for tally in [report.forward, report.replies] {
            assert_eq!((tally.out_of_order, tally.duplicates, tally.corrupt), (0, 0, 0), "{report:?}");
            lost += tally.lost;
        }
    }
    let counted = scene.overload()..=scene.lost_outside();
    assert!(counted.contains(&lost), "{lost} {counted:?}");
}

#[test]
fn peers_that_move_while_they_have_traffic_stay_in_order_and_what_they_lose_is_counted() {
    let _shared = shared();
    let Some(scene) = Scene::new() else { return };
    let keys: Vec<PublicKey> = (0..PEERS).map(|peer| scene.key(peer)).collect();
    let controller = scene.gateway_daemon.controller().unwrap();
    // Short ones are not dropped for waiting long, as on a machine that has much else to do.
    let short = |amount| NumberedOptions { datagram_bytes: 400, ..options(amount, Replies::EveryPackets(5)) };
    let traffic = scene.start(0..PEERS, [true, false], short(u64::MAX));
    // Each peer visits another thread, and comes back once it has a new session.
    for round in 1..=3_u16 {
        let mut moved_at = HashMap::new();
        for (number, key) in (0_u16..).zip(&keys) {
            let to = (number + round) % THREADS;
            until("the peer has moved", || {
                moved_at.insert(*key, Instant::now());
                // It may have moved there by itself.
                controller.move_peer(*key, to).unwrap() || scene.placement()[key].0 == usize::from(to)
            });
        }
        let is_renewed = |(key, (_, at)): (PublicKey, (usize, Option<Instant>))| at > Some(moved_at[&key]);
        until("every peer has a new session", || scene.placement().into_iter().all(is_renewed));
    }
    traffic.flows.iter().for_each(Numbered::stop);
    scene.finish(traffic);
    // Sessions from before the moves are not in use any more.
    scene.send_with(0..PEERS, [true, false], short(DATAGRAMS));
    let snapshot = scene.gateway_daemon.snapshot().unwrap();
    assert!(snapshot.moves >= 3 * u64::from(PEERS), "{}", snapshot.moves);
    // A message may wait until its peer has left the thread and come back.
    scene.assert_nothing_dropped_but(&[DropReason::UnknownReceiverIndex]);
    for peer in &scene.peers {
        let drops = peer.snapshot().unwrap().drops;
        assert_eq!([DropReason::Replayed, DropReason::InvalidTag].map(|reason| drops.get(reason)), [0, 0]);
    }
}

#[test]
fn an_address_that_moves_between_peers_of_two_threads_gets_every_packet_that_is_not_counted() {
    let _alone = alone();
    let Some(scene) = Scene::new() else { return };
    let controller = scene.gateway_daemon.controller().unwrap();
    // Two peers take the address of the first from each other. Their interfaces are in one namespace.
    let ([near, far], placement) = (inner(0), scene.placement());
    let of_one = scene.key(0);
    let is_elsewhere = |peer: &u8| placement[&scene.key(*peer)].0 != placement[&of_one].0;
    let other = (1..PEERS).find(is_elsewhere).unwrap();
    let at_other = scene.peers[usize::from(other)].controller().unwrap();
    let give = |key, prefix: IpAddr| {
        let allowed_ips = vec![AllowedIpChange::Add(prefix.into())];
        DeviceChange { peers: vec![PeerChange { allowed_ips, ..PeerChange::new(key) }], ..Default::default() }
    };
    let of_gateway = at_other.get().unwrap().peers[0].public_key;
    at_other.set(give(of_gateway, near)).unwrap();
    let opened = |peer: u8| scene.peers[usize::from(peer)].snapshot().unwrap().tunnel.opened;
    let takers = [(of_one, 0), (scene.key(other), other)];
    let options = NumberedOptions {
        datagram_bytes: 100,
        datagrams_per_second: 20_000,
        ..options(u64::MAX, Replies::Never)
    };
    let flows = Numbered::start(&scene.gateway, near, &scene.sites, far, options).unwrap();
    for round in 1..=50 {
        let (key, peer) = takers[round % 2];
        let before = opened(peer);
        controller.set(give(key, far)).unwrap();
        until("the peer gets packets", || opened(peer) > before + 10);
    }
    flows.stop();
    let tally = flows.finish().forward;
    // Between two peers a flow has no order.
    assert_eq!((tally.duplicates, tally.corrupt), (0, 0), "{tally:?}");
    let counted = scene.overload()..=scene.lost_outside();
    assert!(counted.contains(&tally.lost), "{counted:?} {tally:?}");
    scene.assert_nothing_dropped();
}

#[test]
fn a_peer_moves_by_itself_where_packet_threads_have_unequal_work() {
    let _shared = shared();
    let Some(scene) = Scene::new() else { return };
    let before = scene.placement();
    let busy: Vec<u8> = (0..PEERS).filter(|peer| before[&scene.key(*peer)].0 == 0).collect();
    assert_eq!(busy.len(), usize::from(PEERS / THREADS as u8));
    // From the peers: only their packet thread has work, and never pauses.
    let options = NumberedOptions {
        datagram_bytes: 1300,
        datagrams_per_second: 20_000,
        burst: 40,
        segmentation_offload: true,
        ..options(u64::MAX, Replies::Never)
    };
    let traffic = scene.start(busy, [false], options);
    until("a peer has moved", || scene.gateway_daemon.snapshot().unwrap().moves > 0);
    traffic.flows.iter().for_each(Numbered::stop);
    scene.finish(traffic);
    let after = scene.placement();
    let moved: Vec<_> = before.iter().filter(|(key, (thread, _))| after[*key].0 != *thread).collect();
    assert!(!moved.is_empty() && moved.iter().all(|(_, (thread, _))| *thread == 0), "{moved:?}");
    scene.assert_nothing_dropped();
}
