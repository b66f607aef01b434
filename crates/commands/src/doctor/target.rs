//! The requirements of a configuration.

use std::net::SocketAddr;

use ipnet::IpNet;
use weft_config::metrics::Address;
use weft_config::{Config, Endpoint, InterfaceName, KillSwitch, Peer, Table};

/// The requirements of a configuration on the machine. The default has none.
#[derive(Clone, Debug, Default)]
pub struct DoctorTarget {
    pub interface: Option<InterfaceName>,
    /// The UDP port; 0: any.
    pub listen_port: u16,
    /// The mark of sent datagrams; 0: none.
    pub fw_mark: u32,
    /// The address and TCP port for metrics.
    pub metrics: Option<SocketAddr>,
    /// The MTU, if it is configured.
    pub mtu: Option<u16>,
    /// Whether weft routes all IPv4 traffic into the tunnel by policy routing.
    pub full_tunnel_v4: bool,
    /// Whether weft routes all IPv6 traffic into the tunnel by policy routing.
    pub full_tunnel_v6: bool,
    /// Whether the kill switch blocks traffic outside the tunnel.
    pub kill_switch: bool,
    /// Whether the MSS of TCP connections through the interface is clamped.
    pub mss_clamp: bool,
    /// Whether name servers or search domains are configured.
    pub dns: bool,
    /// Whether the peers look like clients that reach each other through this machine.
    pub is_hub: bool,
    /// Whether IPv6 addresses or routes are configured.
    pub ipv6: bool,
    /// The endpoints of the peers, without duplicates.
    pub endpoints: Vec<Endpoint>,
    /// The configuration itself, which says where traffic is meant to go.
    pub config: Option<Config>,
}

impl DoctorTarget {
    /// Returns the requirements of this configuration.
    pub fn of(config: &Config) -> Self {
        let interface = &config.interface;
        let routes_all = |is_v4: bool| {
            let is_default = |net: &IpNet| net.prefix_len() == 0 && matches!(net, IpNet::V4(_)) == is_v4;
            interface.table == Table::Auto
                && config.peers.iter().flat_map(|peer| &peer.allowed_ips).any(is_default)
        };
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for endpoint in config.peers.iter().filter_map(|peer| peer.endpoint.as_ref()) {
            if !endpoints.contains(endpoint) {
                endpoints.push(endpoint.clone());
            }
        }
        Self {
            interface: Some(interface.name.clone()),
            listen_port: interface.settings.listen_port,
            fw_mark: interface.settings.fw_mark,
            metrics: match &interface.host.metrics.address {
                Some(Address::Tcp(address)) => Some(*address),
                Some(Address::Unix(_)) | None => None,
            },
            mtu: interface.mtu,
            full_tunnel_v4: routes_all(true),
            full_tunnel_v6: routes_all(false),
            kill_switch: interface.host.kill_switch != KillSwitch::Off,
            mss_clamp: interface.host.mss_clamp,
            dns: !interface.host.dns.is_empty(),
            is_hub: config.peers.iter().filter(|peer| is_client(peer)).count() >= 2,
            ipv6: config.needs_ipv6(),
            endpoints,
            config: Some(config.clone()),
        }
    }

    /// Reports whether weft has to set firewall rules.
    pub fn needs_nft(&self) -> bool {
        self.full_tunnel_v4 || self.full_tunnel_v6 || self.kill_switch || self.mss_clamp
    }
}

/// Reports whether a peer is a roaming client: it has no configured endpoint, and single addresses only.
fn is_client(peer: &Peer) -> bool {
    let is_address = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
    peer.endpoint.is_none() && !peer.allowed_ips.is_empty() && peer.allowed_ips.iter().all(is_address)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

    fn target(interface: &str, peers: &[&str]) -> DoctorTarget {
        let mut text = format!("[Interface]\nPrivateKey = {KEY}\n{interface}\n");
        for (number, peer) in peers.iter().enumerate() {
            let key = weft_tunnel::PublicKey::from_bytes([number as u8 + 1; 32]);
            text += &format!("[Peer]\nPublicKey = {key}\n{peer}\n");
        }
        let parsed = config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap());
        DoctorTarget::of(&parsed.unwrap_or_else(|error| panic!("{error}")).config)
    }

    use weft_config as config;

    #[test]
    fn a_default_route_is_a_full_tunnel_only_where_weft_routes_by_policy() {
        // With a table that the user chose, the user is responsible for the routing.
        let own = target("Table = 1234", &["AllowedIPs = 0.0.0.0/0"]);
        assert!(!own.full_tunnel_v4 && !own.needs_nft());
        let split = target("", &["AllowedIPs = 10.0.0.0/8, ::/1"]);
        assert!(!split.full_tunnel_v4 && !split.full_tunnel_v6);
    }

    #[test]
    fn what_sets_firewall_rules_needs_nft() {
        let site = &["AllowedIPs = 10.0.0.0/8"];
        assert!(!target("", site).needs_nft() && !target("# weft: MssClamp = off", site).needs_nft());
        for setting in ["# weft: MssClamp = on", "# weft: KillSwitch = on"] {
            assert!(target(setting, site).needs_nft(), "{setting}");
        }
        assert!(target("", &["AllowedIPs = ::/0"]).needs_nft());
    }

    #[test]
    fn several_clients_make_a_hub_and_networks_do_not() {
        let client = "AllowedIPs = 10.0.0.2/32, fd00::2/128";
        assert!(target("", &[client, "AllowedIPs = 10.0.0.3/32"]).is_hub);
        assert!(!target("", &[client]).is_hub);
        let site = "AllowedIPs = 10.1.0.0/16\nEndpoint = 192.0.2.1:51820";
        assert!(!target("", &[client, site, site]).is_hub);
    }

    #[test]
    fn each_endpoint_is_looked_at_once() {
        let site = "Endpoint = 192.0.2.1:51820";
        let target = target("MTU = 1400\nListenPort = 53", &[site, site, "Endpoint = vpn.example:1"]);
        assert_eq!(target.endpoints.len(), 2);
        assert_eq!((target.mtu, target.listen_port), (Some(1400), 53));
    }
}
