//! Follows changes around an interface that is up, where the system does not route by marks.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::plan::{Plan, SystemState};
use super::{Applied, Host, HostError, Step};
use crate::routes::{FoundRoute, Routing};

/// Whether steps depend on the endpoints of the peers, so that [`Host::follow`] has to be called.
pub const FOLLOWS_ENDPOINTS: bool = cfg!(any(target_os = "macos", target_os = "freebsd", windows));

impl Host {
    /// Adapts what depends on the endpoints of the peers and on the system's routes to their present state:
    /// the host routes of the endpoints, and the endpoints that a kill switch lets through. Does nothing
    /// where the system routes by marks. Returns whether anything was changed. To be called after each change
    /// of the network or of an endpoint.
    pub fn follow(&mut self, endpoints: &[SocketAddr]) -> Result<bool, HostError> {
        let Routing::Halves(found) = self.kernel.netlink.routing()? else { return Ok(false) };
        let plan = following(&self.plan, &mut self.applied, endpoints, found);
        if plan.steps == self.applied.steps() {
            return Ok(false);
        }
        self.change_to(plan).map(|changes| changes > 0)
    }
}

/// Returns the plan for these endpoints and the routes that were found. Host routes that are gone are no
/// longer among the steps in force: the kernel removes the routes of an interface that goes down.
fn following(plan: &Plan, applied: &mut Applied, endpoints: &[SocketAddr], found: Vec<FoundRoute>) -> Plan {
    let lost = |step: &Step| match step {
        Step::EndpointRoute { address, via } => !found.iter().any(|route| route.is_host_route(*address, via)),
        _ => false,
    };
    let lost: Vec<Step> = applied.steps().iter().filter(|step| lost(step)).cloned().collect();
    let facts =
        SystemState { routing: Routing::Halves(found), ..SystemState::default() }.without(applied.steps());
    let others = if let Routing::Halves(others) = facts.routing { others } else { Vec::new() };
    let mut wanted = plan.following(endpoints, &others);
    // A step that another program's state made needless is not tried again at every change.
    let in_force: HashSet<&Step> = applied.steps().iter().collect();
    let planned: HashSet<&Step> = plan.steps.iter().collect();
    wanted.steps.retain(|step| in_force.contains(step) || !planned.contains(step));
    applied.forget(&lost);
    wanted
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
