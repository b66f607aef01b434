//! Checks by `Pulse` whether the threads of a device work, on sockets that stand in for queues: a waiting
//! thread answers, wherever it waits, and a thread that is stuck in a call does not.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use weft_tun::{Device, Pulse, Tun, TunOffload};

const VNET_HDR: usize = 10;
/// An answer comes at once; a machine under load may take its time.
const PATIENCE: Duration = Duration::from_secs(30);
/// For a stuck thread: within this time, every other thread has answered.
const SHORT: Duration = Duration::from_millis(50);

/// Returns a device with `queues` queues, the other ends, and duplicates of the descriptors of the queues.
fn device(queues: usize) -> (Device, Vec<UnixDatagram>, Vec<OwnedFd>) {
    let pairs = (0..queues)
        .map(|_| socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap());
    let (ours, theirs): (Vec<OwnedFd>, Vec<OwnedFd>) = pairs.unzip();
    let copies = ours.iter().map(|queue| queue.try_clone().unwrap()).collect();
    let device = Device::from_descriptors_for_test("weft-none", ours, true, TunOffload::default()).unwrap();
    (device, theirs.into_iter().map(UnixDatagram::from).collect(), copies)
}

/// Makes calls on a queue block or not, through another descriptor of it.
fn set_blocking(queue: &OwnedFd, blocks: bool) {
    let flags = OFlag::from_bits_retain(fcntl(queue, FcntlArg::F_GETFL).unwrap());
    let flags = if blocks { flags - OFlag::O_NONBLOCK } else { flags | OFlag::O_NONBLOCK };
    fcntl(queue, FcntlArg::F_SETFL(flags)).unwrap();
}

fn packet() -> Vec<u8> {
    let mut packet = vec![0; 1000];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&1000_u16.to_be_bytes());
    packet[9] = 17;
    packet
}

fn framed() -> Vec<u8> {
    [&[0; VNET_HDR][..], &packet()].concat()
}

#[track_caller]
fn wait_until_silent(pulse: &Pulse, threads: &[&str]) {
    let start = Instant::now();
    loop {
        let silent = pulse.silent(if threads.is_empty() { PATIENCE } else { SHORT });
        if silent == threads {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "silent: {silent:?}, and not {threads:?}");
    }
}

/// Stages packets until the device accepts no more.
async fn fill(device: &mut Device) {
    for _ in 0..10_000 {
        if device.poll_send_ready(&mut Context::from_waker(Waker::noop())).is_pending() {
            return;
        }
        while let Some(range) = device.plain_slab().push(&packet()) {
            device.send(range).unwrap();
        }
        device.flush().unwrap();
        tokio::task::yield_now().await;
    }
    panic!("it never took no more");
}

#[tokio::test]
async fn threads_that_wait_for_packets_and_batches_answer() {
    let (device, _peers, _queues) = device(3);
    let pulse = device.pulse();
    for _ in 0..1000 {
        assert_eq!(pulse.silent(PATIENCE), <[String; 0]>::default());
    }
}

#[tokio::test]
async fn a_reader_that_waits_for_a_slab_answers_and_goes_on() {
    let (mut device, peers, _queues) = device(1);
    peers[0].set_nonblocking(true).unwrap();
    let pulse = device.pulse();
    let mut kept = VecDeque::new();
    let mut received = 0;
    // While the batches are kept, no slab returns, and in the end the socket is full.
    let start = Instant::now();
    loop {
        let mut sent = false;
        while peers[0].send(&framed()).is_ok() {
            sent = true;
        }
        let polled =
            device.poll_recv_many(&mut Context::from_waker(Waker::noop()), &mut kept, usize::MAX).is_ready();
        if kept.len() >= 3 && !sent && !polled {
            break;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    for _ in 0..10 {
        assert_eq!(pulse.silent(PATIENCE), <[String; 0]>::default());
    }
    received += kept.iter().map(weft_tun::TunBatch::packets).sum::<usize>();
    kept.clear();
    let bytes = poll_fn(|cx| device.poll_recv_many(cx, &mut kept, 1)).await.unwrap();
    assert!(bytes > 0 && received > 0, "it reads on");
}

#[tokio::test]
async fn a_writer_that_waits_for_room_answers() {
    let (mut device, _peers, _queues) = device(1);
    let pulse = device.pulse();
    fill(&mut device).await;
    for _ in 0..10 {
        assert_eq!(pulse.silent(PATIENCE), <[String; 0]>::default());
    }
}

#[tokio::test]
async fn a_reader_that_is_stuck_in_a_call_is_named_until_it_goes_on() {
    let (device, peers, queues) = device(2);
    let pulse = device.pulse();
    set_blocking(&queues[1], true);
    // After this packet the reader reads again, and the call does not return.
    peers[1].send(&framed()).unwrap();
    wait_until_silent(&pulse, &["weft-tun-r1"]);
    set_blocking(&queues[1], false);
    peers[1].send(&framed()).unwrap();
    wait_until_silent(&pulse, &[]);
}

#[tokio::test]
async fn a_writer_that_is_stuck_in_a_call_is_named_until_it_goes_on() {
    let (mut device, peers, queues) = device(1);
    let pulse = device.pulse();
    // The second answer comes from a reader that waits for packets. It shares the descriptor, and must not be
    // in a call.
    for _ in 0..2 {
        assert_eq!(pulse.silent(PATIENCE), <[String; 0]>::default());
    }
    set_blocking(&queues[0], true);
    fill(&mut device).await;
    wait_until_silent(&pulse, &["weft-tun-w0"]);
    set_blocking(&queues[0], false);
    peers[0].set_nonblocking(true).unwrap();
    let mut buffer = [0; 2000];
    let start = Instant::now();
    while !pulse.silent(SHORT).is_empty() {
        while peers[0].recv(&mut buffer).is_ok() {}
        assert!(start.elapsed() < PATIENCE);
    }
}

#[tokio::test]
async fn who_asks_does_not_keep_a_device_open_nor_miss_one_that_is_gone() {
    let (device, peers, queues) = device(2);
    drop(queues);
    let pulse = device.pulse();
    assert_eq!(pulse.silent(PATIENCE), <[String; 0]>::default());
    drop(device);
    assert_eq!(pulse.silent(PATIENCE), <[String; 0]>::default());
    assert_eq!(peers[0].recv(&mut [0; 1]).unwrap(), 0, "it is closed");
}
