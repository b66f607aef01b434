//! Two ends, each in a namespace, joined by a veth, with weft's devices, sockets and tunnels.
//!
//! ```text
//!   near  eth0 198.18.0.1 ────── veth, MTU 1500 ────── 198.18.0.2 eth0  far
//!         tun0 10.99.0.1                                10.99.0.2 tun0
//! ```

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use weft_lab::Namespace;
use weft_lab::link;
use weft_tun::{Device, TunConfig};
use weft_tunnel::{
    ControlQueue, Ecn, Offload, PacketMut, PeerConfig, PeerSettings, PlainSlab, PrivateKey, PublicKey,
    RecvMeta, TAILROOM, TransmitQueue, Tunnel, TunnelConfig,
};
use weft_udp::{UdpConfig, UdpSockets};

use crate::site::{self, MTU, Net, PORT};

/// The name of the TUN in either namespace.
const TUN: &str = "tun0";
const LINK: Net = Net(0);

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The sending end.
    Near,
    /// The receiving end.
    Far,
}

impl Side {
    fn host(self) -> u8 {
        match self {
            Self::Near => 1,
            Self::Far => 2,
        }
    }

    /// Returns the address inside the tunnel.
    pub(super) fn inner(self) -> IpAddr {
        IpAddr::from([10, 99, 0, self.host()])
    }

    /// Returns the endpoint of its socket.
    fn endpoint(self) -> SocketAddr {
        LINK.endpoint(self.host())
    }

    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Creates two namespaces with a link between them.
pub(super) fn namespaces() -> Result<[Namespace; 2]> {
    let (near, far) = (site::namespace("near")?, site::namespace("far")?);
    LINK.join(&near, &far, 2)?;
    Ok([near, far])
}

/// One end, with what a daemon's packet thread has.
pub(super) struct End {
    pub(super) namespace: Namespace,
    pub(super) device: Device,
    pub(super) udp: UdpSockets,
    pub(super) tunnel: Tunnel,
    pub(super) control: ControlQueue,
}

impl End {
    /// Opens an end. Call it on the thread, and in the runtime, that uses it. The thread stays in the
    /// namespace.
    pub(super) fn open(namespace: Namespace, side: Side, key: PrivateKey, peer: PublicKey) -> Result<Self> {
        namespace.enter()?;
        let device = weft_tun::open(TunConfig::new(TUN))?;
        bring_up_tun(&namespace, side)?;
        let udp = UdpSockets::bind(&UdpConfig { port: PORT, ..UdpConfig::default() })?;
        let config = PeerConfig {
            public_key: peer,
            endpoint: Some(side.other().endpoint()),
            allowed_ips: vec![IpNet::from(side.other().inner())],
            settings: PeerSettings::default(),
        };
        let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: MTU, staging_bytes: 1 << 20 });
        ensure!(tunnel.insert_peer(config, Instant::now()).is_ok(), "the tunnel does not take its only peer");
        Ok(Self { namespace, device, udp, tunnel, control: ControlQueue::new(16) })
    }
}

/// Sets the TUN's MTU, queue length and address, and brings it up; on another thread, since the lab's netlink
/// calls use a runtime that must not run inside another one.
fn bring_up_tun(namespace: &Namespace, side: Side) -> Result<()> {
    let work = || -> Result<()> {
        link::set_mtu(namespace, TUN, MTU.into())?;
        link::set_tx_queue_len(namespace, TUN, 1000)?;
        link::set_up(namespace, TUN)?;
        let net = Ipv4Net::new_assert([10, 99, 0, side.host()].into(), 24);
        Ok(link::add_address(namespace, TUN, net.into())?)
    };
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Performs the handshake of two ends without the network, and returns the time to use for them from then on.
pub(super) fn shake_hands(near: &mut End, far: &mut End) -> Result<Instant> {
    let now = Instant::now();
    let mut queue = TransmitQueue::new(8);
    let len = 28;
    let mut bytes = vec![0; len + TAILROOM];
    bytes[0] = 0x45;
    bytes[3] = len as u8;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&[10, 99, 0, 1]);
    bytes[16..20].copy_from_slice(&[10, 99, 0, 2]);
    let mut packet = PacketMut::new(&mut bytes, len, Offload::None).context("a packet without room")?;
    // The packet is staged, and the handshake is due.
    near.tunnel
        .handle_tun_packet(&mut packet, now, &mut queue)
        .map_err(|reason| anyhow::anyhow!("the first packet was dropped: {reason:?}"))?;
    let _ = near.tunnel.handle_timeout(now, &mut near.control);
    let mut plain = PlainSlab::new(1 << 16);
    let mut carry = |from: &mut End, source: Side, to: &mut End| {
        while let Some(message) = from.control.pop() {
            let mut contents = message.transmit().contents.to_vec();
            let (source, len) = (source.endpoint(), contents.len());
            let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len, stride: len };
            let _ = to.tunnel.handle_datagram(&meta, &mut contents, now, &mut plain, &mut to.control);
        }
    };
    carry(near, Side::Near, far);
    carry(far, Side::Far, near);
    carry(near, Side::Near, far);
    let _ = near.tunnel.flush_staged(now, &mut queue);
    ensure!(!queue.is_empty(), "the two ends did not agree on a session");
    Ok(now)
}
