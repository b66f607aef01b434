//! Addresses, routes and link settings over rtnetlink.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, TryStreamExt as _};
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{AfSpecInet, AfSpecUnspec, InetDevConf, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::sys::AsyncSocket as _;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use weft_config::{InterfaceName, MIN_MTU_IPV6};

use super::{DeviceState, Link, MAIN_TABLE, QueueLimits, RouteError, Routing, TIMEOUT, USUAL_MTU, Via};

#[path = "linux/device.rs"]
mod device;
#[path = "linux/exceptions.rs"]
mod exceptions;
#[path = "linux/lists.rs"]
mod lists;
#[path = "linux/mtu.rs"]
mod mtu;
#[path = "linux/others.rs"]
mod others;
#[path = "linux/past.rs"]
mod past;
#[path = "linux/rules.rs"]
mod rules;
#[path = "linux/settle.rs"]
mod settle;
#[path = "linux/silent.rs"]
mod silent;
#[path = "linux/towards.rs"]
mod towards;
#[path = "linux/veth.rs"]
mod veth;

use self::lists::{Interruptions, ListSocket};
pub use self::towards::{GatewayRoute, MainRoute, RouteAnswer};
pub use self::veth::VethEnd;

/// The kernel's network configuration in the network namespace of the thread that opened it.
///
/// Its calls wait for the kernel; they must not be made from within a tokio runtime.
#[derive(Debug)]
pub struct Netlink {
    runtime: Runtime,
    /// A socket of the protocol NETLINK_ROUTE.
    socket: OwnedFd,
    connection: Mutex<Connection>,
    interruptions: Interruptions,
}

/// The crate's side of a socket.
#[derive(Debug)]
struct Connection {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Netlink {
    /// Opens a netlink socket in the network namespace of this thread. No thread is started.
    pub fn open() -> Result<Self, RouteError> {
        let protocol = socket2::Protocol::from(libc::NETLINK_ROUTE);
        let socket = socket2::Socket::new(libc::AF_NETLINK.into(), socket2::Type::RAW, Some(protocol));
        Self::adopt(socket.map_err(RouteError::Open)?.into())
    }

    /// Uses a netlink socket of another network namespace, of the protocol NETLINK_ROUTE. The owner of that
    /// namespace may change its network through the socket.
    pub fn adopt(socket: OwnedFd) -> Result<Self, RouteError> {
        // The crate's socket panics if this fails.
        nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .map_err(|errno| RouteError::Open(errno.into()))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(RouteError::Open)?;
        Self::with(socket, runtime).map_err(RouteError::Open)
    }

    fn with(socket: OwnedFd, runtime: Runtime) -> io::Result<Self> {
        let interruptions = Interruptions::default();
        let connection = Mutex::new(Connection::of(&socket, &runtime, &interruptions)?);
        Ok(Self { runtime, socket, connection, interruptions })
    }

    fn handle(&self) -> Handle {
        let mut connection = self.connection();
        // The crate gives a connection up when the kernel does not take a message, as for lack of memory.
        // Later messages may pass, and some of them undo the change that failed.
        if connection.task.is_finished()
            && let Ok(again) = Connection::of(&self.socket, &self.runtime, &self.interruptions)
        {
            *connection = again;
        }
        connection.handle.clone()
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a device.
    pub fn link(&self, name: &InterfaceName) -> Result<Link, RouteError> {
        self.find_link(name.as_str())
    }

    fn find_link(&self, name: &str) -> Result<Link, RouteError> {
        let links = self.handle().link().get().match_name(name).execute();
        match self.list(links) {
            Ok(links) => links
                .first()
                .map(|message| link_of(name, message))
                .ok_or_else(|| RouteError::NoLink(name.to_owned())),
            Err(Failure::Kernel(error)) if error.raw_os_error() == Some(libc::ENODEV) => {
                Err(RouteError::NoLink(name.to_owned()))
            }
            Err(failure) => Err(failure.because(|| format!("find interface {name}"))),
        }
    }

    /// Sets the MTU of a device.
    pub fn set_mtu(&self, link: &Link, mtu: u16) -> Result<(), RouteError> {
        let message = change(link).mtu(mtu.into()).build();
        self.change_link(message).map_err(|e| e.because(|| format!("set MTU {mtu} on {}", link.name)))
    }

    /// Sets a device up.
    pub fn set_up(&self, link: &Link) -> Result<(), RouteError> {
        let message = change(link).up().build();
        self.change_link(message).map_err(|e| e.because(|| format!("set {} up", link.name)))
    }

    /// Removes a device, even if another process holds it. It is no error if the device is gone already.
    pub fn remove_link(&self, link: &Link) -> Result<(), RouteError> {
        gone_is_fine(self.wait(self.handle().link().del(link.index).execute()), &[libc::ENODEV])
            .map_err(|failure| failure.because(|| format!("remove interface {}", link.name)))
    }

    /// Sets the limits of a device's queue. A limit that the kernel rejects is skipped: limits only affect
    /// speed.
    pub fn set_queue_limits(&self, link: &Link, limits: QueueLimits) {
        let wanted = [
            limits.tx_queue_len.map(LinkAttribute::TxQueueLen),
            limits.gso_max_bytes.map(LinkAttribute::GsoMaxSize),
            limits.gso_max_bytes.map(LinkAttribute::GsoIpv4MaxSize),
            limits.gso_max_segments.map(LinkAttribute::GsoMaxSegs),
        ];
        for attribute in wanted.into_iter().flatten() {
            let message = change(link).append_extra_attribute(attribute.clone()).build();
            if let Err(failure) = self.change_link(message) {
                let error = failure.because(|| format!("set {attribute:?} on {}", link.name));
                tracing::debug!("{error}");
            }
        }
    }

    fn change_link(&self, message: LinkMessage) -> Result<(), Failure> {
        self.wait(self.handle().link().change(message).execute())
    }

    /// Adds an address to a device.
    pub fn add_address(&self, link: &Link, address: IpNet) -> Result<(), RouteError> {
        let mut request = self.handle().address().add(link.index, address.addr(), address.prefix_len());
        // The builder's message is replaced: it has a broadcast address, which a tunnel does not have.
        *request.message_mut() = address_message(link, address);
        self.wait(request.execute()).map_err(|failure| {
            self.why_not_on(link, address, failure, format!("add address {address} to {}", link.name))
        })
    }

    /// Removes an address from a device, and no other address of its network. It is no error if the address
    /// is gone already.
    pub fn remove_address(&self, link: &Link, address: IpNet) -> Result<(), RouteError> {
        if address.addr().is_ipv4() {
            self.keep_secondaries(link);
        }
        let request = self.handle().address().del(address_message(link, address));
        gone_is_fine(self.wait(request.execute()), &[libc::EADDRNOTAVAIL, libc::ENODEV, libc::ENXIO])
            .map_err(|failure| failure.because(|| format!("remove address {address} from {}", link.name)))
    }

    /// Makes the other IPv4 addresses of a network stay when the first of them is removed:
    /// promote_secondaries of the kernel's ip-sysctl.rst, for this device only. It is set without /proc/sys,
    /// which is often read-only.
    fn keep_secondaries(&self, link: &Link) {
        let mut wanted = InetDevConf::default();
        wanted.promote_secondaries = 1;
        let wanted = AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(wanted)]);
        let message = change(link).append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![wanted])).build();
        if let Err(failure) = self.change_link(message) {
            let error = failure.because(|| format!("keep the other addresses of {}", link.name));
            tracing::debug!("{error}");
        }
    }

    /// Adds a route to a prefix through a device. Returns whether that was needed: an existing route through
    /// the same device stays as it is.
    pub fn add_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<bool, RouteError> {
        let request = self.handle().route().add(route_message(link, prefix, table));
        match self.wait(request.execute()) {
            Ok(()) => Ok(true),
            Err(failure) if failure.is(libc::EEXIST) && self.has_route(link, prefix, table) => Ok(false),
            Err(failure) => {
                let wanted = [(prefix, table)].into();
                let exists =
                    failure.is(libc::EEXIST).then(|| self.those_in_the_way(&link.name, None, &wanted));
                match exists.and_then(Result::ok).and_then(|mut found| found.pop()) {
                    Some(exists) => Err(exists),
                    None => {
                        let action = route_name("add", &link.name, prefix, table);
                        Err(self.why_not_on(link, prefix, failure, action))
                    }
                }
            }
        }
    }

    /// Adds a route to a prefix through a device, in the place of another one that is like it.
    pub fn replace_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<(), RouteError> {
        let request = self.handle().route().add(route_message(link, prefix, table)).replace();
        self.wait(request.execute()).map_err(|failure| {
            self.why_not_on(link, prefix, failure, route_name("add", &link.name, prefix, table))
        })
    }

    /// Returns why a device did not take an address or a route. Where IPv6 does not fit the MTU, the kernel
    /// answers as for a device that is gone, or for a wrong value.
    fn why_not_on(&self, link: &Link, net: IpNet, failure: Failure, action: String) -> RouteError {
        let mtu = || self.device_state(link).ok().flatten().map(|device| device.mtu);
        if net.addr().is_ipv6()
            && (failure.is(libc::ENODEV) || failure.is(libc::EINVAL))
            && let Some(mtu) = mtu().filter(|mtu| *mtu < MIN_MTU_IPV6.into())
        {
            return RouteError::MtuForIpv6 { action, mtu };
        }
        failure.because(|| action)
    }

    /// Removes a route. It is no error if the route is gone already.
    pub fn remove_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<(), RouteError> {
        let request = self.handle().route().del(route_message(link, prefix, table));
        gone_is_fine(self.wait(request.execute()), &[libc::ESRCH, libc::ENODEV])
            .map_err(|failure| failure.because(|| route_name("remove", &link.name, prefix, table)))
    }

    /// Returns the addresses of a device, including those that the kernel assigned.
    pub fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, RouteError> {
        let found = self
            .address_messages(link)
            .map_err(|failure| failure.because(|| format!("list the addresses of {}", link.name)))?;
        Ok(found.iter().filter_map(address_of).collect())
    }

    fn address_messages(&self, link: &Link) -> Result<Vec<AddressMessage>, Failure> {
        self.read(|handle| handle.address().get().set_link_index_filter(link.index).execute(), Vec::push)
    }

    /// Returns the tables that have routes of either family.
    pub fn tables_in_use(&self) -> Result<BTreeSet<u32>, RouteError> {
        self.routes_of_both_families(None, |route| table_of(&route))
            .map_err(|failure| failure.because(|| "list the routes".to_owned()))
    }

    /// Returns the prefixes that are routed through a device, each with the table of its route.
    pub fn routes_through(&self, link: &Link) -> Result<HashSet<(IpNet, u32)>, RouteError> {
        self.routes_of_both_families(Some(link), |route| (net_of(&route), table_of(&route)))
            .map_err(|failure| failure.because(|| format!("list the routes of {}", link.name)))
    }

    /// Returns how a default route is made here.
    #[allow(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "other systems read their routes for it"
    )]
    pub fn routing(&self) -> Result<Routing, RouteError> {
        Ok(Routing::Rules)
    }

    /// Always an error: rules keep the tunnel's own packets out of the tunnel here.
    pub fn add_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<bool, RouteError> {
        Err(RouteError::Unsupported { action: format!("add endpoint route {address} {via}") })
    }

    /// Does nothing: there are no such routes here.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub fn remove_endpoint_route(&self, _: IpAddr, _: &Via) -> Result<(), RouteError> {
        Ok(())
    }

    /// Always `false`: there are no such routes here.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub fn has_endpoint_route(&self, _: IpAddr, _: &Via) -> Result<bool, RouteError> {
        Ok(false)
    }

    /// Reports whether exactly this prefix is routed through this device already.
    fn has_route(&self, link: &Link, prefix: IpNet, table: u32) -> bool {
        let is_it = |route: RouteMessage| table_of(&route) == table && net_of(&route) == prefix;
        self.routes(family(prefix.addr()), Some(link), |is_there, route| *is_there |= is_it(route))
            .unwrap_or_default()
    }

    fn routes_of_both_families<T, L: Default + Extend<T> + IntoIterator<Item = T>>(
        &self,
        through: Option<&Link>,
        see: impl Fn(RouteMessage) -> T,
    ) -> Result<L, Failure> {
        let mut all = L::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            match self.routes(family, through, |list: &mut L, route| list.extend([see(route)])) {
                Ok(list) => all.extend(list),
                Err(failure) if has_no_such_family(&failure) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(all)
    }

    /// Adds each route of a family to a list, or each that leads through one device. The messages are not
    /// kept: a router of the Internet has a million.
    fn routes<L: Default>(
        &self,
        family: AddressFamily,
        through: Option<&Link>,
        mut add: impl FnMut(&mut L, RouteMessage),
    ) -> Result<L, Failure> {
        let mut query = RouteMessage::default();
        query.header.address_family = family;
        query.attributes.extend(through.map(|link| RouteAttribute::Oif(link.index)));
        let request = |handle: Handle| handle.route().get(query.clone()).execute();
        self.read(request, |list, route| {
            if through.is_none_or(|link| device_of(&route) == Some(link.index)) {
                add(list, route);
            }
        })
    }

    /// Returns the messages of an answer that is no list.
    fn list<T>(&self, messages: impl Stream<Item = Result<T, rtnetlink::Error>>) -> Result<Vec<T>, Failure> {
        self.wait(messages.try_collect())
    }

    fn wait<T>(&self, answer: impl Future<Output = Result<T, rtnetlink::Error>>) -> Result<T, Failure> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, answer).await });
        // The crate takes an answer that never comes for a consent.
        if self.connection().task.is_finished() {
            return Err(Failure::Kernel(io::Error::other("the kernel did not take the message")));
        }
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(rtnetlink::Error::NetlinkError(message))) => Err(Failure::Kernel(message.to_io())),
            Ok(Err(other)) => Err(Failure::Kernel(io::Error::other(other))),
            Err(_) => Err(Failure::Timeout),
        }
    }
}

impl Connection {
    fn of(socket: &OwnedFd, runtime: &Runtime, interruptions: &Interruptions) -> io::Result<Self> {
        let socket = socket.try_clone()?;
        let _guard = runtime.enter();
        // SAFETY: `into_raw_fd` gives up the only owner of an open descriptor.
        let socket = unsafe { rtnetlink::sys::TokioSocket::from_raw_fd(socket.into_raw_fd()) };
        // The kernel then sends only the routes of one device, if these are asked for. Before Linux 4.20 it
        // sends all.
        let _ = socket.socket_ref().set_netlink_get_strict_chk(true);
        let socket = ListSocket::new(socket, Arc::clone(interruptions));
        let (connection, handle, _) = rtnetlink::from_socket(socket);
        Ok(Self { handle, task: runtime.spawn(connection) })
    }
}

/// Why a request failed, without what it was for.
#[derive(Debug)]
enum Failure {
    Kernel(io::Error),
    Timeout,
}

impl Failure {
    fn is(&self, errno: i32) -> bool {
        matches!(self, Self::Kernel(error) if error.raw_os_error() == Some(errno))
    }

    fn because(self, action: impl FnOnce() -> String) -> RouteError {
        let action = action();
        match self {
            // It is not a missing permission, which has another exit code.
            Self::Kernel(error) if error.raw_os_error() == Some(libc::EACCES) => {
                RouteError::Ipv6Off { action }
            }
            Self::Kernel(error) => RouteError::Refused { advice: advice(&error), action, error },
            Self::Timeout => RouteError::Timeout { action },
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => weft_config::as_root(
            "run weft as root, or give it CAP_NET_ADMIN",
            "the unit lacks CAP_NET_ADMIN: give it AmbientCapabilities=CAP_NET_ADMIN in a drop-in (`systemctl edit`)",
        ),
        Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => {
            "the kernel has no such address family: remove its addresses from the configuration"
        }
        Some(libc::EEXIST) => {
            "it is there already, made by someone else: remove that one, or choose another in the configuration \
             (`Table = NUMBER` or `Table = off` for routes)"
        }
        Some(libc::EADDRINUSE) => "another device has this address: choose another one",
        Some(libc::ENODEV) => "the interface is gone: another program has removed or renamed it",
        Some(libc::ENETUNREACH | libc::ENETDOWN) => "the interface is down: another program has set it down",
        Some(libc::EINVAL) => "the kernel does not take this value: check Address, AllowedIPs, MTU and Table",
        _ => "see `ip address`, `ip route` and the kernel log",
    }
}

fn gone_is_fine(result: Result<(), Failure>, gone: &[i32]) -> Result<(), Failure> {
    match result {
        Err(failure) if gone.iter().any(|&errno| failure.is(errno)) => Ok(()),
        other => other,
    }
}

/// Reports whether the kernel lacks the address family: a kernel without IPv6 has no IPv6 routes and rules.
fn has_no_such_family(failure: &Failure) -> bool {
    failure.is(libc::EAFNOSUPPORT) || failure.is(libc::EOPNOTSUPP)
}

fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    // The `Local` attribute is the device's own address; `Address` may be that of the remote end.
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    });
    IpNet::new(address?, message.header.prefix_len).ok()
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn link_of(name: &str, message: &LinkMessage) -> Link {
    let mtu = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    });
    Link { name: name.to_owned(), index: message.header.index, mtu: mtu.unwrap_or(USUAL_MTU) }
}

fn change(link: &Link) -> LinkMessageBuilder<LinkUnspec> {
    LinkMessageBuilder::<LinkUnspec>::new().index(link.index)
}

fn address_message(link: &Link, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = link.index;
    message.header.scope = AddressScope::Universe;
    if address.addr().is_ipv6() {
        // Without duplicate address detection: a tunnel has no other hosts on its link, and a tentative
        // address cannot be used at once (RFC 4862, section 5.4).
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes =
        vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    message
}

fn route_message(link: &Link, prefix: IpNet, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(prefix.addr()),
        destination_prefix_length: prefix.prefix_len(),
        table: u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC),
        protocol: RouteProtocol::Static,
        // IPv6 routes have no scope.
        scope: if prefix.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Universe },
        kind: RouteType::Unicast,
        ..Default::default()
    };
    message.attributes = vec![
        RouteAttribute::Destination(RouteAddress::from(prefix.network())),
        RouteAttribute::Oif(link.index),
        RouteAttribute::Table(table),
    ];
    message
}

fn route_name(verb: &str, device: &str, prefix: IpNet, table: u32) -> String {
    let table = if table == MAIN_TABLE { String::new() } else { format!(" table {table}") };
    format!("{verb} route {prefix} dev {device}{table}")
}

fn table_of(route: &RouteMessage) -> u32 {
    let long = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    long.unwrap_or(route.header.table.into())
}

fn device_of(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

/// Returns the prefix of a route; a default route has no destination attribute.
fn net_of(route: &RouteMessage) -> IpNet {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    let unspecified = if route.header.address_family == AddressFamily::Inet {
        IpAddr::from([0u8; 4])
    } else {
        IpAddr::from([0u8; 16])
    };
    let address = address.unwrap_or(unspecified);
    IpNet::new(address, route.header.destination_prefix_length).unwrap_or(IpNet::from(address))
}

#[cfg(test)]
#[path = "linux/tests.rs"]
mod tests;
