//! The two ends of the demo: namespaces, the link between them, and a daemon in each.
//!
//! ```text
//!   namespace a                        namespace b
//!   weft-a  10.99.0.1/24               weft-b  10.99.0.2/24
//!           fd99::1/64                         fd99::2/64
//!   veth    10.98.0.1/24 ───────────── veth    10.98.0.2/24
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use weft_config::exit::{Code, Error};
use weft_config::settings::{InterfaceSettings, ReportSettings};
use weft_config::{Config, Endpoint, HostConfig, Interface, Peer, Table};
use weft_dataplane::DataplaneError;
use weft_lab::counters::Counters;
use weft_lab::cpu::{self, Meter};
use weft_lab::link::{self, LinkOptions};
use weft_lab::{self as lab, Namespace};
use weft_tunnel::{PeerSettings, PrivateKey};

use super::account::Account;
use crate::cli::TunArgs;
use crate::up::{Daemon, Options, UpError};

const OUTER: &str = "veth";
const PORT: u16 = 51820;
/// How long packets in flight may take to arrive after the traffic has ended.
const SETTLE: Duration = Duration::from_secs(2);

/// One end of the tunnel.
pub(super) struct End {
    pub(super) namespace: Namespace,
    pub(super) inner: [IpAddr; 2],
    tun: String,
    daemon: Daemon,
    cpu: Meter,
    before: Counters,
}

/// Creates both ends, first a, then b. No traffic is sent yet.
pub(super) fn start(tun: TunArgs) -> Result<[End; 2], Error> {
    lab::enter_user_namespace().map_err(permission)?;
    lab::check_tun_device().map_err(permission)?;
    let names = ["a", "b"];
    let [a, b] = [Namespace::new(names[0])?, Namespace::new(names[1])?];
    let options = LinkOptions {
        name_a: OUTER.to_owned(),
        name_b: OUTER.to_owned(),
        addresses_a: vec![outer(0)],
        addresses_b: vec![outer(1)],
        ..LinkOptions::default()
    };
    link::join(&a, &b, &options)?;
    for namespace in [&a, &b] {
        // Reordering by the link would look like reordering by weft. If this fails, reordering is only more
        // likely.
        if let Err(error) = link::receive_on_one_cpu(namespace, OUTER) {
            tracing::debug!(%error, "the link may reorder under load");
        }
    }
    let key = || PrivateKey::generate().map_err(|error| Error::new(Code::Failure, error));
    let keys = [key()?, key()?];
    let start_one = |namespace: Namespace, place: usize| {
        let config = config(names[place], place, &keys)?;
        let options = Options {
            packet_threads: tun.packet_threads,
            pin: tun.pin,
            tun_threads: tun.tun_threads,
            offload: !tun.no_offload,
            thread_name: format!("weft-{}", names[place]),
            ..Options::default()
        };
        start_end(namespace, place, &config, &options)
    };
    Ok([start_one(a, 0)?, start_one(b, 1)?])
}

fn start_end(namespace: Namespace, place: usize, config: &Config, options: &Options) -> Result<End, Error> {
    let before = Counters::read(&namespace)?;
    let threads = cpu::threads()?;
    let endpoint = SocketAddr::new(outer(1 - place).addr(), PORT);
    let daemon: Result<Daemon, UpError> =
        namespace.run(|| Daemon::start(config, &[Some(endpoint)], options, || ()));
    let daemon = daemon?;
    let started = cpu::threads()?.difference(&threads).copied().collect::<Vec<_>>();
    let inner = [inner(place)[0].addr(), inner(place)[1].addr()];
    let tun = config.interface.name.to_string();
    Ok(End { namespace, inner, tun, daemon, cpu: Meter::new(started), before })
}

fn permission(error: lab::LabError) -> Error {
    Error::new(Code::Permission, error)
}

fn config(name: &str, place: usize, keys: &[PrivateKey; 2]) -> Result<Config, Error> {
    let [address_v4, address_v6] = inner(1 - place);
    let name = format!("weft-{name}").parse().map_err(|error| Error::new(Code::Failure, error))?;
    Ok(Config {
        interface: Interface {
            name,
            settings: InterfaceSettings {
                private_key: Some(keys[place].clone()),
                listen_port: PORT,
                fw_mark: 0,
            },
            addresses: inner(place).to_vec(),
            mtu: None,
            table: Table::Auto,
            host: HostConfig::default(),
        },
        peers: vec![Peer {
            public_key: keys[1 - place].public_key(),
            endpoint: Some(Endpoint::Address(SocketAddr::new(outer(1 - place).addr(), PORT))),
            allowed_ips: vec![IpNet::from(address_v4.addr()), IpNet::from(address_v6.addr())],
            settings: PeerSettings::default(),
            report: ReportSettings::default(),
        }],
        expired: Vec::new(),
    })
}

fn host(place: usize) -> u8 {
    if place == 0 { 1 } else { 2 }
}

fn outer(place: usize) -> IpNet {
    IpNet::V4(ipnet::Ipv4Net::new_assert([10, 98, 0, host(place)].into(), 24))
}

fn inner(place: usize) -> [IpNet; 2] {
    let host = host(place);
    [
        IpNet::V4(ipnet::Ipv4Net::new_assert([10, 99, 0, host].into(), 24)),
        IpNet::V6(ipnet::Ipv6Net::new_assert([0xfd99, 0, 0, 0, 0, 0, 0, host.into()].into(), 64)),
    ]
}

/// Packets that the kernel dropped at one end since the start.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct KernelDrops {
    /// Packets into the TUN while its queue was full.
    pub(super) tun_queue_full: u64,
    /// Datagrams to a socket with a full buffer, of weft or of the traffic.
    pub(super) receive_buffer_full: u64,
    /// Packets on the link between the daemons.
    pub(super) link: u64,
}

impl KernelDrops {
    pub(super) fn total(self) -> u64 {
        self.tun_queue_full + self.receive_buffer_full + self.link
    }
}

impl End {
    /// Samples the threads' CPU time.
    pub(super) fn sample_cpu(&mut self) {
        self.cpu.sample();
    }

    /// Returns the CPU time of the daemon's threads at the last sample.
    pub(super) fn cpu_time(&self) -> Duration {
        self.cpu.total()
    }

    /// Returns the daemon's counters when they balance, or after [`SETTLE`] as they are.
    pub(super) fn settled_account(&self) -> Result<Account, DataplaneError> {
        let start = Instant::now();
        loop {
            let account = Account::from(&self.daemon.snapshot()?);
            if account.imbalances().is_empty() || start.elapsed() > SETTLE {
                return Ok(account);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the packets that the kernel dropped at this end.
    pub(super) fn kernel_drops(&self) -> io::Result<KernelDrops> {
        let counters = Counters::read(&self.namespace)?.since(&self.before);
        let outer = counters.interface(OUTER);
        Ok(KernelDrops {
            tun_queue_full: counters.interface(&self.tun).tx_dropped,
            receive_buffer_full: counters.udp_receive_buffer_full(),
            link: outer.tx_dropped + outer.rx_dropped,
        })
    }

    /// Takes the daemon down.
    pub(super) fn stop(self) -> Result<(), DataplaneError> {
        self.daemon.stop()
    }
}
