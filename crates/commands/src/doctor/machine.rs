//! The observed state of a machine. `None`: not available on this platform, or not observable.

use weft_host::Obstacle;
use weft_host::misrouted::Misrouted;
use weft_tun::TunOffload;

/// The observed state of a machine.
#[derive(Clone, Debug, Default)]
pub struct MachineState {
    /// Whether a running weft answers for the interface of the configuration.
    pub is_running: bool,
    /// The state of the TUN driver.
    pub tun_device: Option<TunDevice>,
    /// Whether this process has CAP_NET_ADMIN, to configure networks.
    pub net_admin: Option<bool>,
    /// Whether this process has CAP_NET_BIND_SERVICE, to bind every UDP port.
    pub net_bind_service: Option<bool>,
    /// The first port that needs no capability (net.ipv4.ip_unprivileged_port_start).
    pub unprivileged_ports_from: Option<u16>,
    /// The features of a UDP socket of this process.
    pub udp: Option<UdpFacts>,
    /// The offloads of a TUN of this process, or why no TUN could be created to find out.
    pub tun_offload: Option<Result<TunOffload, String>>,
    pub kernel: Option<Kernel>,
    /// How the Ethernet interfaces join what they receive.
    pub gro: Option<Vec<Gro>>,
    /// Whether IPv4 packets are forwarded.
    pub forwards_v4: Option<bool>,
    /// Whether IPv6 packets are forwarded.
    pub forwards_v6: Option<bool>,
    /// Whether the reverse path check looks up the route with the mark of the packet (src_valid_mark).
    pub src_valid_mark: Option<bool>,
    /// Whether the reverse path check is strict (the larger of rp_filter in `all` and `default` is 1).
    pub strict_rp_filter: Option<bool>,
    /// Whether these sysctls can be written.
    pub sysctls_writable: Option<bool>,
    /// The program or file that manages the name servers.
    pub resolver: Option<Resolver>,
    /// The existing interface with the configured name.
    pub existing_link: Option<Link>,
    /// Says that a daemon of the configured name has ended without taking its interface down.
    pub left_behind: Option<String>,
    /// Whether another socket uses the configured UDP port.
    pub port_in_use: Option<bool>,
    /// Whether another program listens at the address that is configured for metrics.
    pub metrics_in_use: Option<bool>,
    /// Whether this machine does not have that address.
    pub metrics_elsewhere: bool,
    /// What else keeps the interface from being brought up.
    pub obstacles: Vec<Obstacle>,
    /// The state of the kernel's WireGuard module.
    pub wireguard_module: Option<Module>,
    pub nft: Option<Nft>,
    /// What a thread can be restricted to.
    pub confinement: Option<weft_confine::Support>,
    /// What a start chooses for ChaCha20-Poly1305, or why it refuses to start.
    pub cipher: Option<Result<CipherChoice, String>>,
    /// What the running interface uses, as its report has it.
    pub cipher_in_use: Option<String>,
    pub clock: Clock,
    /// The sysctls that switch IPv6 off for the interface, or for new ones.
    pub ipv6_off_by: Vec<String>,
    /// The paths to the endpoints.
    pub ways: Vec<Way>,
    /// What does not go where the configuration means it to go.
    pub misrouted: Vec<Misrouted>,
}

/// What computes ChaCha20-Poly1305 after a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CipherChoice {
    pub cipher: weft_aead::Cipher,
    pub why: Why,
}

/// Why a cipher is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is the fastest for what the processor reports, and passed its self-test if it needs one.
    Fastest,
    /// WEFT_CIPHER names it.
    Named,
    /// The processor reports AVX-512, which does not work: a part of a sentence.
    Fallback(String),
}

/// The state of the TUN driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunDevice {
    /// /dev/net/tun can be opened.
    Usable,
    /// The system has no TUN driver.
    Missing,
    /// Something else has its place.
    Other,
    /// This process may not open the device.
    Forbidden,
    /// The device cannot be opened for another reason.
    Failed(String),
}

/// The features of a UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UdpFacts {
    /// The features of the sockets of weft.
    Features(weft_udp::UdpFeatures),
    /// The sockets could not be opened.
    Failed(String),
}

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The release, from /proc/sys/kernel/osrelease.
    pub release: String,
    /// Whether the kernel writes wrong UDP headers in GSO batches of equal segments (Linux 7.0 to 7.1.4).
    pub mangles_equal_segments: bool,
    /// Whether the kernel reports a reliable segment size for joined datagrams (since Linux 5.12), so that
    /// they can be split again.
    pub reports_gro_stride: bool,
}

/// How an interface joins packets that it receives (GRO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gro {
    pub interface: String,
    /// Whether datagrams that are forwarded are joined (rx-udp-gro-forwarding); `None`: not known to the
    /// kernel (before Linux 5.12).
    pub joins_forwarded_udp: Option<bool>,
    /// Whether they become lists (rx-gro-list), which a TUN does not take: the kernel splits them again.
    pub makes_lists: bool,
}

/// The program or file that manages the name servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolver {
    /// systemd-resolved.
    Resolved,
    Resolvconf,
    /// The file /etc/resolv.conf.
    File {
        /// Whether this process can write the file.
        is_writable: bool,
    },
}

/// What nft(8) can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nft {
    /// It is installed, and the kernel would accept the rules, as far as this process may ask.
    Works,
    Missing,
    /// The rules would be refused, for this reason.
    Fails(String),
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub is_up: bool,
    pub kind: LinkKind,
}

/// The kind of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// The kernel's own WireGuard.
    KernelWireGuard,
    /// A TUN or TAP.
    Tun,
    /// Another kind, or an unknown kind.
    Other,
}

/// The state of a kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// The module is loaded or built in.
    Loaded,
    /// The module can be loaded.
    Loadable,
    /// The module is not installed.
    Absent,
}

/// The system clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Whether the clock is synchronised.
    pub is_synchronised: Option<bool>,
    /// Milliseconds since 1970; 0 if the clock is before 1970.
    pub unix_ms: u64,
}

/// The path to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The endpoint as written in the configuration.
    pub endpoint: String,
    /// The address of the endpoint, or why it could not be resolved.
    pub address: Result<std::net::SocketAddr, String>,
    /// Whether the address is one of this machine, as that of a relay.
    pub is_here: bool,
    /// The MTU of the path in bytes, or why there is no route; `None` if it was not looked up.
    pub mtu: Option<Result<u32, String>>,
}
