//! What the control socket reports as in force.

use std::collections::HashMap;

use weft_config::{Config, Peer};
use weft_host::Step;
use weft_report::finding::{Finding, Level};
use weft_tunnel::PublicKey;

use crate::status::{FilePeer, Running};
use crate::up::daemon::Daemon;

/// The name of the finding that the name servers of the tunnel are not in force.
pub(super) const LOST_DNS: &str = "lost_dns";

/// Returns the finding that the name servers of the tunnel are not in force.
pub(super) fn lost_dns(why: &str) -> Finding {
    Finding::new(LOST_DNS, Level::Problem, format!("names are looked up past the tunnel: {why}")).advise(
        "see which program writes /etc/resolv.conf, and keep it from that: in NetworkManager `dns=none`, for dhcpcd \
         `nohook resolv.conf`, for dhclient and ifupdown the package openresolv, which weft uses too",
    )
}

/// Updates what the control socket reports as in force.
pub(super) fn show(daemon: &Daemon, config: &Config, running: &mut Running) {
    let Some(host) = daemon.host() else { return };
    let name = &config.interface.name;
    running.mtu = daemon.mtu();
    running.file = peers_of(config);
    for list in [&mut running.addresses, &mut running.routes, &mut running.dns, &mut running.firewall] {
        list.clear();
    }
    for step in host.in_force() {
        match step {
            Step::Address(address) => running.addresses.push(address.to_string()),
            Step::Route { prefix, table } if *table == weft_host::routes::MAIN_TABLE => {
                running.routes.push(prefix.to_string());
            }
            Step::Route { prefix, table } => running.routes.push(format!("{prefix} table {table}")),
            Step::Rule(_) | Step::EndpointRoute { .. } => {
                running.routes.push(step.doing(name).to_string());
            }
            Step::Dns(dns) => running.dns.push(dns.to_string()),
            Step::Firewall(firewall) => running.firewall.push(firewall.to_string()),
            Step::Mtu(_) | Step::LinkUp | Step::Sysctl { .. } | Step::Hook(_) => {}
        }
    }
}

/// Returns what reports need of the peers in the file.
pub(in crate::up) fn peers_of(config: &Config) -> HashMap<PublicKey, FilePeer> {
    let of_file = |peer: &Peer| {
        let file = FilePeer { settings: peer.report.clone(), has_endpoint: peer.endpoint.is_some() };
        (peer.public_key, file)
    };
    config.peers.iter().map(of_file).collect()
}
