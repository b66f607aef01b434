//! What the control socket reports as in force.

use std::collections::HashMap;

use weft_config::{Config, Peer};
use weft_host::Step;
use weft_report::ExpiredPeerReport;
use weft_tunnel::PublicKey;

use crate::status::{FilePeer, Running};
use crate::up::daemon::Daemon;

/// Updates what the control socket reports as in force.
pub(super) fn show(daemon: &Daemon, config: &Config, running: &mut Running) {
    let Some(host) = daemon.host() else { return };
    let name = &config.interface.name;
    running.mtu = daemon.mtu();
    running.file = peers_of(config);
    running.expired = expired_of(config);
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

/// Returns the peers in the file that have ended.
pub(in crate::up) fn expired_of(config: &Config) -> Vec<ExpiredPeerReport> {
    let of_file = |peer: &Peer| ExpiredPeerReport {
        public_key: peer.public_key.to_string(),
        settings: peer.report.clone(),
    };
    config.expired.iter().map(of_file).collect()
}

/// Returns what reports need of the peers in the file.
pub(in crate::up) fn peers_of(config: &Config) -> HashMap<PublicKey, FilePeer> {
    let of_file = |peer: &Peer| {
        let file = FilePeer { settings: peer.report.clone(), has_endpoint: peer.endpoint.is_some() };
        (peer.public_key, file)
    };
    config.peers.iter().map(of_file).collect()
}
