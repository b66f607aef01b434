//! What a daemon could leave behind in a namespace, as the kernel tells it.

use std::collections::BTreeSet;
use std::io;

use futures_util::{StreamExt as _, TryStreamExt as _};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteMessage;
use weft_lab::{Namespace, wait_until_ok};

/// Everything of a namespace that a daemon could leave behind: links, addresses, routes of all tables, and UDP
/// ports in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traces(pub(crate) BTreeSet<String>);

impl Traces {
    pub(crate) fn of(namespace: &Namespace) -> Self {
        namespace.run(|| {
            let mut traces: BTreeSet<String> =
                udp_ports().iter().map(|port| format!("udp port {port}")).collect();
            traces.extend(links().into_iter().map(|link| format!("link {link:?}")));
            traces.extend(addresses().into_iter().map(|address| format!("address {address}")));
            traces.extend(all_routes().iter().map(|route| format!("route {route}")));
            Self(traces)
        })
    }

    /// Waits until the namespace looks as it did then.
    #[track_caller]
    pub(crate) fn assert_restored(&self, namespace: &Namespace) {
        wait_until_ok(|| {
            let now = Self::of(namespace);
            if now == *self {
                return Ok(());
            }
            let left: Vec<_> = now.0.difference(&self.0).collect();
            let missing: Vec<_> = self.0.difference(&now.0).collect();
            Err(format!("left behind: {left:?}\nmissing: {missing:?}"))
        });
    }
}

/// Name, MTU and whether it is up, of every link in a namespace.
pub(crate) fn links_of(namespace: &Namespace) -> Vec<(String, u32, bool)> {
    namespace.run(links)
}

/// `table TABLE: PREFIX dev INTERFACE` for every route of a namespace.
pub(crate) fn routes_of(namespace: &Namespace) -> Vec<String> {
    namespace.run(all_routes)
}

/// `ADDRESS/PREFIX dev INTERFACE` for every address of a namespace.
pub(crate) fn addresses_of(namespace: &Namespace) -> Vec<String> {
    namespace.run(addresses)
}

/// UDP ports in use in a namespace, of both families.
pub(crate) fn udp_ports_of(namespace: &Namespace) -> BTreeSet<u16> {
    namespace.run(udp_ports)
}

fn netlink<T>(request: impl AsyncFnOnce(rtnetlink::Handle) -> Result<T, rtnetlink::Error>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        let connection = tokio::spawn(connection);
        let result = request(handle).await.unwrap();
        connection.abort();
        result
    })
}

/// Lets only so much leave the interface, with room for 64 MiB before it (the kernel's queueing discipline "tbf").
pub(crate) fn set_rate(namespace: &Namespace, name: &str, bytes_per_second: u32) -> io::Result<()> {
    use rtnetlink::packet_core::{
        DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
        Nla as _,
    };
    use rtnetlink::packet_route::RouteNetlinkMessage;
    use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};
    // linux/pkt_sched.h: attributes of tbf, and struct tc_tbf_qopt: two struct tc_ratespec, limit, buffer, mtu.
    const TCA_OPTIONS: u16 = 2;
    const TCA_TBF_PARMS: u16 = 1;
    const TCA_TBF_BURST: u16 = 6;
    const TC_LINKLAYER_ETHERNET: u8 = 1;
    const LIMIT: u32 = 64 << 20;
    const BURST: u32 = 64 << 10;
    let mut parameters = vec![0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(bytes_per_second.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend([LIMIT, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
    let mut options = Vec::new();
    for (kind, value) in [(TCA_TBF_PARMS, parameters), (TCA_TBF_BURST, BURST.to_ne_bytes().to_vec())] {
        let attribute = DefaultNla::new(kind, value);
        let mut bytes = vec![0; 4 + attribute.value_len()];
        rtnetlink::packet_core::Emitable::emit(&attribute, &mut bytes);
        options.extend(bytes);
    }
    namespace.run(|| {
        netlink(async |mut handle| {
            let index = nix::net::if_::if_nametoindex(name).unwrap();
            let mut qdisc = TcMessage::with_index(i32::try_from(index).unwrap());
            qdisc.header.parent = TcHandle::ROOT;
            qdisc.attributes.push(TcAttribute::Kind("tbf".to_owned()));
            qdisc.attributes.push(TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, options)));
            let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(qdisc));
            request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
            let mut answers = handle.request(request)?;
            while let Some(answer) = answers.next().await {
                if let NetlinkPayload::Error(error) = answer.payload
                    && error.code.is_some()
                {
                    return Ok(Err(error.to_io()));
                }
            }
            Ok(Ok(()))
        })
    })
}

fn links() -> Vec<(String, u32, bool)> {
    use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
    let messages = netlink(async |handle| handle.link().get().execute().try_collect::<Vec<_>>().await);
    messages
        .iter()
        .map(|message| {
            let (mut name, mut mtu) = (String::new(), 0);
            for attribute in &message.attributes {
                match attribute {
                    LinkAttribute::IfName(is) => name.clone_from(is),
                    LinkAttribute::Mtu(is) => mtu = *is,
                    _ => {}
                }
            }
            (name, mtu, message.header.flags.contains(LinkFlags::Up))
        })
        .collect()
}

fn interface_name(index: u32) -> String {
    nix::net::if_::if_indextoname(index)
        .map_or_else(|_| index.to_string(), |name| name.to_string_lossy().into_owned())
}

fn addresses() -> Vec<String> {
    use rtnetlink::packet_route::address::AddressAttribute;
    let messages = netlink(async |handle| handle.address().get().execute().try_collect::<Vec<_>>().await);
    messages
        .iter()
        .flat_map(|message| {
            message.attributes.iter().filter_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(format!(
                    "{address}/{} dev {}",
                    message.header.prefix_len,
                    interface_name(message.header.index)
                )),
                _ => None,
            })
        })
        .collect()
}

fn all_routes() -> Vec<String> {
    [AddressFamily::Inet, AddressFamily::Inet6].into_iter().flat_map(routes).collect()
}

fn routes(family: AddressFamily) -> Vec<String> {
    use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute};
    let mut query = RouteMessage::default();
    query.header.address_family = family;
    let messages = netlink(async |handle| handle.route().get(query).execute().try_collect::<Vec<_>>().await);
    messages
        .iter()
        .map(|message| {
            let (mut destination, mut device, mut table) =
                ("default".to_owned(), String::new(), u32::from(message.header.table));
            for attribute in &message.attributes {
                match attribute {
                    RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                        destination = format!("{address}/{}", message.header.destination_prefix_length);
                    }
                    RouteAttribute::Destination(RouteAddress::Inet6(address)) => {
                        destination = format!("{address}/{}", message.header.destination_prefix_length);
                    }
                    RouteAttribute::Oif(index) => device = interface_name(*index),
                    RouteAttribute::Table(is) => table = *is,
                    _ => {}
                }
            }
            format!("table {table}: {destination} dev {device}")
        })
        .collect()
}

fn udp_ports() -> BTreeSet<u16> {
    // Columns: number, local address as HEX:PORT, …
    ["udp", "udp6"]
        .iter()
        .flat_map(|table| {
            let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            let port = |line: &str| {
                let local = line.split_whitespace().nth(1)?;
                u16::from_str_radix(local.rsplit(':').next()?, 16).ok()
            };
            text.lines().skip(1).filter_map(port).collect::<Vec<_>>()
        })
        .collect()
}
