//! A client and a server with a router between them, so that one end can change its addresses while the link
//! of the other end stays unchanged.
//!
//! ```text
//!   client  wan ───── to-client  router  to-server ───── wan  server
//!        10.91.1.2    10.91.1.1          10.91.2.1     10.91.2.2
//!      fd91:0:0:1::2  …:1::1               …:2::1     fd91:0:0:2::2
//! ```

use std::io;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Namespace;
use super::emulator::{Emulator, LinkSpec};
use super::link::{self, LinkOptions};

/// Name of the interface towards the router, at the client and at the server.
pub const OUTER: &str = "wan";

/// One end of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Client,
    Server,
}

impl End {
    fn subnet(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }

    fn router_interface(self) -> &'static str {
        match self {
            Self::Client => "to-client",
            Self::Server => "to-server",
        }
    }
}

/// Three namespaces in a row, of which the middle one forwards packets.
#[derive(Debug)]
pub struct Routed {
    /// The links, if they are emulated. Declared first so that they are dropped before the namespaces they
    /// join.
    emulators: Vec<Emulator>,
    pub client: Namespace,
    pub router: Namespace,
    pub server: Namespace,
}

impl Routed {
    /// Creates the namespaces, joins them by veth pairs and enables forwarding on the router.
    pub fn new(mtu: u32) -> io::Result<Self> {
        Self::joined(mtu, None)
    }

    /// Creates the same topology over two emulated links, each with the properties of `spec`: a packet from
    /// one end to the other is delayed twice.
    pub fn over(mtu: u32, spec: &LinkSpec) -> io::Result<Self> {
        Self::joined(mtu, Some(spec))
    }

    fn joined(mtu: u32, spec: Option<&LinkSpec>) -> io::Result<Self> {
        let mut routed = Self {
            emulators: Vec::new(),
            client: Namespace::new("client")?,
            router: Namespace::new("router")?,
            server: Namespace::new("server")?,
        };
        routed.router.set_sysctl("net/ipv4/ip_forward", "1")?;
        routed.router.set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
        for end in [End::Client, End::Server] {
            let options = LinkOptions {
                name_a: OUTER.to_owned(),
                name_b: end.router_interface().to_owned(),
                mtu,
                addresses_a: vec![Self::net_v4(end, 2), Self::net_v6(end, 2)],
                addresses_b: vec![Self::net_v4(end, 1), Self::net_v6(end, 1)],
            };
            let namespace = routed.namespace(end);
            match spec {
                None => link::join(namespace, &routed.router, &options)?,
                Some(spec) => {
                    let emulator = Emulator::between(namespace, &routed.router, &options, spec)?;
                    routed.emulators.push(emulator);
                }
            }
            routed.add_default_routes(end)?;
        }
        Ok(routed)
    }

    /// Returns the namespace of an end.
    pub fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::Client => &self.client,
            End::Server => &self.server,
        }
    }

    /// Returns the IPv4 address with this host number in the end's network; 1 is the router, 2 is the end's
    /// initial address.
    pub fn v4(end: End, host: u8) -> IpAddr {
        Self::net_v4(end, host).addr()
    }

    /// Returns the IPv6 address with this host number in the end's network; 1 is the router, 2 is the end's
    /// initial address.
    pub fn v6(end: End, host: u8) -> IpAddr {
        Self::net_v6(end, host).addr()
    }

    /// Replaces an end's addresses with host number `from` by those with host number `to`. Packets in flight
    /// to the old addresses are lost.
    pub fn move_end(&self, end: End, from: u8, to: u8) -> io::Result<()> {
        let namespace = self.namespace(end);
        for (old, new) in [
            (Self::net_v4(end, from), Self::net_v4(end, to)),
            (Self::net_v6(end, from), Self::net_v6(end, to)),
        ] {
            // Remove first: an address added before would be secondary to the old one and be removed with it.
            link::remove_address(namespace, OUTER, old)?;
            link::add_address(namespace, OUTER, new)?;
        }
        self.add_default_routes(end)
    }

    /// Adds the default routes that are missing: the kernel removes an interface's routes with its last
    /// address.
    fn add_default_routes(&self, end: End) -> io::Result<()> {
        let routes = [
            (IpNet::V4(Ipv4Net::default()), Self::v4(end, 1)),
            (IpNet::V6(Ipv6Net::default()), Self::v6(end, 1)),
        ];
        for (destination, via) in routes {
            match link::add_route(self.namespace(end), destination, via) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn net_v4(end: End, host: u8) -> IpNet {
        IpNet::V4(Ipv4Net::new_assert([10, 91, end.subnet(), host].into(), 24))
    }

    fn net_v6(end: End, host: u8) -> IpNet {
        let segments = [0xfd91, 0, 0, end.subnet().into(), 0, 0, 0, host.into()];
        IpNet::V6(Ipv6Net::new_assert(segments.into(), 64))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::{Duration, Instant};

    use super::*;

    fn reaches(lab: &Routed, from: IpAddr, to: IpAddr) -> bool {
        let bind = |namespace: &Namespace, address| {
            let socket = namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 0))).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            socket
        };
        let (source, sink) = (bind(&lab.client, from), bind(&lab.server, to));
        source.send_to(b"ping", sink.local_addr().unwrap()).unwrap();
        sink.recv_from(&mut [0; 8]).is_ok_and(|(_, address)| address == source.local_addr().unwrap())
    }

    #[test]
    fn the_ends_reach_each_other_before_and_after_a_move() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let lab = match Routed::new(1500) {
            Ok(lab) => lab,
            Err(error) => return crate::here::not_run(&error.to_string()),
        };
        assert!(reaches(&lab, Routed::v4(End::Client, 2), Routed::v4(End::Server, 2)));
        assert!(reaches(&lab, Routed::v6(End::Client, 2), Routed::v6(End::Server, 2)));
        lab.move_end(End::Client, 2, 3).unwrap();
        assert!(reaches(&lab, Routed::v4(End::Client, 3), Routed::v4(End::Server, 2)));
        assert!(reaches(&lab, Routed::v6(End::Client, 3), Routed::v6(End::Server, 2)));
    }

    #[test]
    fn a_round_trip_takes_as_long_as_it_is_told() {
        if !crate::here::tun_permitted() {
            return;
        }
        // The link delay applies four times in a round trip, twice in one direction.
        let spec = LinkSpec { delay: Duration::from_millis(10), ..LinkSpec::default() };
        let lab = match Routed::over(1500, &spec) {
            Ok(lab) => lab,
            Err(error) => return crate::here::not_run(&error.to_string()),
        };
        let start = Instant::now();
        assert!(reaches(&lab, Routed::v4(End::Client, 2), Routed::v4(End::Server, 2)));
        assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    }
}
