//! The device of a tunnel without root: a TUN, or where that may not be a veth pair with a packet socket.

use std::net::IpAddr;

use weft_lab::counters::{Counters, InterfaceCounters};
use weft_lab::numbered::{Numbered, NumberedOptions, Replies, Tally};
use weft_lab::traffic::Amount;
use weft_lab::{Namespace, Process, Transfer, link, until, wait_until_ok};
use weft_report::StatusReport;

use crate::support::{BEHIND, Ended, World, page, url};

const BACKINGS: [&str; 2] = ["tun", "veth"];
/// The name of the interface, after the file.
const INTERFACE: &str = "office";
/// Inner addresses: those of the user, and those of the gateway.
const ADDRESSES: [[&str; 2]; 2] = [["10.77.0.2", "fd77::2"], ["10.77.0.1", "fd77::1"]];

/// A tunnel of the user on a device of one kind, with a command that waits in it.
struct Tunnel<'a> {
    world: &'a World,
    weft: Process,
    inside: Namespace,
    before: InterfaceCounters,
}

/// Where traffic comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Inside,
    Gateway,
}

impl<'a> Tunnel<'a> {
    fn new(world: &'a World, backing: &str) -> Self {
        Self::with(world, backing, &[])
    }

    fn with(world: &'a World, backing: &str, options: &[&str]) -> Self {
        println!("{backing}");
        let script =
            "ping -c 1 -W 60 10.77.0.1 && ping -c 1 -W 60 fd77::1 && echo process $$ && exec sleep 600";
        let mut command = world.exec(&world.file(""), options, &["sh", "-c", script]);
        command.env("WEFT_ROOTLESS_DEVICE", backing);
        let weft = Process::start(&world.client, world.in_session(command)).unwrap();
        let line = weft.wait_for_line("process ");
        let pid = line.split(' ').next_back().unwrap().trim().parse().unwrap();
        let inside = Namespace::of_process("inside", pid).unwrap();
        let mut tunnel = Self { world, weft, inside, before: InterfaceCounters::default() };
        let report = tunnel.report();
        assert_eq!(report.tun.backing, backing);
        // What was before the first report: the kernel's own packets of the link, and a probe of weft.
        let kernel = tunnel.kernel();
        tunnel.before.tx_packets = kernel.tx_packets - report.tun.packets_read;
        tunnel.before.rx_packets = kernel.rx_packets - report.tun.packets_written;
        tunnel
    }

    /// Takes the tunnel down, so that the next one is another.
    fn end(mut self) {
        assert_eq!(self.world.weft_in_session(&["down", INTERFACE]).code, Some(0));
        self.weft.wait();
        until("no process of the user is left", || self.world.processes().is_empty());
    }

    fn report(&self) -> StatusReport {
        let arguments = ["status", INTERFACE, "--json", "--sample", "0"];
        let output = self.world.weft_in_session(&arguments);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        serde_json::from_value(status["interfaces"][0].clone()).unwrap()
    }

    fn kernel(&self) -> InterfaceCounters {
        Counters::read(&self.inside).unwrap().interface(INTERFACE)
    }

    /// The most datagrams that may be missing: what weft and the kernel count as dropped, but for the queue
    /// before weft.
    fn lost(&self, report: &StatusReport) -> u64 {
        let dropped: u64 = report.drops.iter().map(|drop| drop.packets).sum();
        let at_sockets = Counters::read(&self.inside).unwrap().udp_receive_buffer_full();
        dropped + at_sockets + self.world.lost_outside()
    }

    /// The sender and the receiver, each with its address.
    fn ends(&self, from: From, family: usize) -> [(&Namespace, IpAddr); 2] {
        let [inside, gateway] = ADDRESSES.map(|addresses| addresses[family].parse().unwrap());
        let (inside, gateway) = ((&self.inside, inside), (&self.world.gateway, gateway));
        if from == From::Inside { [inside, gateway] } else { [gateway, inside] }
    }

    fn transfer(&self, from: From, family: usize, flows: u32, amount: Amount) -> Transfer {
        let [(from, _), (to, address)] = self.ends(from, family);
        Transfer::start(from, to, address, flows, amount).unwrap()
    }

    fn numbered(&self, from: From, family: usize, options: NumberedOptions) -> Numbered {
        let [(from, source), (to, destination)] = self.ends(from, family);
        Numbered::start(from, source, to, destination, options).unwrap()
    }

    /// Waits until each packet that the kernel counts for the device is one that weft counts, or a counted
    /// drop of the kernel; weft itself dropped none.
    fn assert_balanced(&self) -> StatusReport {
        wait_until_ok(|| {
            let (report, kernel) = (self.report(), self.kernel());
            let tun = &report.tun;
            // A TUN does not count what did not fit.
            let overflows = if tun.backing == "veth" { tun.queue_overflows } else { 0 };
            let out = (kernel.tx_packets - self.before.tx_packets, tun.packets_read + overflows);
            let back = (kernel.rx_packets - self.before.rx_packets, tun.packets_written);
            // More than can be opened is dropped before, fairly.
            let is_none_dropped = report.drops.iter().all(|drop| drop.reason == "overload");
            let is_balanced = out.0 == out.1 && back.0 == back.1 && is_none_dropped;
            if is_balanced { Ok(report) } else { Err(format!("{out:?} {back:?} {:?}", report.drops)) }
        })
    }
}

/// Nothing is displaced, repeated or changed, and no more is missing than was lost in the kernel.
#[track_caller]
fn assert_in_order(tally: Tally, lost_in_kernel: u64) {
    let Tally { out_of_order, duplicates, corrupt, lost, received, .. } = tally;
    assert_eq!((out_of_order, duplicates, corrupt), (0, 0, 0), "{tally:?}");
    assert!(lost <= lost_in_kernel && received > 0, "{lost_in_kernel} lost in the kernel: {tally:?}");
}

#[test]
fn everything_arrives_in_order_and_is_counted_on_both_kinds_of_device() {
    let Some(world) = World::with(&["ping"]) else { return };
    for backing in BACKINGS {
        let tunnel = Tunnel::new(&world, backing);
        let stream = |from, family| tunnel.transfer(from, family, 8, Amount::Count((1 << 20) + 7));
        let both = |from| [stream(from, 0), stream(from, 1)];
        for transfer in [both(From::Inside), both(From::Gateway)].into_iter().flatten() {
            assert_eq!(transfer.finish(), 8 * ((1 << 20) + 7));
        }
        let options = |segmentation_offload| NumberedOptions {
            flows: 200,
            datagram_bytes: 1_300,
            datagrams_per_second: 8_000,
            burst: 8,
            segmentation_offload,
            amount: Amount::Count(8_000),
            replies: Replies::EveryPackets(5),
        };
        let running = [
            tunnel.numbered(From::Inside, 0, options(true)),
            tunnel.numbered(From::Gateway, 1, options(false)),
        ];
        let reports = running.map(Numbered::finish);
        let report = tunnel.assert_balanced();
        let tun = &report.tun;
        // A super-packet of datagrams has up to 8.
        let before_weft = tun.queue_overflows + tunnel.kernel().tx_dropped;
        let lost = 8 * before_weft + tunnel.lost(&report);
        reports
            .iter()
            .flat_map(|report| [report.forward, report.replies])
            .for_each(|tally| assert_in_order(tally, lost));
        assert!(tun.segments_read > tun.packets_read, "{tun:?}");
        assert!(tun.segments_written > tun.packets_written, "{tun:?}");
        assert_eq!((tun.write_drops, tun.tcp_offload, tun.udp_offload), (0, true, true), "{tun:?}");
        tunnel.end();
    }
}

/// More than the link to the gateway carries: weft stops reading, and the kernel's queue before it overflows.
#[test]
fn a_slow_link_stops_the_reader_and_costs_only_packets_of_the_queue() {
    let Some(world) = World::with(&["ping", "tc"]) else { return };
    for backing in BACKINGS {
        let tunnel = Tunnel::new(&world, backing);
        world.limit_rate(5_000_000);
        let flood = NumberedOptions {
            flows: 16,
            datagram_bytes: 1_300,
            datagrams_per_second: 40_000,
            burst: 8,
            amount: Amount::Count(60_000),
            ..NumberedOptions::default()
        };
        let flood = tunnel.numbered(From::Inside, 0, flood);
        // The other direction goes on.
        tunnel.transfer(From::Gateway, 1, 2, Amount::Count(1 << 20)).finish();
        let report = flood.finish();
        world.limit_rate(1_000_000_000);
        let balanced = tunnel.assert_balanced();
        let overflows = balanced.tun.queue_overflows;
        assert!(overflows > 0, "its queue was never full: {balanced:?}");
        assert_in_order(report.forward, overflows + tunnel.lost(&balanced));
        tunnel.transfer(From::Inside, 0, 2, Amount::Count(1 << 20)).finish();
        tunnel.end();
    }
}

/// More than the far end of the pair lets through to the commands: weft waits, and drops with a count what it
/// has no room for.
#[test]
fn a_slow_far_end_of_a_veth_pair_is_waited_for() {
    /// What weft keeps for an interface at most, with room for what the memory allocator keeps.
    const MOST_KIB: u64 = 64 << 10;
    let Some(world) = World::with(&["ping", "tc"]) else { return };
    let tunnel = Tunnel::new(&world, "veth");
    let process = world.tunnel().as_raw().cast_unsigned();
    let far = Namespace::of_packet_socket("far", process).unwrap();
    // With a burst below the longest super-packet the queue would divide it, and the counts would differ.
    let limit_far_end = |rate: &str| {
        let tbf = ["root", "tbf", "rate", rate, "burst", "256kb", "limit", "64mb"];
        let mut tc = far.command("tc");
        let output = tc.args(["qdisc", "replace", "dev", "far"]).args(tbf).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    limit_far_end("1mbps");
    let before = peak_memory_kib(process);
    let flood = NumberedOptions {
        flows: 16,
        datagram_bytes: 1_300,
        datagrams_per_second: 20_000,
        burst: 8,
        amount: Amount::Count(u64::MAX),
        ..NumberedOptions::default()
    };
    let flood = tunnel.numbered(From::Gateway, 0, flood);
    // The other direction goes on. Answers would wait behind the flood.
    let other = NumberedOptions { amount: Amount::Count(100), ..NumberedOptions::default() };
    let other = tunnel.numbered(From::Inside, 0, other).finish().forward;
    // The kernel first keeps some MiB for weft.
    let has_waited = || tunnel.report().drops.iter().any(|drop| drop.reason == "overload");
    until("weft to have no more room for what waits for the far end", has_waited);
    flood.stop();
    let report = flood.finish();
    limit_far_end("1000mbps");
    assert_eq!((other.received, other.out_of_order, other.corrupt), (100, 0, 0), "{other:?}");
    let balanced = tunnel.assert_balanced();
    assert_in_order(report.forward, tunnel.lost(&balanced));
    assert_eq!(balanced.tun.write_drops, 0, "{:?}", balanced.tun);
    let grown = peak_memory_kib(process) - before;
    assert!(grown < MOST_KIB, "{grown} KiB");
    tunnel.transfer(From::Gateway, 1, 2, Amount::Count(1 << 20)).finish();
}

/// The peak of resident memory of a process.
fn peak_memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
}

/// More than weft can open: what it opened arrives, and the kernel's queue behind the packet socket does not
/// overflow.
#[test]
fn a_flood_of_small_packets_is_delivered_through_a_veth_pair() {
    let Some(world) = World::with(&["ping"]) else { return };
    let tunnel = Tunnel::new(&world, "veth");
    let flood = NumberedOptions {
        flows: 300,
        datagram_bytes: 64,
        datagrams_per_second: 400_000,
        burst: 64,
        amount: Amount::Count(300_000),
        ..NumberedOptions::default()
    };
    let report = tunnel.numbered(From::Gateway, 0, flood).finish();
    let balanced = tunnel.assert_balanced();
    assert_in_order(report.forward, tunnel.lost(&balanced));
    assert_eq!(balanced.tun.write_drops, 0, "{:?}", balanced.tun);
}

#[test]
fn the_kernel_sends_nothing_of_its_link_through_a_veth_pair() {
    let Some(world) = World::with(&["ping"]) else { return };
    let tunnel = Tunnel::new(&world, "veth");
    let ip = |arguments: &[&str]| {
        let output = tunnel.inside.command("ip").args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // Without a link-local address it looks for no router, and with NOARP for no neighbour.
    let addresses = ip(&["-o", "address", "show", INTERFACE]);
    assert!(addresses.contains("fd77::2") && !addresses.contains("fe80"), "{addresses}");
    let links = ip(&["-o", "link"]);
    assert!(links.lines().count() == 2 && links.contains("NOARP"), "{links}");
    let neighbours = ip(&["neighbour"]);
    assert!(!neighbours.contains("INCOMPLETE") && !neighbours.contains("FAILED"), "{neighbours}");
    assert_eq!(tunnel.before.tx_packets, 0, "packets that weft did not read");
    let read = tunnel.report().tun;
    assert_eq!(read.packets_read, 2, "two pings: {read:?}");
}

#[test]
fn without_offloads_every_packet_of_a_veth_pair_is_single_and_complete() {
    let Some(world) = World::with(&["ping"]) else { return };
    let tunnel = Tunnel::with(&world, "veth", &["--no-offload"]);
    for family in [0, 1] {
        for from in [From::Inside, From::Gateway] {
            tunnel.transfer(from, family, 2, Amount::Count((1 << 20) + 7)).finish();
        }
    }
    let tun = tunnel.assert_balanced().tun;
    assert_eq!((tun.segments_read, tun.segments_written), (tun.packets_read, tun.packets_written), "{tun:?}");
    assert!(!tun.tcp_offload && !tun.udp_offload, "{tun:?}");
}

#[test]
fn a_thread_for_each_direction_serves_a_veth_pair() {
    let Some(world) = World::with(&["ping"]) else { return };
    let tunnel = Tunnel::with(&world, "veth", &["--tun-threads", "4"]);
    for from in [From::Inside, From::Gateway] {
        tunnel.transfer(from, 1, 8, Amount::Count((1 << 20) + 7)).finish();
    }
    let report = tunnel.assert_balanced();
    assert_eq!((report.tun.threads, report.tun.queues.len()), (1, 1), "{:?}", report.tun);
    let of_tun = report.threads.iter().filter(|thread| thread.name.starts_with("weft-tun-"));
    assert!(of_tun.clone().count() == 2 && of_tun.clone().all(|thread| thread.is_filtered), "{report:?}");
}

#[test]
fn a_packet_that_is_longer_than_the_mtu_of_a_veth_pair_is_counted() {
    let Some(world) = World::with(&["ping"]) else { return };
    let tunnel = Tunnel::new(&world, "veth");
    let mtu = tunnel.report().mtu;
    link::set_mtu(&tunnel.inside, INTERFACE, u32::from(mtu) - 200).unwrap();
    // Of different flows, so that none are joined.
    let long = NumberedOptions {
        flows: 5,
        datagram_bytes: usize::from(mtu) - 28,
        amount: Amount::Count(5),
        ..NumberedOptions::default()
    };
    let report = tunnel.numbered(From::Gateway, 0, long).finish();
    assert_eq!((report.forward.received, report.forward.lost), (0, 5), "{report:?}");
    wait_until_ok(|| {
        let report = tunnel.report();
        let refused = report.drops.iter().find(|drop| drop.reason == "tun_write_failed");
        let counted = report.tun.write_drops.max(refused.map_or(0, |drop| drop.packets));
        if counted == 5 { Ok(()) } else { Err(format!("{report:?}")) }
    });
}

#[test]
fn a_tunnel_ends_when_its_veth_pair_is_removed() {
    let Some(world) = World::with(&["ping"]) else { return };
    let mut tunnel = Tunnel::new(&world, "veth");
    link::remove(&tunnel.inside, INTERFACE).unwrap();
    let status = tunnel.weft.wait();
    assert_eq!(status.code(), Some(125), "{}", tunnel.weft.log());
    assert!(tunnel.weft.log().contains("was the interface deleted?"), "{}", tunnel.weft.log());
    until("no process of the user is left", || world.processes().is_empty());
}

#[test]
fn iperf3_and_a_proxy_use_a_veth_pair_over_both_families() {
    let Some(world) = World::with(&["iperf3", "ping"]) else { return };
    world.serve_page(80);
    let _tunnel = Tunnel::new(&world, "veth");
    let file = world.file("");
    // They join the tunnel.
    let proxy = world.weft(&["proxy", file.to_str().unwrap(), "--socks5", "1080"]);
    let proxy = Process::start(&world.client, world.in_session(proxy)).unwrap();
    proxy.wait_for_line("serving");
    for ((address, own), behind) in ADDRESSES[1].iter().zip(ADDRESSES[0]).zip(BEHIND) {
        let mut server = world.gateway.command("iperf3");
        server.args(["--server", "--forceflush", "--bind", address]);
        let server = Process::start(&world.gateway, server).unwrap();
        server.wait_for_line("Server listening");
        for options in [&[][..], &["--reverse"], &["--udp", "--bitrate", "50M"]] {
            let iperf3 = [&["iperf3", "--client", address, "--time", "1"], options].concat();
            let ended: Ended = world.in_session(world.exec(&file, &[], &iperf3)).output().unwrap().into();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
        let ended = world.curl(&["--proxy", "socks5h://127.0.0.1:1080", &url(behind)]);
        assert!(ended.code == Some(0) && ended.stdout == page(own), "{}", ended.stderr);
    }
}
