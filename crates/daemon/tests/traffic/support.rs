//! What the tests with real interfaces share: two namespaces, configurations, weft as a process or inside the
//! test's own, and a look at everything that a daemon could leave behind.
//!
//! ```text
//!   end A  eth0 ────────────── veth ────────────── eth0  end B
//!     192.0.2.1/24                            192.0.2.2/24
//!     2001:db8::1/64                        2001:db8::2/64
//!
//!   weft0 ══════════════════ tunnel ══════════════════ weft0
//!     10.77.0.1/24                            10.77.0.2/24
//!     fd77::1/64                                fd77::2/64
//! ```

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use weft::up::{Daemon, Options, UpError};
use weft_config::{Config, parse};
use weft_lab::emulator::{Emulator, LinkSpec};
use weft_lab::link::{self, LinkOptions};
use weft_lab::traffic::Amount;
use weft_lab::{self as lab, Namespace, PATIENCE, Transfer, here};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};

#[path = "../support/ip.rs"]
mod ip;
mod process;
mod pty;
mod traces;

pub(crate) use process::{Ended, Running, weft, weft_beside, weft_up};
pub(crate) use pty::{Pty, ignore_hang_up};
pub(crate) use traces::{Traces, addresses_of, links_of, routes_of, set_rate, udp_ports_of};

/// The interface's name in most tests.
pub(crate) const NAME: &str = "weft0";
/// The UDP port in most tests.
pub(crate) const PORT: u16 = 51820;
static MACHINE: RwLock<()> = RwLock::new(());

/// Held by a test that loads the machine: two at once on two cores would starve each other.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that loads the machine little, and would be disturbed by one that does.
pub(crate) fn undisturbed() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The inner or outer protocol family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    A,
    B,
}

impl End {
    fn host(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    /// The address of its veth.
    pub(crate) fn outer(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, self.host()).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, self.host().into()).into(),
        }
    }

    /// The address in the tunnel.
    pub(crate) fn inner(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, 77, 0, self.host()).into(),
            Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.host().into()).into(),
        }
    }
}

/// Two namespaces joined by a veth or by an emulated link.
pub(crate) struct Ends {
    /// It ends before the namespaces that it joins.
    pub(crate) emulator: Option<Emulator>,
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
}

impl Ends {
    /// Joins two namespaces by a veth; `None` where that is not permitted, which is said.
    pub(crate) fn new(outer_mtu: u32) -> Option<Self> {
        Self::joined(outer_mtu, None)
    }

    /// The same by a veth or, if there is one, by an emulated link.
    pub(crate) fn joined(outer_mtu: u32, link: Option<&LinkSpec>) -> Option<Self> {
        if !here::tun_permitted() || !here::installed(&["ip", "tc"]) {
            return None;
        }
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let addresses = |end: End| {
            vec![
                format!("{}/24", end.outer(Family::V4)).parse().unwrap(),
                format!("{}/64", end.outer(Family::V6)).parse().unwrap(),
            ]
        };
        let options = LinkOptions {
            mtu: outer_mtu,
            addresses_a: addresses(End::A),
            addresses_b: addresses(End::B),
            ..LinkOptions::default()
        };
        if let Some(link) = link {
            let emulator = Some(Emulator::between(&a, &b, &options, link).unwrap());
            return Some(Self { emulator, a, b });
        }
        link::join_in_order(&a, &b, &options).unwrap();
        Some(Self { emulator: None, a, b })
    }

    /// TCP from an end to the other one, through the tunnel.
    pub(crate) fn transfer(&self, from: End, family: Family, flows: u32, amount: Amount) -> Transfer {
        let to = if from == End::A { End::B } else { End::A };
        Transfer::start(self.namespace(from), self.namespace(to), to.inner(family), flows, amount).unwrap()
    }

    /// The namespace of an end.
    pub(crate) fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::A => &self.a,
            End::B => &self.b,
        }
    }
}

/// The text of a wg-quick file.
#[derive(Clone)]
pub(crate) struct Conf {
    pub(crate) private_key: PrivateKey,
    pub(crate) listen_port: Option<u16>,
    pub(crate) addresses: Vec<String>,
    pub(crate) mtu: Option<u16>,
    pub(crate) table: Option<String>,
    /// What stands behind `# weft:`.
    pub(crate) settings: Vec<&'static str>,
    pub(crate) peers: Vec<PeerConf>,
}

/// A `[Peer]` section.
#[derive(Clone)]
pub(crate) struct PeerConf {
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: Option<PresharedKey>,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) allowed_ips: Vec<String>,
    pub(crate) persistent_keepalive: Option<u16>,
    /// What stands behind `# weft:`.
    pub(crate) settings: Vec<&'static str>,
}

impl Conf {
    /// An interface with a new key and nothing else.
    pub(crate) fn new() -> Self {
        Self {
            private_key: PrivateKey::generate().unwrap(),
            listen_port: None,
            addresses: Vec::new(),
            mtu: None,
            table: None,
            settings: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// The configurations of ends A and B of the drawing above, with each other's endpoints in the `outer`
    /// family.
    pub(crate) fn pair(outer: Family) -> (Self, Self) {
        let (mut a, mut b) = (Self::new(), Self::new());
        let keys = (a.private_key.public_key(), b.private_key.public_key());
        for (conf, end, other, key) in [(&mut a, End::A, End::B, keys.1), (&mut b, End::B, End::A, keys.0)] {
            conf.listen_port = Some(PORT);
            conf.addresses =
                vec![format!("{}/24", end.inner(Family::V4)), format!("{}/64", end.inner(Family::V6))];
            conf.peers.push(PeerConf {
                endpoint: Some(SocketAddr::new(other.outer(outer), PORT)),
                allowed_ips: vec![
                    format!("{}/32", other.inner(Family::V4)),
                    format!("{}/128", other.inner(Family::V6)),
                ],
                ..PeerConf::new(key)
            });
        }
        (a, b)
    }

    /// The file's text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("[Interface]\nPrivateKey = {}\n", *self.private_key.to_base64());
        let mut line = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                writeln!(text, "{key} = {value}").unwrap();
            }
        };
        line("ListenPort", self.listen_port.map(|port| port.to_string()));
        for address in &self.addresses {
            line("Address", Some(address.clone()));
        }
        line("MTU", self.mtu.map(|mtu| mtu.to_string()));
        line("Table", self.table.clone());
        for setting in &self.settings {
            writeln!(text, "# weft: {setting}").unwrap();
        }
        for peer in &self.peers {
            text.push_str(&peer.text());
        }
        text
    }

    /// The configuration, as the daemon reads it.
    pub(crate) fn parse(&self, name: &str) -> Config {
        parse(&self.text(), Path::new("test.conf"), name.parse().unwrap()).unwrap().config
    }

    /// Writes the file `NAME.conf`, which only its owner may read.
    pub(crate) fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(format!("{name}.conf"));
        lab::write_private(&path, &self.text()).unwrap();
        path
    }

    /// Starts an interface of this configuration inside the test's own process.
    pub(crate) fn start(&self, namespace: &Namespace, options: &Options) -> Result<Daemon, UpError> {
        let config = self.parse(NAME);
        let endpoints = config.endpoint_addresses();
        namespace.run(|| Daemon::start(&config, &endpoints, options, || {}))
    }
}

impl PeerConf {
    /// A peer that nothing is known of but its key.
    pub(crate) fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            allowed_ips: Vec::new(),
            persistent_keepalive: None,
            settings: Vec::new(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("[Peer]\nPublicKey = {}\n", self.public_key);
        if let Some(key) = &self.preshared_key {
            writeln!(text, "PresharedKey = {}", *key.to_base64()).unwrap();
        }
        if let Some(endpoint) = self.endpoint {
            writeln!(text, "Endpoint = {endpoint}").unwrap();
        }
        if !self.allowed_ips.is_empty() {
            writeln!(text, "AllowedIPs = {}", self.allowed_ips.join(", ")).unwrap();
        }
        if let Some(seconds) = self.persistent_keepalive {
            writeln!(text, "PersistentKeepalive = {seconds}").unwrap();
        }
        for setting in &self.settings {
            writeln!(text, "# weft: {setting}").unwrap();
        }
        text
    }
}

/// Whether a TCP connection from a namespace to a closed port is answered at all: the refusal has
/// to come through the tunnel and back.
pub(crate) fn answers(namespace: &Namespace, address: IpAddr) -> bool {
    let closed_port = SocketAddr::new(address, 1);
    namespace.run(|| match TcpStream::connect_timeout(&closed_port, PATIENCE) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    })
}
