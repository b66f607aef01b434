//! Two tunnels for the tests of this crate that need boringtun's own clock.

use std::net::SocketAddr;
use std::time::Instant;

use ipnet::IpNet;

use crate::config::{PeerConfig, PeerSettings};
use crate::control_queue::ControlQueue;
use crate::drop_reason::DropReason;
use crate::key::PrivateKey;
use crate::offload::Offload;
use crate::packet::{PacketMut, PlainSlab, TAILROOM};
use crate::transmit::{Ecn, RecvMeta, TransmitQueue};
use crate::tunnel::{Tunnel, TunnelConfig};

/// Returns two tunnels that are the only peers of each other, for all addresses.
pub(crate) fn pair() -> [Tunnel; 2] {
    let keys = [1, 2].map(|end| PrivateKey::from_bytes([end; 32]));
    [0, 1].map(|end| {
        let mut tunnel = Tunnel::new(keys[end].clone(), TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
        let config = PeerConfig {
            public_key: keys[1 - end].public_key(),
            endpoint: Some(address()),
            allowed_ips: vec![IpNet::default()],
            settings: PeerSettings::default(),
        };
        tunnel.insert_peer(config, Instant::now()).unwrap();
        tunnel
    })
}

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 51820))
}

/// Sends a packet from the TUN, and returns the initiation that it causes.
pub(crate) fn initiation(tunnel: &mut Tunnel, now: Instant) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    bytes.resize(20 + TAILROOM, 0);
    let mut packet = PacketMut::new(&mut bytes, 20, Offload::None).unwrap();
    tunnel.handle_tun_packet(&mut packet, now, &mut TransmitQueue::new(8)).unwrap();
    let mut control = ControlQueue::new(4);
    let _ = tunnel.handle_timeout(now, &mut control);
    control.pop().unwrap().transmit().contents.to_vec()
}

/// Gives a datagram from the socket to a tunnel, and returns what it answers.
pub(crate) fn hear(tunnel: &mut Tunnel, datagram: &[u8], now: Instant) -> Result<Vec<u8>, DropReason> {
    let len = datagram.len();
    let meta = RecvMeta { source: address(), local: None, ecn: Ecn::NotEct, len, stride: len };
    let mut control = ControlQueue::new(4);
    let mut plain = PlainSlab::new(1 << 16);
    tunnel.handle_datagram(&meta, &mut datagram.to_vec(), now, &mut plain, &mut control)?;
    Ok(control.pop().map(|message| message.transmit().contents.to_vec()).unwrap_or_default())
}
