//! What a look-up has to know of the tunnel that it is for.

use std::path::Path;

use weft_config::InterfaceName;

use crate::clean_up::has_kill_switch;
use crate::record::Record;
use crate::step::Step;

/// A tunnel that a look-up must not depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The name of its device.
    pub interface: InterfaceName,
    /// The interface index of its device, if the device is there.
    pub index: Option<u32>,
    /// The mark of its own packets; 0: none.
    pub mark: u32,
    /// Whether what the system looks up may need the tunnel: it has name servers, a default route (also as
    /// two halves) or a kill switch.
    pub carries_look_ups: bool,
}

impl Tunnel {
    /// Returns the tunnel that a daemon left behind, or handed over, and that may be in the way of look-ups.
    pub fn left_behind(directory: &Path, interface: &InterfaceName) -> Option<Self> {
        let left = Record::read(directory, interface).ok().flatten()?;
        Some(Self::new(interface, left.index, left.mark, &left.steps))
    }

    pub(crate) fn new(interface: &InterfaceName, index: Option<u32>, mark: u32, steps: &[Step]) -> Self {
        let carries = |step: &Step| match step {
            Step::Dns(_) => true,
            Step::Route { prefix, .. } => prefix.prefix_len() <= 1,
            step => has_kill_switch(step),
        };
        Self { interface: interface.clone(), index, mark, carries_look_ups: steps.iter().any(carries) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_the_tunnel_is_seen_in_its_steps() {
        let name = "wg0".parse().unwrap();
        let carries = |steps: &[Step]| Tunnel::new(&name, None, 0, steps).carries_look_ups;
        let route = |prefix: &str, table| Step::Route { prefix: prefix.parse().unwrap(), table };
        let dns = weft_config::Dns { servers: vec!["10.0.0.1".parse().unwrap()], ..Default::default() };
        assert!(!carries(&[Step::LinkUp, route("10.0.0.0/8", 254)]));
        assert!(carries(&[Step::LinkUp, route("0.0.0.0/0", 51820)]));
        assert!(carries(&[route("10.0.0.0/8", 254), route("8000::/1", 254)]));
        assert!(carries(&[Step::Dns(dns)]));
    }
}
