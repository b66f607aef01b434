//! What a daemon could leave behind in a namespace, as ip(8) tells it.

use std::collections::BTreeSet;

use serde_json::Value;
use weft_lab::{Namespace, wait_until_ok};

use super::ip::ip_json;

/// Everything of a namespace that a daemon could leave behind: links, addresses, routes of all tables, and
/// UDP ports in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traces(pub(crate) BTreeSet<String>);

impl Traces {
    pub(crate) fn of(namespace: &Namespace) -> Self {
        let ports = udp_ports_of(namespace).into_iter().map(|port| format!("udp port {port}"));
        let links = links_of(namespace).into_iter().map(|link| format!("link {link:?}"));
        let addresses = addresses_of(namespace).into_iter().map(|address| format!("address {address}"));
        let routes = routes_of(namespace).into_iter().map(|route| format!("route {route}"));
        Self(ports.chain(links).chain(addresses).chain(routes).collect())
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

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Name, MTU and whether it is up, of every link in a namespace.
pub(crate) fn links_of(namespace: &Namespace) -> Vec<(String, u32, bool)> {
    let link = |link: &Value| {
        let is_up = link["flags"].as_array().unwrap().contains(&"UP".into());
        (text(&link["ifname"]), link["mtu"].as_u64().unwrap() as u32, is_up)
    };
    ip_json(namespace, &["link"]).iter().map(link).collect()
}

/// `table TABLE: PREFIX dev INTERFACE` for every route of a namespace.
pub(crate) fn routes_of(namespace: &Namespace) -> Vec<String> {
    let routes = |family, bits: &str| -> Vec<String> {
        let route = |route: &Value| {
            let destination = text(&route["dst"]);
            let is_host = destination != "default" && !destination.contains('/');
            let bits = if is_host { bits } else { "" };
            // The main table has no name.
            let table = route["table"].as_str().unwrap_or("254");
            format!("table {table}: {destination}{bits} dev {}", text(&route["dev"]))
        };
        ip_json(namespace, &[family, "-N", "route", "show", "table", "all"]).iter().map(route).collect()
    };
    [routes("-4", "/32"), routes("-6", "/128")].concat()
}

/// `ADDRESS/PREFIX dev INTERFACE` for every address of a namespace.
pub(crate) fn addresses_of(namespace: &Namespace) -> Vec<String> {
    let mut addresses = Vec::new();
    for link in ip_json(namespace, &["address"]) {
        for address in link["addr_info"].as_array().unwrap() {
            let (local, length) = (text(&address["local"]), &address["prefixlen"]);
            addresses.push(format!("{local}/{length} dev {}", text(&link["ifname"])));
        }
    }
    addresses
}

/// UDP ports in use in a namespace, of both families.
pub(crate) fn udp_ports_of(namespace: &Namespace) -> BTreeSet<u16> {
    namespace.run(udp_ports)
}

/// Limits the rate at which packets leave the interface, with room for 64 MiB before it.
pub(crate) fn set_rate(namespace: &Namespace, name: &str, bytes_per_second: u32) -> Result<(), String> {
    let rate = format!("{bytes_per_second}bps");
    let mut tc = namespace.command("tc");
    tc.args([
        "qdisc", "replace", "dev", name, "root", "tbf", "rate", &rate, "burst", "64kb", "limit", "64mb",
    ]);
    let output = tc.output().map_err(|error| error.to_string())?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said()) }
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
