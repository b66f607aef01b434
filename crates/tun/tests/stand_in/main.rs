//! The Linux device on sockets that keep message boundaries. Unlike a TUN, such a socket may be full, and
//! then returns EAGAIN.
//!
//! ```text
//!   test ── message with a virtio header ──► socket ══ socketpair ══ socket ──► Device ──► poll_recv_many
//!   test ◄── message with a virtio header ── socket ══ socketpair ══ socket ◄── Device ◄── send, flush
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::task::{Context, Poll, Waker};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use weft_tun::{Device, Tun, TunBatch, TunOffload};

mod inline;
mod shards;

const VNET_HDR: usize = 10;

fn device(queues: usize, threads: bool) -> (Device, Vec<UnixDatagram>) {
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..queues).map(|_| message_pair()).unzip();
    let device =
        Device::from_descriptors_for_test("weft-none", ours, threads, TunOffload::default()).unwrap();
    (device, theirs)
}

/// Returns a pair that reports when the other end closes, which datagram sockets do not.
fn message_pair() -> (OwnedFd, UnixDatagram) {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    let (ours, theirs) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
    (ours, theirs.into())
}

/// Returns a UDP packet of flow `flow` with a number in it.
fn packet(flow: u8, number: u32) -> Vec<u8> {
    let mut packet = vec![0; 1000];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&1000_u16.to_be_bytes());
    packet[9] = 17;
    packet[21] = flow;
    packet[28..32].copy_from_slice(&number.to_be_bytes());
    packet
}

fn flow_and_number(packet: &[u8]) -> (u8, u32) {
    (packet[21], u32::from_be_bytes(packet[28..32].try_into().unwrap()))
}

fn framed(packet: &[u8]) -> Vec<u8> {
    [&[0; VNET_HDR], packet].concat()
}

fn poll_send_ready_once(device: &mut Device) -> bool {
    device.poll_send_ready(&mut Context::from_waker(Waker::noop())).is_ready()
}

async fn recv(device: &mut Device, max_bytes: usize) -> (usize, VecDeque<TunBatch>) {
    let mut batches = VecDeque::new();
    let bytes = poll_fn(|cx| device.poll_recv_many(cx, &mut batches, max_bytes)).await.unwrap();
    (bytes, batches)
}

async fn sends_until_blocked_and_loses_nothing(threads: bool) {
    let (mut device, mut peers) = device(1, threads);
    let peer = peers.remove(0);
    let mut sent = 0;
    // Nothing reads: the socket fills up, then every slab, and then the device is not ready.
    loop {
        poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
        while let Some(range) = device.plain_slab().push(&packet(1, sent)) {
            device.send(range).unwrap();
            sent += 1;
        }
        device.flush().unwrap();
        // With threads, a slab may still be on its way back. Once all slabs are in use, none comes back.
        if sent >= if threads { 4 * 262 } else { 262 } && !poll_send_ready_once(&mut device) {
            break;
        }
    }
    assert!(!poll_send_ready_once(&mut device));

    peer.set_nonblocking(true).unwrap();
    let peer = tokio::net::UnixDatagram::from_std(peer).unwrap();
    let mut buffer = vec![0; 2000];
    let mut expected = 0;
    let resumed = tokio::join!(poll_fn(|cx| device.poll_send_ready(cx)), async {
        while expected < sent {
            let len = peer.recv(&mut buffer).await.unwrap();
            assert_eq!(len, VNET_HDR + 1000);
            assert_eq!(flow_and_number(&buffer[VNET_HDR..]), (1, expected));
            expected += 1;
        }
    });
    resumed.0.unwrap();
    let stats = wait_for(&device, |stats| stats.segments_written == u64::from(sent));
    assert_eq!((stats.write_failures, stats.packets_written), (0, u64::from(sent)));
    assert_eq!(stats.bytes_written, u64::from(sent) * 1000);
}

/// Waits for the counters, which a writer updates only after it has written a batch.
fn wait_for(
    device: &Device,
    done: impl Fn(&weft_tun::TunStatsSnapshot) -> bool,
) -> weft_tun::TunStatsSnapshot {
    loop {
        let stats = device.stats().snapshot();
        if done(&stats) {
            return stats;
        }
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_full_queue_stops_the_sender_and_loses_nothing() {
    sends_until_blocked_and_loses_nothing(true).await;
}

#[tokio::test]
async fn a_full_queue_stops_the_sender_inline_and_loses_nothing() {
    sends_until_blocked_and_loses_nothing(false).await;
}

#[tokio::test]
async fn slabs_bound_what_is_read() {
    for threads in [true, false] {
        let (mut device, peers) = device(1, threads);
        let long = [packet(1, 0), vec![0; 59_000]].concat();
        let mut long_packet = long.clone();
        long_packet[2..4].copy_from_slice(&60_000_u16.to_be_bytes());
        peers[0].set_nonblocking(true).unwrap();
        let message = framed(&long_packet);
        let mut kept = VecDeque::new();
        let mut received = 0;
        // While the batches are kept, no more is read than the slabs hold.
        let mut sent = 0_usize;
        while received < 5 {
            while peers[0].send(&message).is_ok() {
                sent += 1;
            }
            let (bytes, mut batches) = recv(&mut device, 1).await;
            assert_eq!(bytes % 60_000, 0);
            received += bytes / 60_000;
            kept.append(&mut batches);
            if kept.len() == 3 {
                break;
            }
        }
        // Three slabs with room for three packets each.
        assert!(kept.iter().map(TunBatch::packets).sum::<usize>() <= 9);
        kept.clear();
        while received < sent {
            let (bytes, _) = recv(&mut device, 1).await;
            received += bytes / 60_000;
        }
        assert_eq!(received, sent);
    }
}

#[tokio::test]
async fn malformed_packets_are_counted_and_skipped() {
    for threads in [true, false] {
        let (mut device, peers) = device(1, threads);
        for bad in [&[1, 2, 3][..], &[0; VNET_HDR], &framed(&[0x45; 19]), &[0xff; 100]] {
            peers[0].send(bad).unwrap();
        }
        peers[0].send(&framed(&packet(1, 7))).unwrap();
        let (bytes, mut batches) = recv(&mut device, 1 << 20).await;
        assert_eq!(bytes, 1000);
        assert_eq!(flow_and_number(batches[0].next_packet().unwrap().bytes()), (1, 7));
        let stats = device.stats().snapshot();
        assert_eq!((stats.malformed_reads, stats.packets_read, stats.bytes_read), (4, 1, 1000));
    }
}

#[tokio::test]
async fn a_closed_queue_means_that_the_device_is_gone() {
    for threads in [true, false] {
        let (mut device, peers) = device(2, threads);
        let mut batches = VecDeque::new();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(device.poll_recv_many(&mut cx, &mut batches, 1).is_pending());
        drop(peers);
        assert_eq!(recv(&mut device, 1).await.0, 0);
    }
}

#[tokio::test]
async fn a_flow_goes_back_to_the_queue_that_it_was_read_from() {
    for threads in [true, false] {
        goes_back_to_the_queue_that_it_was_read_from(threads).await;
    }
}

async fn goes_back_to_the_queue_that_it_was_read_from(threads: bool) {
    let (mut device, peers) = device(4, threads);
    for flow in 0..32_u8 {
        peers[usize::from(flow % 4)].send(&framed(&packet(flow, 0))).unwrap();
    }
    let mut seen = 0;
    while seen < 32 {
        let (_, batches) = recv(&mut device, 1 << 20).await;
        seen += batches.iter().map(TunBatch::packets).sum::<usize>();
    }
    for number in 0..8 {
        poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
        for flow in 0..32 {
            let range = device.plain_slab().push(&packet(flow, number)).unwrap();
            device.send(range).unwrap();
        }
        device.flush().unwrap();
        let mut buffer = [0; 2000];
        for (queue, peer) in peers.iter().enumerate() {
            for turn in 0..8 {
                peer.recv(&mut buffer).unwrap();
                let expected = (queue as u8 + 4 * turn, number);
                assert_eq!(flow_and_number(&buffer[VNET_HDR..]), expected);
            }
        }
    }
}

#[tokio::test]
async fn batches_outlive_a_shutdown() {
    for threads in [true, false] {
        let (mut device, peers) = device(1, threads);
        peers[0].send(&framed(&packet(3, 9))).unwrap();
        let (_, mut batches) = recv(&mut device, 1).await;
        device.shutdown();
        assert_eq!(flow_and_number(batches[0].next_packet().unwrap().bytes()), (3, 9));
        drop(batches);
        assert_eq!(recv(&mut device, 1).await.0, 0);
        let ready = device.poll_send_ready(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ready, Poll::Ready(Err(_))));
        assert_eq!(device.plain_slab().room(), 0);
    }
}

#[tokio::test]
async fn a_shutdown_ends_threads_that_wait_for_room_or_slabs() {
    let (mut device, peers) = device(2, true);
    // A writer that waits for room, and a reader with all slabs in use.
    for _ in 0..4 {
        poll_fn(|cx| device.poll_send_ready(cx)).await.unwrap();
        while let Some(range) = device.plain_slab().push(&packet(1, 0)) {
            device.send(range).unwrap();
        }
        device.flush().unwrap();
    }
    let mut kept = VecDeque::new();
    while kept.len() < 3 {
        peers[0].send(&framed(&packet(2, 0))).unwrap();
        kept.append(&mut recv(&mut device, 1).await.1);
    }
    device.shutdown();
    // The device has one end of each pair. Once no thread is left, these ends are closed.
    for peer in &peers {
        let mut buffer = [0; 2000];
        while peer.recv(&mut buffer).is_ok_and(|len| len > 0) {}
        assert!(peer.send(&[0]).is_err());
    }
}
