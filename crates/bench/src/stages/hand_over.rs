//! The hand-over of super-packets from one packet thread to another, on socket pairs in place of a TUN.
//!
//! ```text
//!   socket pair ─► first device: read ─► split the slab by owner, hand over ─► second device: take ─► drop
//! ```
//!
//! Every other packet is foreign, so each slab becomes two parts. One thread does all of it, one after the
//! other: a thread that sleeps would have to be woken as well, and the packets would be in the cache of
//! another core.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::unix::net::UnixDatagram;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::runtime::Handle;
use weft_tun::{Device, Tun as _, TunBatch, TunOffload};
use weft_tunnel::{Change, CookieRoot, PrivateKey, PublicKey, Shard, Tunnel, TunnelConfig};

use super::ends::MTU;
use crate::stats;

/// Packets of a super-packet, and super-packets of a burst.
const SEGMENTS: usize = 45;
const SUPER_PACKETS: u8 = 4;
const BURSTS: u32 = 2000;
const WARM_UP: u32 = 100;
/// Length of the virtio header before each packet.
const VNET_HEADER: usize = 10;
const READ_BYTES: usize = 256 * 1024;

/// Measures the nanoseconds for each packet that is handed over.
pub(super) fn measure() -> Result<f64> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (first, second) = (runtime()?, runtime()?);
    // tokio would make a device wait that has been polled often.
    let bursts = tokio::task::unconstrained(bursts(second.handle()));
    first.block_on(bursts).context("the hand-over to another packet thread")
}

/// `runtime` is for the second device: a runtime registers a queue once.
async fn bursts(runtime: &Handle) -> Result<f64> {
    let (programs, queues): (Vec<_>, Vec<_>) =
        [UnixDatagram::pair()?, UnixDatagram::pair()?].into_iter().unzip();
    setsockopt(&programs[0], sockopt::SndBuf, &(1 << 20))?;
    let queues = queues.into_iter().map(Into::into).collect();
    let offload = TunOffload { tcp: true, udp: true };
    let devices = Device::shards_from_descriptors_for_test("pairs", queues, false, offload, 2)?;
    let [mut first, mut second] = <[Device; 2]>::try_from(devices).map_err(|_| anyhow!("not two devices"))?;
    let mut tunnel = tunnel()?;

    let (mut batches, mut taken) = (VecDeque::<TunBatch>::new(), VecDeque::new());
    let mut times = Vec::new();
    for burst in 0..BURSTS + WARM_UP {
        for number in 0..SUPER_PACKETS {
            programs[0].send(&message(number))?;
        }
        let mut foreign = 0;
        let mut nanoseconds = 0;
        let mut read = 0;
        while read < usize::from(SUPER_PACKETS) {
            ensure!(poll_fn(|cx| first.poll_recv_many(cx, &mut batches, READ_BYTES)).await? > 0, "no device");
            read += batches.iter().map(TunBatch::packets).sum::<usize>();
            let _entered = runtime.enter();
            let start = Instant::now();
            first.hand_over(&mut batches, |packet| tunnel.shard_of(packet));
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(result) = second.poll_recv_many(&mut cx, &mut taken, READ_BYTES) {
                ensure!(result? > 0, "no device");
                foreign += taken.drain(..).map(|batch| batch.packets()).sum::<usize>();
            }
            batches.clear();
            nanoseconds += start.elapsed().as_nanos();
        }
        ensure!(foreign == usize::from(SUPER_PACKETS) / 2, "{foreign} packets of a burst were handed over");
        if burst >= WARM_UP {
            times.push(nanoseconds as f64 / (foreign * SEGMENTS) as f64);
        }
    }
    Ok(stats::middle(&times).context("nothing was measured")?.median)
}

/// Returns the tunnel of the first of two packet threads, to which every other address of [`message`] is
/// foreign.
fn tunnel() -> Result<Tunnel> {
    let now = Instant::now();
    let config = TunnelConfig { mtu: MTU, staging_bytes: 1 << 20 };
    let mut tunnel =
        Tunnel::of_shard(PrivateKey::generate()?, config, Shard::new(0, 2), &CookieRoot::generate(now));
    let change = Change::AddForeignPeer {
        peer: PublicKey::from_bytes([7; 32]),
        shard: 1,
        endpoint: None,
        allowed_ips: vec!["10.1.0.1/32".parse()?],
    };
    let _ = tunnel.apply(change, now);
    Ok(tunnel)
}

/// Returns a super-packet behind its virtio header. What follows the addresses and ports does not matter
/// here.
fn message(number: u8) -> Vec<u8> {
    let mut message = vec![0; VNET_HEADER + SEGMENTS * usize::from(MTU)];
    let packet = &mut message[VNET_HEADER..];
    let len = packet.len() as u16;
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[9] = 17;
    packet[16..20].copy_from_slice(&[10, 1, 0, number % 2]);
    packet[21] = number;
    message
}
