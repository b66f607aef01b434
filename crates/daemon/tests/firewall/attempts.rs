//! Ways to send something.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::unistd::{Uid, setfsuid};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use weft_lab::Namespace;

/// One packet that a program tries to send. It does not mind when it may not.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    to: SocketAddr,
    how: How,
    from_port: u16,
    from: Option<IpAddr>,
    mark: u32,
    user: u32,
    hop_limit: Option<u32>,
    device: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum How {
    Udp,
    Tcp,
    /// With this number and content.
    Raw(i32, Vec<u8>),
}

impl Attempt {
    fn new(to: &str, port: u16, how: How) -> Self {
        let to = SocketAddr::new(to.parse().unwrap(), port);
        Self { to, how, from_port: 0, from: None, mark: 0, user: 0, hop_limit: None, device: None }
    }

    pub(crate) fn udp(to: &str, port: u16) -> Self {
        Self::new(to, port, How::Udp)
    }

    pub(crate) fn tcp(to: &str, port: u16) -> Self {
        Self::new(to, port, How::Tcp)
    }

    /// An echo request.
    pub(crate) fn ping(to: &str) -> Self {
        if to.contains(':') { Self::icmpv6(to, 128, 0) } else { Self::icmp(to, 8, 0) }
    }

    /// An ICMP message of this type and code.
    pub(crate) fn icmp(to: &str, kind: u8, code: u8) -> Self {
        let mut message = vec![kind, code, 0, 0, 0, 1, 0, 1];
        let sum = crate::tun::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        Self::new(to, 0, How::Raw(libc::IPPROTO_ICMP, message))
    }

    /// An ICMPv6 message of this type and code; its checksum is the kernel's task.
    pub(crate) fn icmpv6(to: &str, kind: u8, code: u8) -> Self {
        let mut message = vec![kind, code, 0, 0];
        message.resize(24, 0);
        Self::new(to, 0, How::Raw(libc::IPPROTO_ICMPV6, message))
    }

    /// Another protocol, to its port 53 if it has ports.
    pub(crate) fn protocol(to: &str, number: i32) -> Self {
        Self::new(to, 0, How::Raw(number, vec![0, 53, 0, 53, 0, 0, 0, 0]))
    }

    pub(crate) fn source_port(self, from_port: u16) -> Self {
        Self { from_port, ..self }
    }

    pub(crate) fn source(self, address: &str) -> Self {
        Self { from: Some(address.parse().unwrap()), ..self }
    }

    pub(crate) fn mark(self, mark: u32) -> Self {
        Self { mark, ..self }
    }

    /// From a socket of this user, who may set marks.
    pub(crate) fn by_user(self, user: u32) -> Self {
        Self { user, ..self }
    }

    pub(crate) fn hop_limit(self, hops: u32) -> Self {
        Self { hop_limit: Some(hops), ..self }
    }

    /// Through this device, whatever the routes say.
    pub(crate) fn through(self, device: &'static str) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Tries.
    pub(crate) fn make(&self, namespace: &Namespace) {
        // The error is what a program sees of the kill switch; what matters is what arrives.
        let _ = namespace.run(|| self.send()).unwrap();
    }

    /// Sets the socket up, which has to go well, and sends, which may be refused.
    fn send(&self) -> std::io::Result<std::io::Result<()>> {
        let domain = Domain::for_address(self.to);
        let (kind, protocol) = match &self.how {
            How::Udp => (Type::DGRAM, Some(Protocol::UDP)),
            How::Tcp => (Type::STREAM, Some(Protocol::TCP)),
            How::Raw(number, _) => (Type::RAW, Some(Protocol::from(*number))),
        };
        // A socket belongs to the user who opens it, as far as files are concerned.
        let before = setfsuid(Uid::from_raw(self.user));
        let socket = Socket::new(domain, kind, protocol);
        setfsuid(before);
        let socket = socket?;
        if self.mark != 0 {
            socket.set_mark(self.mark)?;
        }
        if let Some(hops) = self.hop_limit {
            socket.set_unicast_hops_v6(hops)?;
            socket.set_multicast_hops_v6(hops)?;
        }
        let mut scope = 0;
        if let Some(device) = self.device {
            socket.bind_device(Some(device.as_bytes()))?;
            scope = nix::net::if_::if_nametoindex(device)?;
        }
        if matches!(self.how, How::Udp) {
            socket.set_reuse_address(true)?;
            if self.to.is_ipv4() {
                socket.set_broadcast(true)?;
            }
        }
        let unspecified: IpAddr = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let with_scope = |address| match address {
            SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into(),
            v4 => v4,
        };
        if self.from_port != 0 || self.from.is_some() {
            let from = SocketAddr::new(self.from.unwrap_or(unspecified), self.from_port);
            socket.bind(&with_scope(from).into())?;
        }
        let to = SockAddr::from(with_scope(self.to));
        Ok(match &self.how {
            How::Udp => socket.send_to(b"leak", &to).map(drop),
            How::Tcp => {
                socket.set_nonblocking(true)?;
                socket.connect(&to)
            }
            How::Raw(_, message) => socket.send_to(message, &to).map(drop),
        })
    }
}
