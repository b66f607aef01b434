//! Packets of a slab on one of two packet threads: its own, and those that it hands over.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::runtime::Runtime;
use weft_sched::flow::FlowHasher;
use weft_tun::{Device, Slab, SlabHome, Tun as _, TunBatch, TunOffload};
use weft_tunnel::{
    Change, CookieRoot, Offload, PeerConfig, PeerSettings, PrivateKey, PublicKey, Shard, Tunnel, TunnelConfig,
};

use super::packets::{MSS, MTU, tcp};
use super::{PACKETS, Work, Workload};

/// Bytes of a slab that holds all packets, with room for a tail behind each.
const SLAB: usize = PACKETS * 2 * MTU;

struct HandOver {
    first: Device,
    second: Device,
    runtime: Runtime,
    tunnel: Tunnel,
    batches: VecDeque<TunBatch>,
    packet: Vec<u8>,
    _programs: Vec<UnixDatagram>,
}

impl HandOver {
    /// Returns packets for peers of the other packet thread if `is_foreign`, else of this one.
    fn new(is_foreign: bool) -> Option<Self> {
        let (programs, queues): (Vec<_>, Vec<_>) =
            [UnixDatagram::pair().ok()?, UnixDatagram::pair().ok()?].into_iter().unzip();
        let queues = queues.into_iter().map(Into::into).collect();
        let devices =
            Device::shards_from_descriptors_for_test("pairs", queues, false, TunOffload::default(), 2);
        let [first, second] = <[Device; 2]>::try_from(devices.ok()?).ok()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let now = Instant::now();
        let config = TunnelConfig { mtu: MTU as u16, staging_bytes: 1 << 20 };
        let key = PrivateKey::from_bytes([1; 32]);
        let mut tunnel = Tunnel::of_shard(key, config, Shard::new(0, 2), &CookieRoot::generate(now));
        // Both peers are there, so that every packet finds one.
        let [own, other] = if is_foreign { [9, 2] } else { [2, 9] };
        let net = |host| vec![ipnet::Ipv4Net::new_assert([10, 0, 0, host].into(), 32).into()];
        let own = PeerConfig {
            public_key: PublicKey::from_bytes([6; 32]),
            endpoint: None,
            allowed_ips: net(own),
            settings: PeerSettings::default(),
        };
        let foreign = Change::AddForeignPeer {
            peer: PublicKey::from_bytes([7; 32]),
            shard: 1,
            endpoint: None,
            allowed_ips: net(other),
        };
        let both = tunnel.apply(Change::AddPeer(Box::new(own)), now) && tunnel.apply(foreign, now);
        assert!(both, "two peers find a place");
        let (packet, batches) = (tcp(40_000, 1, MSS.into()), VecDeque::new());
        Some(Self { first, second, runtime, tunnel, batches, packet, _programs: programs })
    }
}

impl Work for HandOver {
    /// Empties the other device's inbox, and fills a slab.
    fn prepare(&mut self) {
        let Self { second, runtime, batches, packet, .. } = self;
        batches.clear();
        let _entered = runtime.enter();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(1..)) = second.poll_recv_many(&mut cx, batches, usize::MAX) {
            batches.clear();
        }
        let mut slab = Slab::new(SLAB, FlowHasher::with_seed(1));
        for _ in 0..PACKETS {
            slab.spare_mut()[..packet.len()].copy_from_slice(packet);
            assert!(slab.commit(0, packet.len(), Offload::None), "a slab without room");
        }
        batches.push_back(TunBatch::new(slab, 0, SlabHome::None));
    }

    fn run(&mut self) {
        let Self { first, tunnel, batches, .. } = self;
        first.hand_over(batches, |packet| tunnel.shard_of(packet));
    }
}

pub(super) fn workloads() -> Vec<Workload> {
    let workload = |name, is_foreign| Some(Workload::new(name, PACKETS as u64, HandOver::new(is_foreign)?));
    let all = [workload("hand-over-own-packet", false), workload("hand-over-foreign-packet", true)];
    all.into_iter().flatten().collect()
}
