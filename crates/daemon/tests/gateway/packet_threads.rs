//! A gateway with several packet threads: each serves its peers, hands over what it reads for the others,
//! keeps the order of every flow, and loses nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use weft::up::{Daemon, Options};
use weft_config as config;
use weft_config::device::{AllowedIpChange, DeviceChange, PeerChange, PeerState};
use weft_config::settings::InterfaceSettingsChange;
use weft_config::{PacketThreads, TunThreads};
use weft_lab::counters::Counters;
use weft_lab::link::{self, LinkOptions};
use weft_lab::mounts::separate_sockets;
use weft_lab::numbered::{Numbered, NumberedOptions, NumberedReport, Replies};
use weft_lab::refusal::{Argument, Refusal};
use weft_lab::traffic::Amount;
use weft_lab::{Namespace, Process, here, until};
use weft_tunnel::{DropReason, PeerSnapshot, PrivateKey, PublicKey};
use weft_uapi::Control as _;

use crate::machine::{alone, shared};
use crate::stopped_thread::{StoppedThread, thread_named};

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
        let exchanges: Vec<Numbered> = both.map(start).collect();
        // Each waits until nothing more arrives.
        let ends: Vec<_> =
            exchanges.into_iter().map(|exchange| std::thread::spawn(|| exchange.finish())).collect();
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
    /// other work: as overload, and between the kernel and a daemon, where a super-packet has up to 64.
    fn lost_outside(&self) -> u64 {
        64 * self.dropped_by_kernels() + self.overload()
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
        let snapshot = self.gateway_daemon.snapshot().unwrap();
        // The kernel's own multicast is for no peer.
        let allowed = [DropReason::NoPeer, DropReason::Overload];
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

/// Returns the packets that arrived faster than they could be opened.
fn overload(daemon: &Daemon) -> u64 {
    daemon.snapshot().unwrap().drops.get(DropReason::Overload)
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
    // A thread with less to do than the others before gets more of them.
    let each: Vec<usize> = threads.iter().map(|thread| thread.peers).collect();
    assert_eq!(each.iter().sum::<usize>(), usize::from(PEERS));
    assert!(each.iter().all(|peers| *peers > 0), "{each:?}");
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
fn each_pinned_thread_has_a_processor_and_more_threads_than_processors_are_refused() {
    let _alone = alone();
    if !here::tun_permitted() || weft_udp::MAX_SHARDS == 1 {
        return;
    }
    let processors = processors_of("/proc/self/status".as_ref());
    let namespace = Namespace::new("gateway").unwrap();
    let key = PrivateKey::generate().unwrap();
    let text = format!("[Interface]\nPrivateKey = {}\n", key.to_base64().as_str());
    let config =
        config::parse(&text, std::path::Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config;
    let start = |threads: usize| {
        let packet_threads = PacketThreads::Fixed(u16::try_from(threads).unwrap().try_into().unwrap());
        let options = Options { packet_threads, pin: true, ..Options::default() };
        namespace.run(|| Daemon::start(&config, &[], &options, || ()))
    };
    let threads = processors.len().min(3);
    let daemon = start(threads).unwrap();
    for (number, processor) in processors.iter().enumerate().take(threads) {
        let name = if number == 0 { "weft-packets".to_owned() } else { format!("weft-packets-{number}") };
        assert_eq!(processors_of(&thread_named(&name).join("status")), [*processor], "{name}");
    }
    drop(daemon);
    let error = start(processors.len() + 1).map(drop).unwrap_err().to_string();
    assert!(error.contains(&format!("packet thread {}", processors.len())), "{error}");
    assert!(error.contains("leave --pin out"), "{error}");
    assert_eq!(processors_of("/proc/self/status".as_ref()), processors);
}

/// Returns the processors that a thread may use.
fn processors_of(status: &Path) -> Vec<usize> {
    let status = std::fs::read_to_string(status).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let numbers = list.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    numbers.collect()
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
        let of_each = (count + usize::from(PEERS)) / threads.len();
        assert!(threads.iter().all(|thread| thread.peers.abs_diff(of_each) <= 1), "{threads:?}");
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

/// A namespace, and a directory with `wg0.conf` of an interface without peers; `None` where several packet
/// threads are not possible.
fn without_peers() -> Option<(Namespace, tempfile::TempDir)> {
    if !here::tun_permitted() || weft_udp::MAX_SHARDS == 1 {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let key = PrivateKey::generate().unwrap();
    let text = format!("[Interface]\nPrivateKey = {}\n", key.to_base64().as_str());
    std::fs::write(directory.path().join("wg0.conf"), text).unwrap();
    Some((Namespace::new("gateway").unwrap(), directory))
}

#[test]
fn more_threads_than_the_limit_of_descriptors_allows_are_refused_in_one_line() {
    let _shared = shared();
    let Some((namespace, directory)) = without_peers() else { return };
    let file = directory.path().join("wg0.conf");
    let arguments = ["-c", "ulimit -n 300; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weft"), "up"];
    let mut command = namespace.command("sh");
    command.args(arguments).arg(&file).args(["--packet-threads", "64", "--log", "error"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("64 packet threads need") && stderr.contains("may open 300"), "{stderr}");
}

#[test]
fn a_kernel_with_fewer_queues_than_wanted_is_told_of_in_one_line_and_nothing_is_left() {
    let _shared = shared();
    let Some((namespace, directory)) = without_peers() else { return };
    let file = directory.path().join("wg0.conf");
    let up = |arguments: &str, descriptors| {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_weft"));
        command.arg("up").arg(&file).args(arguments.split(' '));
        separate_sockets(&mut command);
        let arguments = [(1, Argument::Is(libc::TUNSETIFF as i32)), (0, Argument::AtLeast(descriptors))];
        Refusal::new(libc::SYS_ioctl, &arguments, libc::E2BIG).apply_to(&mut command);
        command
    };
    // The queues have consecutive descriptors: from some number on there is none for more.
    let mut given = Vec::new();
    for descriptors in 3..40 {
        let output = up("--packet-threads 3 --log error", descriptors).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
        let links = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        assert!(!links.contains("wg0:"), "{links}");
        let Some((_, rest)) = stderr.split_once("the kernel gives interface wg0 ") else { continue };
        let (queues, advice) = rest.trim_end().split_once(" of 9 queues (").unwrap();
        given.push(queues.parse::<u32>().unwrap());
        let (_, advice) = advice.split_once("): ").unwrap();
        let options = advice.strip_suffix(" needs no more").unwrap();
        assert_eq!(options, format!("--packet-threads 1 --tun-threads {queues}"));
        if given == [1] || given.last() == Some(&8) {
            let process = Process::start(&namespace, up(options, descriptors)).unwrap();
            process.wait_for_line(" is up: port ");
        }
        if given.last() == Some(&8) {
            break;
        }
    }
    assert_eq!(given, (1..=8).collect::<Vec<_>>());
}

#[test]
fn peers_that_move_while_they_have_traffic_lose_nothing_and_stay_in_order() {
    let _shared = shared();
    let Some(scene) = Scene::new() else { return };
    let keys: Vec<PublicKey> = (0..PEERS).map(|peer| scene.key(peer)).collect();
    let controller = scene.gateway_daemon.controller().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let traffic = threads.spawn(|| {
            // Short ones are not dropped for waiting long, as on a machine that has much else to do.
            let options =
                NumberedOptions { datagram_bytes: 400, ..options(DATAGRAMS, Replies::EveryPackets(5)) };
            while !is_over.load(Ordering::Relaxed) {
                scene.send_with(0..PEERS, [true, false], options);
            }
            // Sessions from before the moves are not in use any more.
            scene.send_with(0..PEERS, [true, false], options);
        });
        // Each peer visits another thread, and comes back once it has a new session.
        for round in 1..=3_u16 {
            for (number, key) in (0_u16..).zip(&keys) {
                let to = (number + round) % THREADS;
                until("the peer has moved", || {
                    traffic.is_finished() || controller.move_peer(*key, to).unwrap()
                });
            }
            let moved_at = Instant::now();
            let is_renewed = |(_, at): &(usize, Option<Instant>)| at.is_some_and(|at| at > moved_at);
            let are_renewed = || scene.placement().values().all(is_renewed);
            until("every peer has a new session", || traffic.is_finished() || are_renewed());
        }
        is_over.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
    });
    let snapshot = scene.gateway_daemon.snapshot().unwrap();
    assert_eq!(snapshot.moves, 3 * u64::from(PEERS));
    assert!(snapshot.packet_threads.iter().all(|thread| thread.peers == usize::from(PEERS / THREADS as u8)));
    scene.assert_nothing_dropped();
}

#[test]
fn an_address_that_moves_between_peers_of_two_threads_gets_every_packet() {
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
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let traffic = threads.spawn(|| {
            // From the peers: only their packet thread has work.
            let options = NumberedOptions {
                datagram_bytes: 1300,
                datagrams_per_second: 20_000,
                burst: 40,
                segmentation_offload: true,
                ..options(20_000, Replies::Never)
            };
            while !is_over.load(Ordering::Relaxed) {
                scene.send_with(busy.iter().copied(), [false], options);
            }
        });
        let moves = || scene.gateway_daemon.snapshot().unwrap().moves;
        until("a peer has moved", || traffic.is_finished() || moves() > 0);
        is_over.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
    });
    let after = scene.placement();
    let moved: Vec<_> = before.iter().filter(|(key, (thread, _))| after[*key].0 != *thread).collect();
    assert!(!moved.is_empty() && moved.iter().all(|(_, (thread, _))| *thread == 0), "{moved:?}");
    scene.assert_nothing_dropped();
}
