//! Tells what the routing table does not lead where the configuration means it to go.

use std::net::SocketAddr;
use std::time::Instant;

use weft_commands::misrouted::finding;
use weft_host::misrouted::{self, Misrouted};
use weft_uapi::Control as _;

use super::Supervisor;

impl Supervisor {
    /// Asks the routing table again, after the start and each change of the network or the configuration.
    pub(super) fn look_for_misrouted(&mut self) {
        // All that a separate namespace has leads into the tunnel.
        let Some(host) = self.daemon.host().filter(|host| host.link_here().is_some()) else { return };
        if self.overrides.is_rootless {
            return;
        }
        let Ok(state) = self.controller.get() else { return };
        let mut endpoints: Vec<SocketAddr> = state.peers.iter().filter_map(|peer| peer.endpoint).collect();
        endpoints.sort_unstable();
        // wg(8) may have changed it: the rules have that of the plan.
        let mark = state.settings.fw_mark;
        let index = host.link_here().map(|link| link.index);
        let found = misrouted::in_force(host.netlink(), index, &self.config, &endpoints, mark, host.mark());
        self.misrouted.tell(found.iter().map(finding).collect(), &self.managed);
    }

    /// Sets DNS again that another program replaces, and reports if that does not last. Returns when to look
    /// again.
    pub(super) fn look_after_dns(&mut self) -> Option<Instant> {
        let host = self.daemon.host_mut()?;
        let due = host.look_after_dns(Instant::now())?;
        let past = host.dns_past().cloned().map(|past| finding(&Misrouted::Dns(past)));
        self.dns_past.tell(past.into_iter().collect(), &self.managed);
        self.tell_of_undone();
        Some(due)
    }
}
