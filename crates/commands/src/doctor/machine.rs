//! What was seen of a machine. `None`: this platform does not have it, or it could not be seen.

use weft_tun::TunOffload;

/// What was seen of a machine.
#[derive(Clone, Debug, Default)]
pub struct MachineState {
    /// Whether the interface of the configuration answers as a running weft.
    pub is_running: bool,
    /// The TUN driver.
    pub tun_device: Option<TunDevice>,
    /// Whether this process may change networks (CAP_NET_ADMIN).
    pub net_admin: Option<bool>,
    /// Whether this process may use every UDP port (CAP_NET_BIND_SERVICE).
    pub net_bind_service: Option<bool>,
    /// The first port that needs no permission (net.ipv4.ip_unprivileged_port_start).
    pub unprivileged_ports_from: Option<u16>,
    /// What a UDP socket of this process gets.
    pub udp: Option<UdpFacts>,
    /// The offloads that a TUN of this process takes, or why none could be made to try it.
    pub tun_offload: Option<Result<TunOffload, String>>,
    /// The kernel.
    pub kernel: Option<Kernel>,
    /// Whether IPv4 packets are forwarded.
    pub forwards_v4: Option<bool>,
    /// Whether IPv6 packets are forwarded.
    pub forwards_v6: Option<bool>,
    /// Whether the mark of a packet counts when the way back to its source is looked up.
    pub src_valid_mark: Option<bool>,
    /// Whether sources are checked strictly against the routes (rp_filter is 1 somewhere).
    pub strict_rp_filter: Option<bool>,
    /// Whether such settings can be written.
    pub sysctls_writable: Option<bool>,
    /// What manages the name servers.
    pub resolver: Option<Resolver>,
    /// The interface that has the wished name already.
    pub existing_link: Option<Link>,
    /// Whether somebody has the wished UDP port.
    pub port_in_use: Option<bool>,
    /// The kernel's own WireGuard.
    pub wireguard_module: Option<Module>,
    /// Whether nft(8) is there.
    pub nft: Option<bool>,
    /// The clock.
    pub clock: Clock,
    /// The ways to the endpoints.
    pub ways: Vec<Way>,
}

/// The TUN driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunDevice {
    /// It can be opened.
    Usable,
    /// There is none.
    Missing,
    /// This process may not open it.
    Forbidden,
    /// Something else keeps it from being opened.
    Failed(String),
}

/// What a UDP socket gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UdpFacts {
    /// These features.
    Features(weft_udp::UdpFeatures),
    /// It could not be opened.
    Failed(String),
}

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release.
    pub release: String,
    /// Whether it sends GSO batches of equal segments wrongly (Linux 7.0 to 7.1.4).
    pub mangles_equal_segments: bool,
    /// Whether what it joined on receipt can be taken apart again (Linux 5.12).
    pub reports_gro_stride: bool,
}

/// What manages the name servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolver {
    /// systemd-resolved.
    Resolved,
    /// resolvconf(8).
    Resolvconf,
    /// The file /etc/resolv.conf, and whether it can be written.
    File {
        /// Whether this process can write it.
        is_writable: bool,
    },
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: LinkKind,
}

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// The kernel's own WireGuard.
    KernelWireGuard,
    /// A TUN or TAP.
    Tun,
    /// Something else.
    Other,
}

/// A module of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// It is at work, or built in.
    Loaded,
    /// It can be loaded.
    Loadable,
    /// It is not there.
    Absent,
}

/// The clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Whether something keeps it right.
    pub is_synchronised: Option<bool>,
    /// Milliseconds since 1970; 0 before.
    pub unix_ms: u64,
}

/// The way to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The endpoint, as it is written.
    pub endpoint: String,
    /// Its address, or why it has none.
    pub address: Result<std::net::SocketAddr, String>,
    /// Bytes of a packet on the way there, or why there is none; `None`: it was not looked up.
    pub mtu: Option<Result<u32, String>>,
}
