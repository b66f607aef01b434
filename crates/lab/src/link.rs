//! Links, addresses and routes of namespaces, over netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkFlags};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::Namespace;

/// Timeout for a new link; a veth is running within milliseconds.
const LINK_PATIENCE: Duration = Duration::from_secs(30);

/// Options for joining two namespaces.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The interface's name in the first namespace.
    pub name_a: String,
    /// The interface's name in the second namespace.
    pub name_b: String,
    /// The MTU of both ends.
    pub mtu: u32,
    /// Addresses of the first end, with their prefix lengths.
    pub addresses_a: Vec<IpNet>,
    /// Addresses of the second end, with their prefix lengths.
    pub addresses_b: Vec<IpNet>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            name_a: "eth0".to_owned(),
            name_b: "eth0".to_owned(),
            mtu: 1500,
            addresses_a: Vec::new(),
            addresses_b: Vec::new(),
        }
    }
}

/// Joins two namespaces by a veth pair, both ends up and with their addresses. It is removed with either
/// namespace.
pub fn join(a: &Namespace, b: &Namespace, options: &LinkOptions) -> io::Result<()> {
    let peer_namespace = b.as_raw_fd();
    let create = async |handle: Handle| {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(options.name_b.clone())
            .mtu(options.mtu)
            .setns_by_fd(peer_namespace)
            .build();
        let veth = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(options.name_a.clone())
            .mtu(options.mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        handle.link().add(veth).execute().await
    };
    netlink(a, create)?;
    bring_up(a, b, options)
}

/// Does what [`join`] does, and makes both ends keep the order of packets ([`receive_on_one_cpu`]). Where
/// that is refused, packets are only more likely to be displaced, and the message says so.
pub fn join_in_order(a: &Namespace, b: &Namespace, options: &LinkOptions) -> io::Result<()> {
    join(a, b, options)?;
    for (namespace, name) in [(a, &options.name_a), (b, &options.name_b)] {
        if let Err(error) = receive_on_one_cpu(namespace, name) {
            eprintln!("{name} may displace packets: {error}");
        }
    }
    Ok(())
}

/// Brings both ends of a link up and adds their addresses.
pub(super) fn bring_up(a: &Namespace, b: &Namespace, options: &LinkOptions) -> io::Result<()> {
    let ends = [(a, &options.name_a, &options.addresses_a), (b, &options.name_b, &options.addresses_b)];
    for (namespace, name, _) in ends {
        set_up(namespace, name)?;
    }
    for (namespace, name, addresses) in ends {
        wait_until_running(namespace, name)?;
        for address in addresses {
            add_address(namespace, name, *address)?;
        }
    }
    Ok(())
}

/// Waits until an interface is running. The kernel activates a new link asynchronously, and drops packets
/// sent through it until then.
fn wait_until_running(namespace: &Namespace, name: &str) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < LINK_PATIENCE {
        let flags = netlink(namespace, async |handle: Handle| {
            let mut links = handle.link().get().match_name(name).execute();
            Ok(links.try_next().await?.map(|link| link.header.flags))
        })?;
        if flags.is_some_and(|flags| flags.contains(LinkFlags::Running | LinkFlags::LowerUp)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("the link {name} does not come up")))
}

/// Makes the receiving end of a veth keep the order of packets, by steering all of them to CPU 0 (RPS).
/// Without it each packet is queued on the CPU that sent it, and packets of a sender that migrates to another
/// CPU can overtake its earlier ones.
pub fn receive_on_one_cpu(namespace: &Namespace, name: &str) -> io::Result<()> {
    namespace.run(|| {
        // Only a sysfs mounted in the network namespace shows its interfaces. The mount is private to this
        // thread.
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&Path>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
        std::fs::write(format!("/sys/class/net/{name}/queues/rx-0/rps_cpus"), "1")
    })
}

/// Brings an interface up.
pub fn set_up(namespace: &Namespace, name: &str) -> io::Result<()> {
    change(namespace, name, LinkMessageBuilder::up)
}

/// Brings an interface down. The kernel removes its IPv6 addresses and its routes.
pub fn set_down(namespace: &Namespace, name: &str) -> io::Result<()> {
    change(namespace, name, LinkMessageBuilder::down)
}

/// Sets the MTU of an interface.
pub fn set_mtu(namespace: &Namespace, name: &str, mtu: u32) -> io::Result<()> {
    change(namespace, name, |link| link.mtu(mtu))
}

/// Sets the length of an interface's transmit queue, in packets.
pub fn set_tx_queue_len(namespace: &Namespace, name: &str, packets: u32) -> io::Result<()> {
    change(namespace, name, |link| link.txqueuelen(packets))
}

/// Removes an interface, and with it the other end of a veth.
pub fn remove(namespace: &Namespace, name: &str) -> io::Result<()> {
    netlink(namespace, async |handle: Handle| {
        let index = index_of(&handle, name).await?;
        handle.link().del(index).execute().await
    })
}

/// Adds an address to an interface, usable at once (no duplicate address detection).
pub fn add_address(namespace: &Namespace, name: &str, address: IpNet) -> io::Result<()> {
    let has_neighbours = netlink(namespace, async |handle: Handle| {
        let mut links = handle.link().get().match_name(name).execute();
        let link = links.try_next().await?.ok_or(rtnetlink::Error::RequestFailed)?.header;
        let mut request = handle.address().add(link.index, address.addr(), address.prefix_len());
        request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        request.execute().await?;
        // On the loopback and on a TUN there is no neighbour discovery, and the kernel joins no group.
        Ok(!link.flags.intersects(LinkFlags::Loopback | LinkFlags::Noarp))
    })?;
    match address.addr() {
        IpAddr::V6(address) if has_neighbours => wait_until_found(namespace, name, address),
        _ => Ok(()),
    }
}

/// Waits until the interface has joined the solicited-node group of an IPv6 address. A kernel worker joins
/// it; until then a neighbour's first solicitation is lost, which delays it until the retry a second later.
fn wait_until_found(namespace: &Namespace, name: &str, address: Ipv6Addr) -> io::Result<()> {
    let [.., a, b, c] = address.octets();
    // The solicited-node address (RFC 4291, section 2.7.1) as /proc/net/igmp6 writes it.
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    let joined = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(name) && words.next() == Some(&group)
    };
    let start = Instant::now();
    while start.elapsed() < LINK_PATIENCE {
        let groups = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/igmp6"))?;
        if groups.lines().any(joined) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not become usable on {name}")))
}

/// Removes an address from an interface.
pub fn remove_address(namespace: &Namespace, name: &str, address: IpNet) -> io::Result<()> {
    netlink(namespace, async |handle: Handle| {
        let index = index_of(&handle, name).await?;
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = address.prefix_len();
        message.header.family = match address {
            IpNet::V4(_) => rtnetlink::packet_route::AddressFamily::Inet,
            IpNet::V6(_) => rtnetlink::packet_route::AddressFamily::Inet6,
        };
        message.attributes.push(AddressAttribute::Local(address.addr()));
        message.attributes.push(AddressAttribute::Address(address.addr()));
        handle.address().del(message).execute().await
    })
}

/// Adds a route to `destination` through the gateway `via`.
pub fn add_route(namespace: &Namespace, destination: IpNet, via: IpAddr) -> io::Result<()> {
    netlink(namespace, async |handle: Handle| {
        let route = match (destination, via) {
            (IpNet::V4(net), IpAddr::V4(via)) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .gateway(via)
                .build(),
            (IpNet::V6(net), IpAddr::V6(via)) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .gateway(via)
                .build(),
            _ => {
                return Err(rtnetlink::Error::NamespaceError(
                    "route and gateway differ in family".to_owned(),
                ));
            }
        };
        handle.route().add(route).execute().await
    })
}

fn change(
    namespace: &Namespace,
    name: &str,
    edit: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec> + Send,
) -> io::Result<()> {
    netlink(namespace, async |handle: Handle| {
        let message = edit(LinkMessageBuilder::<LinkUnspec>::new().name(name)).build();
        handle.link().change(message).execute().await
    })
}

async fn index_of(handle: &Handle, name: &str) -> Result<u32, rtnetlink::Error> {
    let mut links = handle.link().get().match_name(name).execute();
    match links.try_next().await? {
        Some(link) => Ok(link.header.index),
        None => Err(rtnetlink::Error::RequestFailed),
    }
}

/// Runs `request` on a netlink connection inside the namespace.
pub(super) fn netlink<T: Send>(
    namespace: &Namespace,
    request: impl AsyncFnOnce(Handle) -> Result<T, rtnetlink::Error> + Send,
) -> io::Result<T> {
    namespace.run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection()?;
            let connection = tokio::spawn(connection);
            let result = request(handle).await.map_err(to_io);
            connection.abort();
            result
        })
    })
}

fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}
