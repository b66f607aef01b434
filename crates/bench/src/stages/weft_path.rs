//! weft between two namespaces, in this process.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use weft::up::{Daemon, Options};
use weft_config::TunThreads;
use weft_config::settings::{InterfaceSettings, ReportSettings};
use weft_config::{Config, Endpoint, HostConfig, Interface, Peer, Table};
use weft_lab::Namespace;
use weft_tunnel::{PeerSettings, PrivateKey};

use super::ends::{MTU, PORT, Side, TUN};

/// Two daemons. Dropping this ends them.
pub(super) struct Weft(
    /// Held until drop.
    #[expect(dead_code, reason = "dropping them ends them")]
    [Daemon; 2],
);

impl Weft {
    pub(super) fn start(namespaces: &[Namespace; 2], tun_threads: TunThreads) -> Result<Self> {
        let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
        let public = [keys[1].public_key(), keys[0].public_key()];
        let [near, far] = namespaces;
        let start = |namespace: &Namespace, side: Side, key: &PrivateKey, peer| {
            let endpoint: SocketAddr = side.other().endpoint();
            let config = Config {
                interface: Interface {
                    name: TUN.parse()?,
                    settings: InterfaceSettings {
                        private_key: Some(key.clone()),
                        listen_port: PORT,
                        fw_mark: 0,
                    },
                    addresses: vec![side.inner_net()],
                    mtu: Some(MTU),
                    table: Table::Auto,
                    host: HostConfig::default(),
                },
                peers: vec![Peer {
                    public_key: peer,
                    endpoint: Some(Endpoint::Address(endpoint)),
                    allowed_ips: vec![IpNet::from(side.other().inner())],
                    settings: PeerSettings::default(),
                    report: ReportSettings::default(),
                }],
            };
            let options = Options { tun_threads, ..Options::default() };
            namespace
                .run(|| Daemon::start(&config, &[Some(endpoint)], &options, || ()))
                .context("cannot bring up weft")
        };
        Ok(Self([start(near, Side::Near, &keys[0], public[0])?, start(far, Side::Far, &keys[1], public[1])?]))
    }
}
