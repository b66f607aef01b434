//! What of a whole family does not go through a tunnel that is meant to carry all of it.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_config::KillSwitch;

use super::{Hop, Meant, Misrouted, PREFIXES, Routes, is_public, probes, public};
use crate::routes::{Exception, Family};

impl<R: Routes> Meant<'_, R> {
    pub(super) fn families(&self) -> Vec<Misrouted> {
        let mut found = Vec::new();
        for family in Family::ALL.into_iter().filter(|family| self.means_all(*family)) {
            let networks = self.networks_past(family);
            let is_told = |address: &IpAddr| networks.iter().any(|(net, ..)| net.contains(address));
            let mut others = public(family).filter(|address| !is_told(address));
            let elsewhere = others.find_map(|address| Some((address, self.elsewhere(address)?)));
            found.extend(self.told_of_networks(&networks));
            let leads_all = |rule: &Exception| rule.is_for_all && !rule.blocks;
            let (of_all, of_parts): (Vec<_>, Vec<_>) =
                self.routes.exceptions(family).into_iter().partition(leads_all);
            if let Some((example, via)) = elsewhere {
                let is_within = self.goes_within(example, false);
                let is_of_weft = !is_within && self.routes.is_of_weft(&via);
                let rule = of_all.into_iter().next().filter(|_| !is_of_weft);
                let is_explained = is_within || is_of_weft || rule.is_some();
                found.push(Misrouted::Captured { family, example, via, is_within, is_of_weft, rule });
                if is_explained {
                    continue;
                }
            } else if let Some(other) = self.taken_over(family) {
                let is_of_weft = self.routes.is_of_weft(&other);
                found.push(Misrouted::TakenOver { family, other, is_of_weft });
            }
            found.extend(self.blocked(family));
            found.extend(of_parts.into_iter().map(|rule| Misrouted::Exception { family, rule }));
        }
        // The kill switch blocks what is not in the tunnel.
        let has_kill_switch = self.config.interface.host.kill_switch != KillSwitch::Off;
        for (family, other) in [(Family::V6, Family::V4), (Family::V4, Family::V6)] {
            if !has_kill_switch
                && self.means_all(other)
                && !self.allowed_ips().any(|net| public(family).any(|address| net.contains(&address)))
                && let Some(via) = public(family).find_map(|address| self.elsewhere(address))
            {
                found.push(Misrouted::FamilyPast { family, via });
            }
        }
        found
    }

    /// Returns the full tunnel that carries a family now and will not then. One that carries the packets of
    /// this tunnel goes on, unless the two go round in circles, which is told where an endpoint is known.
    fn taken_over(&self, family: Family) -> Option<String> {
        let (example, other) =
            public(family).find_map(|address| Some((address, self.routes.taken_from(address)?)))?;
        let carries = |to: IpAddr| self.routes.hop(to, true) == Hop::Through(other.clone());
        let is_outer = match self.endpoints {
            [] => carries(example) && !self.goes_within(example, true),
            known => known.iter().any(|endpoint| carries(endpoint.ip())),
        };
        (!is_outer).then_some(other)
    }

    /// Returns the public networks that are a small part of a family and go past the tunnel by a gateway. The
    /// way to an endpoint has to.
    fn networks_past(&self, family: Family) -> Vec<(IpNet, String, bool)> {
        let small = if family == Family::V4 { 8 } else { 16 };
        let is_way_to_endpoint =
            |net: &IpNet| self.endpoints.iter().any(|endpoint| IpNet::from(endpoint.ip()) == *net);
        let is_past = |(net, device, _): &(IpNet, String, bool)| {
            net.prefix_len() >= small
                && is_public(net.addr())
                && !net.addr().is_multicast()
                && !is_way_to_endpoint(net)
                && self.past(probes(*net)[1]).as_ref() == Some(device)
        };
        self.routes.by_gateway(family).into_iter().filter(is_past).take(PREFIXES).collect()
    }

    fn told_of_networks(&self, found: &[(IpNet, String, bool)]) -> impl Iterator<Item = Misrouted> {
        let is_blocked = self.config.interface.host.kill_switch != KillSwitch::Off;
        let told = move |is_of_network: bool| {
            let mut of_kind = found.iter().filter(|(.., of_network)| *of_network == is_of_network).peekable();
            let via = of_kind.peek()?.1.clone();
            let networks = of_kind.map(|(net, ..)| *net).collect();
            Some(Misrouted::Networks { networks, via, is_of_network, is_blocked })
        };
        [true, false].map(told).into_iter().flatten()
    }

    /// Returns the route that drops the largest part of a family. A small part is dropped on purpose.
    fn blocked(&self, family: Family) -> Option<Misrouted> {
        let large = if family == Family::V4 { 8 } else { 16 };
        let lost = public(family).filter(|address| self.routes.hop(*address, false) == Hop::Nowhere);
        let routes = lost.filter_map(|example| Some((example, self.routes.blocked_by(example)?)));
        let large = routes.filter(|(_, route)| route.prefix.prefix_len() <= large);
        let (example, route) = large.min_by_key(|(_, route)| route.prefix.prefix_len())?;
        Some(Misrouted::Blocked { family, example, route })
    }
}
