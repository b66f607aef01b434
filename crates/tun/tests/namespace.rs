//! The real Linux device, in a separate network namespace. Needs root.
//!
//! ```text
//!   sockets on 10.77.0.1 ── kernel ──► weftA ──► Device ─┐ addresses and ports swapped
//!                         ◄─ kernel ── weftA ◄── Device ◄┘
//!
//! segments ──► Device A ── weftA ── kernel forwards, and splits ── weftB ── Device B without offload ──►
//! segments
//! ```
#![cfg(target_os = "linux")]
// The type of ioctl numbers differs from one libc to the other.
#![allow(clippy::unwrap_used, clippy::unnecessary_cast)]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use weft_lab::{Namespace, here, link};
use weft_tun::{
    Device, MAX_QUEUES, OpenError, SUPER_PACKETS, Tun, TunBatch, TunConfig, TunOffload, check_queue, open,
    open_queues,
};
use weft_tunnel::ip;

/// Runs `test` in a separate network namespace, or reports that it cannot.
fn in_namespace(test: impl AsyncFnOnce(&Namespace) + Send) {
    // One test at a time, because they count the descriptors of the process.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !here::tun_permitted() {
        return;
    }
    let namespace = Namespace::new("tun").unwrap();
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(&namespace));
    });
}

/// The queues of a device: their number, and whether they have threads.
#[derive(Clone, Copy, Debug)]
struct Queues {
    count: usize,
    threads: bool,
}

fn threads(count: usize) -> Queues {
    Queues { count, threads: true }
}

fn inline(count: usize) -> Queues {
    Queues { count, threads: false }
}

/// Returns those that a device of this build may have, and reports the others as not run.
fn possible<const N: usize>(queues: [Queues; N]) -> impl Iterator<Item = Queues> {
    queues.into_iter().filter(|queues| several_queues(queues.count))
}

/// Reports whether a device of this build may have `count` queues; if not, the test is not run with them.
fn several_queues(count: usize) -> bool {
    if count > MAX_QUEUES {
        here::not_run(&format!("with {count} queues: a TUN has {MAX_QUEUES} in this build"));
    }
    count <= MAX_QUEUES
}

/// Reports whether a device of this build takes super-packets; if not, the test is not run.
fn super_packets() -> bool {
    if !SUPER_PACKETS {
        here::not_run("with super-packets: a TUN takes none in this build");
    }
    SUPER_PACKETS
}

fn config(name: &str, queues: Queues) -> TunConfig {
    TunConfig { queues: queues.count, threads: queues.threads, ..TunConfig::new(name) }
}

/// Assigns the interface an address and sets it up.
fn bring_up(namespace: &Namespace, name: &str, address: &str) {
    link::add_address(namespace, name, address.parse().unwrap()).unwrap();
    link::set_up(namespace, name).unwrap();
}

/// A socket of the kernel's end of weftA, connected to an address behind it.
fn connected() -> UdpSocket {
    let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
    socket.connect("10.77.0.2:7").unwrap();
    socket
}

fn complete_checksums(packet: &mut [u8]) {
    ip::write_ipv4_checksum(packet, 20);
    let field = 20 + if packet[9] == ip::UDP { 6 } else { 16 };
    packet[field..field + 2].fill(0);
    let pseudo = ip::pseudo_header_sum(&packet[12..20], packet[9], packet.len() - 20);
    let sum = !ip::fold(ip::checksum_add(pseudo, &packet[20..]));
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

async fn recv(device: &mut Device) -> VecDeque<TunBatch> {
    let mut batches = VecDeque::new();
    let bytes = poll_fn(|cx| device.poll_recv_many(cx, &mut batches, 1 << 18)).await.unwrap();
    assert!(bytes > 0, "the device is gone");
    batches
}

/// Selects the packets that the test sends: the kernel also sends IPv6 packets by itself.
fn is_ipv4(packet: &[u8]) -> bool {
    packet[0] >> 4 == 4
}

async fn send_all(device: &mut Device, packets: &[Vec<u8>]) {
    for packet in packets {
        poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
        let range = match device.plain_slab().push(packet) {
            Some(range) => range,
            None => {
                device.flush().unwrap();
                poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
                device.plain_slab().push(packet).unwrap()
            }
        };
        device.send(range).unwrap();
    }
    device.flush().unwrap();
}

fn open_tun_descriptors() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.ends_with("net/tun")).count()
}

async fn echoes_in_order(namespace: &Namespace, queues: Queues) {
    let device = open(config("weftA", queues)).unwrap();
    assert_eq!(device.name(), "weftA");
    echoes_in_order_through(namespace, device).await;
}

async fn echoes_in_order_through(namespace: &Namespace, mut device: Device) {
    const SOCKETS: usize = 8;
    const PACKETS: u32 = 40;
    bring_up(namespace, "weftA", "10.77.0.1/24");
    let sockets = [(); SOCKETS].map(|()| connected());
    for turn in 0..4 {
        let numbers = turn * PACKETS..(turn + 1) * PACKETS;
        for number in numbers.clone() {
            for socket in &sockets {
                socket.send(&number.to_be_bytes()).unwrap();
            }
        }
        let mut seen = 0;
        while seen < SOCKETS * PACKETS as usize {
            let mut replies = Vec::new();
            for mut batch in recv(&mut device).await {
                while let Some(packet) = batch.next_packet() {
                    if !is_ipv4(packet.bytes()) {
                        continue;
                    }
                    let mut reply = packet.bytes().to_vec();
                    let (source, destination) = reply[12..20].split_at_mut(4);
                    source.swap_with_slice(destination);
                    let (source, destination) = reply[20..24].split_at_mut(2);
                    source.swap_with_slice(destination);
                    complete_checksums(&mut reply);
                    replies.push(reply);
                }
            }
            seen += replies.len();
            send_all(&mut device, &replies).await;
        }
        for socket in &sockets {
            for number in numbers.clone() {
                let mut buffer = [0; 100];
                assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
                assert_eq!(buffer[..4], number.to_be_bytes(), "in order, none lost");
            }
        }
    }
    assert_eq!(device.stats().snapshot().write_failures, 0);
}

#[test]
fn every_number_of_queues_keeps_the_order_of_every_flow() {
    for queues in possible([threads(4), threads(1), inline(1), inline(4)]) {
        println!("{queues:?}");
        in_namespace(async |namespace| echoes_in_order(namespace, queues).await);
    }
}

#[test]
fn a_flood_costs_only_flows_that_share_its_queue() {
    const OTHERS: usize = 32;
    let others_beside_a_flood = async |namespace: &Namespace, queues: Queues| {
        let mut device = open(config("weftA", queues)).unwrap();
        bring_up(namespace, "weftA", "10.77.0.1/24");
        let (flood, others) = (connected(), [(); OTHERS].map(|()| connected()));
        // Four times the capacity of a ring.
        for _ in 0..2000 {
            let _ = flood.send(&[1; 1000]);
        }
        for other in &others {
            let _ = other.send(&[2; 100]);
        }
        let (mut of_flood, mut of_others, mut first_turns) = (0, 0, 0);
        for turn in 0.. {
            let mut batches = VecDeque::new();
            tokio::task::yield_now().await;
            let polled = poll_fn(|cx| {
                std::task::Poll::Ready(device.poll_recv_many(cx, &mut batches, 1 << 18).is_ready())
            });
            if !polled.await && turn > 0 {
                break;
            }
            for packet in batches.iter().flat_map(TunBatch::remaining).filter(|packet| is_ipv4(packet)) {
                if packet[28] == 1 { of_flood += 1 } else { of_others += 1 }
            }
            if turn == 1 {
                first_turns = of_others;
            }
        }
        // Not always 500, because the kernel also sends IPv6 packets by itself.
        assert!((450..=500).contains(&of_flood), "{of_flood}: its ring was full");
        assert_eq!(first_turns, of_others, "the others did not wait for the end of it");
        of_others
    };
    in_namespace(async |namespace| {
        assert_eq!(others_beside_a_flood(namespace, inline(1)).await, 0);
        if !several_queues(4) {
            return;
        }
        // The kernel's hash puts a quarter of them, on average, into the flood's queue.
        let through = others_beside_a_flood(namespace, inline(4)).await;
        assert!(through >= OTHERS / 4, "{through} of {OTHERS}");
    });
}

/// Returns a request from port 7 of 10.77.0.2, to be written to the device.
fn request_to(socket: &UdpSocket) -> Vec<u8> {
    let mut packet = vec![0; 32];
    packet[..12].copy_from_slice(&[0x45, 0, 0, 32, 0, 0, 0, 0, 64, ip::UDP, 0, 0]);
    packet[12..20].copy_from_slice(&[10, 77, 0, 2, 10, 77, 0, 1]);
    packet[20..22].copy_from_slice(&7_u16.to_be_bytes());
    packet[22..24].copy_from_slice(&socket.local_addr().unwrap().port().to_be_bytes());
    packet[24..28].copy_from_slice(&[0, 12, 0, 0]);
    packet[28..].fill(3);
    complete_checksums(&mut packet);
    packet
}

#[test]
fn answers_leave_the_queue_that_a_flood_fills() {
    if !several_queues(4) {
        return;
    }
    in_namespace(async |namespace| {
        let mut device = open(config("weftA", inline(4))).unwrap();
        bring_up(namespace, "weftA", "10.77.0.1/24");
        let flood = connected();
        // Returns the queue from which a packet with this content is read. Calls `meanwhile` after each read.
        async fn next(device: &mut Device, wanted: u8, meanwhile: impl Fn()) -> u16 {
            for _ in 0..1000 {
                let batches = recv(device).await;
                meanwhile();
                let mut found = batches
                    .iter()
                    .filter(|batch| batch.remaining().any(|packet| is_ipv4(packet) && packet[28] == wanted));
                if let Some(batch) = found.next() {
                    return batch.queue();
                }
            }
            panic!("it is lost");
        }
        async fn answer(device: &mut Device, socket: &UdpSocket, meanwhile: impl Fn()) -> u16 {
            send_all(device, &[request_to(socket)]).await;
            assert_eq!(socket.recv(&mut [0; 10]).unwrap(), 4);
            socket.send(&[2; 100]).unwrap();
            next(device, 2, meanwhile).await
        }
        flood.send(&[1; 1000]).unwrap();
        let filled = next(&mut device, 1, || {}).await;
        let mut others = Vec::new();
        while others.len() < 8 {
            let other = connected();
            if answer(&mut device, &other, || {}).await == filled {
                others.push(other);
            }
        }

        // More than the ring holds, so that the ring is full again after each read.
        let overflow = || (0..1000).for_each(|_| drop(flood.send(&[1; 1000])));
        overflow();
        for _ in 0..200 {
            recv(&mut device).await;
            overflow();
        }
        let mut queues = Vec::new();
        for other in &others {
            queues.push(answer(&mut device, other, overflow).await);
        }
        assert!(queues.iter().all(|queue| *queue != filled), "{queues:?}, filled is {filled}");
        // They stay there after the end of the flood too.
        while poll_once(&mut device).await {}
        for (other, queue) in others.iter().zip(queues) {
            assert_eq!(answer(&mut device, other, || {}).await, queue);
        }
    });
}

/// Reports whether a poll is ready, after the runtime has asked the kernel.
async fn poll_once(device: &mut Device) -> bool {
    tokio::task::yield_now().await;
    poll_fn(|cx| std::task::Poll::Ready(device.poll_recv_many(cx, &mut VecDeque::new(), 1 << 18).is_ready()))
        .await
}

/// Returns segments of one stream from 10.77.0.2 to 10.78.0.2, with `len` bytes of payload each. The last has
/// a byte less.
fn stream(protocol: u8, count: u32, len: usize) -> Vec<Vec<u8>> {
    let header = if protocol == ip::UDP { 28 } else { 52 };
    let each = (0..count).map(|number| {
        let payload = if number + 1 == count { len - 1 } else { len };
        let mut packet: Vec<_> = (0..header + payload).map(|at| (at as u32 * 7 + number) as u8).collect();
        packet[0] = 0x45;
        packet[1] = 0;
        let total = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&total);
        packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
        packet[6..10].copy_from_slice(&[0x40, 0, 64, protocol]);
        packet[12..24].copy_from_slice(&[10, 77, 0, 2, 10, 78, 0, 2, 0x10, 1, 0x20, 2]);
        if protocol == ip::UDP {
            packet[24..26].copy_from_slice(&((8 + payload) as u16).to_be_bytes());
        } else {
            packet[24..28].copy_from_slice(&(1000 + number * len as u32).to_be_bytes());
            let flags = if number + 1 == count { 0x18 } else { 0x10 };
            packet[28..40].copy_from_slice(&[9, 9, 9, 9, 0x80, flags, 1, 1, 0, 0, 0, 0]);
            packet[40..52].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        complete_checksums(&mut packet);
        packet
    });
    each.collect()
}

async fn the_kernel_splits_what_was_joined(namespace: &Namespace, queues: Queues) {
    if !super_packets() {
        return;
    }
    let mut a = open(config("weftA", queues)).unwrap();
    let mut b = open(TunConfig { offload: false, ..config("weftB", queues) }).unwrap();
    assert!(a.offload().tcp && !b.offload().tcp);
    bring_up(namespace, "weftA", "10.77.0.1/24");
    bring_up(namespace, "weftB", "10.78.0.1/24");
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    for (protocol, offload) in [(ip::TCP, a.offload().tcp), (ip::UDP, a.offload().udp)] {
        let before = a.stats().snapshot().packets_written;
        let sent = stream(protocol, 40, 1000);
        send_all(&mut a, &sent).await;
        let mut received = Vec::new();
        while received.len() < sent.len() {
            for mut batch in recv(&mut b).await {
                while let Some(packet) = batch.next_packet() {
                    assert_eq!(packet.offload(), weft_tunnel::Offload::None);
                    if is_ipv4(packet.bytes()) {
                        received.push(packet.bytes().to_vec());
                    }
                }
            }
        }
        for (number, (sent, received)) in sent.iter().zip(&received).enumerate() {
            let mut expected = sent.clone();
            expected[8] -= 1;
            ip::write_ipv4_checksum(&mut expected, 20);
            assert_eq!(&expected, received, "protocol {protocol}, packet {number}");
        }
        if offload && !queues.threads {
            assert_eq!(a.stats().snapshot().packets_written - before, 1, "protocol {protocol}");
        }
    }
    assert_eq!(a.stats().snapshot().write_failures, 0);
}

#[test]
fn the_kernel_splits_what_was_joined_with_and_without_threads() {
    for queues in possible([threads(2), inline(1), inline(4)]) {
        println!("{queues:?}");
        in_namespace(async |namespace| the_kernel_splits_what_was_joined(namespace, queues).await);
    }
}

#[test]
fn an_existing_name_is_refused() {
    in_namespace(async |_| {
        let queues = threads(MAX_QUEUES.min(2));
        let first = open(config("weftA", queues)).unwrap();
        let second = open(config("weftA", queues));
        assert!(matches!(&second, Err(OpenError::Exists { name }) if name == "weftA"), "{second:?}");
        assert!(matches!(open(config("lo", inline(1))), Err(OpenError::NotTun { .. })));
        if here::installed(&["ip"]) {
            let alias = ["link", "property", "add", "dev", "lo", "altname", "weftB"];
            assert!(std::process::Command::new("ip").args(alias).status().unwrap().success());
            let third = open(config("weftB", inline(1)));
            assert!(matches!(&third, Err(OpenError::AltName { device, .. }) if device == "lo"), "{third:?}");
        }
        drop(first);
        open(config("weftA", queues)).unwrap();
    });
}

#[test]
fn a_shutdown_leaves_no_descriptor_and_no_interface() {
    in_namespace(async |_| {
        assert_eq!(open_tun_descriptors(), 0);
        for queues in possible([inline(1), inline(4), threads(1), threads(4)]) {
            let mut device = open(config("weftA", queues)).unwrap();
            let ready = poll_fn(|cx| device.poll_send_ready(cx)).await;
            ready.unwrap();
            assert_eq!(open_tun_descriptors(), queues.count);
            device.shutdown();
            assert_eq!(open_tun_descriptors(), 0);
            assert!(nix::net::if_::if_nametoindex("weftA").is_err());
        }
    });
}

#[test]
fn a_link_that_is_down_refuses_packets_and_is_not_gone() {
    in_namespace(async |namespace| {
        let mut device = open(config("weftA", inline(1))).unwrap();
        send_all(&mut device, &stream(ip::TCP, 3, 100)).await;
        assert_eq!(device.stats().snapshot().write_failures, 3);
        bring_up(namespace, "weftA", "10.77.0.1/24");
        send_all(&mut device, &stream(ip::TCP, 3, 100)).await;
        let stats = device.stats().snapshot();
        assert_eq!((stats.write_failures, stats.segments_written), (3, 3));
    });
}

#[test]
fn a_deleted_device_is_gone() {
    in_namespace(async |namespace| {
        for queues in possible([inline(1), inline(4), threads(2)]) {
            let mut device = open(config("weftA", queues)).unwrap();
            let mut batches = VecDeque::new();
            let mut delete = Some(|| link::remove(namespace, "weftA").unwrap());
            // The device is deleted when it waits already, and has to be woken.
            let bytes = poll_fn(|cx| {
                let polled = device.poll_recv_many(cx, &mut batches, 1);
                if let Some(delete) = delete.take() {
                    delete();
                }
                polled
            });
            assert_eq!(bytes.await.unwrap(), 0);
        }
    });
}

fn attach(name: &str, flags: libc::c_int) -> OwnedFd {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as _;
    // SAFETY: the ioctl takes a pointer to an ifreq, which lives until it returns.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    file.into()
}

#[test]
fn handed_in_queues_are_adopted_if_they_fit() {
    in_namespace(async |_| {
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
        for queues in possible([threads(2), inline(2)]) {
            let descriptors = vec![attach("weftA", flags), attach("weftA", flags)];
            drop(open(TunConfig { descriptors, ..config("weftA", queues) }).unwrap());
        }
        // Without virtio headers there is no offload.
        let plain = vec![attach("weftA", libc::IFF_TUN | libc::IFF_NO_PI)];
        let device = open(TunConfig { descriptors: plain, ..config("weftA", inline(1)) }).unwrap();
        assert_eq!(device.offload(), TunOffload::default());
        drop(device);

        let refused = |descriptors, queues, expected: &str| {
            let error = open(TunConfig { descriptors, ..config("weftA", queues) }).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(vec![attach("weftB", flags)], inline(1), "belongs to interface weftB");
        let tap = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        refused(vec![attach("weftA", tap)], threads(1), "IFF_TUN");
    });
}

#[test]
fn a_handed_in_device_that_was_made_for_one_queue_carries_packets_and_keeps_one_queue() {
    in_namespace(async |namespace| {
        for queues in [threads(1), inline(1)] {
            let descriptor = attach("weftA", libc::IFF_TUN | libc::IFF_NO_PI);
            check_queue(&descriptor, "weftA").unwrap();
            assert!(check_queue(&descriptor, "weftB").is_err());
            let descriptors = open_queues("weftA", vec![descriptor], 2.min(MAX_QUEUES)).unwrap();
            assert_eq!(descriptors.len(), 1, "the kernel attaches no other");
            let device = open(TunConfig { descriptors, ..config("weftA", queues) }).unwrap();
            assert_eq!(device.offload(), TunOffload::default());
            echoes_in_order_through(namespace, device).await;
        }
        let with_headers = attach("weftA", libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR);
        let descriptors = open_queues("weftA", vec![with_headers], 2.min(MAX_QUEUES)).unwrap();
        let device = open(TunConfig { descriptors, ..config("weftA", inline(1)) }).unwrap();
        assert!(device.offload().tcp, "one queue, with super-packets");
        echoes_in_order_through(namespace, device).await;
    });
}
