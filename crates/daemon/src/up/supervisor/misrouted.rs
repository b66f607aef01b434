//! Tells what the routing table does not lead where the configuration means it to go: in the log when it
//! begins and ends, and among the findings of `weft status`.

use std::net::SocketAddr;

use weft_commands::misrouted::finding;
use weft_host::{Host, misrouted};
use weft_report::finding::{Finding, Level};

use super::Supervisor;

impl Supervisor {
    /// Asks the routing table again, after the start and each change of the network or the configuration.
    pub(super) fn look_for_misrouted(&mut self) {
        // All that a separate namespace has leads into the tunnel.
        let Some(host) = self.daemon.host().filter(|host| host.link_here().is_some()) else { return };
        if self.overrides.is_rootless {
            return;
        }
        let Ok(endpoints) = self.endpoints() else { return };
        let mut endpoints: Vec<SocketAddr> = endpoints.into_values().collect();
        endpoints.sort_unstable();
        let found = misrouted::in_force(host.netlink(), &self.config, &endpoints, Host::mark(host));
        let found: Vec<Finding> = found.iter().map(finding).collect();
        if found == self.misrouted {
            return;
        }
        for new in found.iter().filter(|new| !self.misrouted.contains(new)) {
            let advice = new.advice.as_deref().unwrap_or_default();
            match new.level {
                Level::Ok | Level::Note => tracing::info!("{}; {advice}", new.says),
                Level::Warning | Level::Problem => tracing::warn!("{}; {advice}", new.says),
            }
        }
        for gone in self.misrouted.iter().filter(|gone| !found.contains(gone)) {
            tracing::info!("no longer: {}", gone.says);
        }
        let mut running = self.managed.running();
        running.findings.retain(|finding| !self.misrouted.contains(finding));
        running.findings.extend(found.iter().cloned());
        drop(running);
        self.misrouted = found;
    }
}
