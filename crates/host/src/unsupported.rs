//! The substitutes on systems where weft cannot set up the host yet. Calls that would change something fail,
//! and nothing is found to undo.

pub(crate) mod routes {
    use std::collections::{BTreeSet, HashSet};
    use std::net::{IpAddr, SocketAddr};

    use ipnet::IpNet;
    use weft_config::{Config, InterfaceName};

    use crate::routes::{DeviceState, FoundRule, Link, QueueLimits, RouteError, Routing, Rule, Via};

    /// Cannot be constructed.
    #[derive(Debug)]
    pub struct Netlink {
        never: std::convert::Infallible,
    }

    impl Netlink {
        /// Always an error.
        pub fn open() -> Result<Self, RouteError> {
            Err(RouteError::Unsupported { action: "configure the network".to_owned() })
        }

        /// Finds a device.
        pub fn link(&self, _: &InterfaceName) -> Result<Link, RouteError> {
            match self.never {}
        }

        /// Sets the MTU of a device.
        pub fn set_mtu(&self, _: &Link, _: u16) -> Result<(), RouteError> {
            match self.never {}
        }

        /// Sets a device up.
        pub fn set_up(&self, _: &Link) -> Result<(), RouteError> {
            match self.never {}
        }

        /// Removes a device.
        pub fn remove_link(&self, _: &Link) -> Result<(), RouteError> {
            match self.never {}
        }

        /// Returns the prefixes that are routed through a device.
        pub fn routes_through(&self, _: &Link) -> Result<HashSet<(IpNet, u32)>, RouteError> {
            match self.never {}
        }

        /// Sets the limits of a device's queue.
        pub fn set_queue_limits(&self, _: &Link, _: QueueLimits) {
            match self.never {}
        }

        /// Waits until the addresses of a device can be used.
        pub fn settle_addresses(&self, _: &Link) {
            match self.never {}
        }

        /// Returns the state of a device.
        pub fn device_state(&self, _: &Link) -> Result<Option<DeviceState>, RouteError> {
            match self.never {}
        }

        /// Gives a device its name.
        pub fn rename(&self, _: &Link) -> Result<(), RouteError> {
            match self.never {}
        }

        /// Keeps the kernel from giving a device an address.
        pub fn generate_no_address(&self, _: &Link) {
            match self.never {}
        }

        /// Makes a device silent.
        pub fn make_silent(&self, _: &Link) -> Result<(), RouteError> {
            match self.never {}
        }

        /// Returns how a default route is made.
        pub fn routing(&self) -> Result<Routing, RouteError> {
            match self.never {}
        }

        /// Adds the host route of an endpoint.
        pub fn add_endpoint_route(&self, _: IpAddr, _: &Via) -> Result<bool, RouteError> {
            match self.never {}
        }

        /// Removes the host route of an endpoint.
        pub fn remove_endpoint_route(&self, _: IpAddr, _: &Via) -> Result<(), RouteError> {
            match self.never {}
        }

        /// Reports whether the host route of an endpoint is in force.
        pub fn has_endpoint_route(&self, _: IpAddr, _: &Via) -> Result<bool, RouteError> {
            match self.never {}
        }

        /// Returns the MTU of the route to an address.
        pub fn mtu_towards(&self, _: SocketAddr, _: u32) -> Result<u32, RouteError> {
            match self.never {}
        }

        /// Returns the MTU for the device when none is configured.
        pub fn default_mtu(&self, _: &Config, _: &[SocketAddr], _: u32) -> u16 {
            match self.never {}
        }

        /// Returns the addresses of a device.
        pub fn addresses(&self, _: &Link) -> Result<Vec<IpNet>, RouteError> {
            match self.never {}
        }

        /// Returns the tables that have routes.
        pub fn tables_in_use(&self) -> Result<BTreeSet<u32>, RouteError> {
            match self.never {}
        }

        pub fn add_rule(&self, _: &Rule) -> Result<(), RouteError> {
            match self.never {}
        }

        pub fn remove_rule(&self, _: &Rule) -> Result<(), RouteError> {
            match self.never {}
        }

        pub fn rules(&self) -> Result<Vec<FoundRule>, RouteError> {
            match self.never {}
        }

        pub fn add_address(&self, _: &Link, _: IpNet) -> Result<(), RouteError> {
            match self.never {}
        }

        pub fn remove_address(&self, _: &Link, _: IpNet) -> Result<(), RouteError> {
            match self.never {}
        }

        pub fn add_route(&self, _: &Link, _: IpNet, _: u32) -> Result<bool, RouteError> {
            match self.never {}
        }

        pub fn remove_route(&self, _: &Link, _: IpNet, _: u32) -> Result<(), RouteError> {
            match self.never {}
        }
    }
}

pub(crate) mod network {
    use std::convert::Infallible;
    use std::env::consts::OS;
    use std::io;
    use std::net::SocketAddr;

    use crate::network::{NetworkChange, WatchError, Way};
    use crate::routes::Link;

    /// Cannot be constructed.
    #[derive(Debug)]
    pub struct Watch {
        _never: Infallible,
    }

    impl Watch {
        /// Always an error.
        pub fn start(
            _: Option<&Link>,
            _: impl FnMut(NetworkChange) + Send + 'static,
        ) -> Result<Self, WatchError> {
            Err(WatchError::Unsupported)
        }
    }

    /// Always an error.
    pub fn way_to(_: SocketAddr, _: u32) -> io::Result<Way> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("weft does not ask {OS} for routes yet")))
    }
}

pub(crate) mod dns {
    use crate::dns::{Choice, DnsError, Method, Places, Record, Seen};

    pub(crate) fn method(_: &Places, _: Choice) -> Result<Method, DnsError> {
        Err(DnsError::Unsupported)
    }

    pub(crate) fn apply(_: &Places, _: &str, _: &Record) -> Result<(), DnsError> {
        Err(DnsError::Unsupported)
    }

    pub(crate) fn undo(_: &Places, _: &str, _: &Record) -> Result<(), DnsError> {
        Err(DnsError::Unsupported)
    }

    pub(crate) fn state_directory<'a>(lasting: &'a str, _: &'a str) -> &'a str {
        lasting
    }

    pub(crate) fn look(_: &Places, _: &str, _: &Record) -> Result<Seen, DnsError> {
        Ok(Seen::InForce)
    }

    pub(crate) fn repair(_: &Places) -> Result<Vec<String>, DnsError> {
        Ok(Vec::new())
    }
}

pub(crate) mod firewall {
    use weft_config::InterfaceName;

    use crate::firewall::{FirewallError, Present, Recognises, Rules};

    /// Never used: there are no rules.
    pub(crate) const RECOGNISES: Recognises = Recognises::Endpoints;

    /// Fails if any rules are wanted.
    pub fn apply(rules: &Rules) -> Result<(), FirewallError> {
        check(rules)
    }

    /// Fails if any rules are wanted.
    pub fn check(rules: &Rules) -> Result<(), FirewallError> {
        if rules.is_empty() { Ok(()) } else { unsupported(&rules.interface) }
    }

    /// Does nothing: there are no rules.
    pub fn remove(_: &InterfaceName) -> Result<(), FirewallError> {
        Ok(())
    }

    /// Returns nothing: there are no rules.
    pub fn present(_: &InterfaceName) -> Result<Present, FirewallError> {
        Ok(Present::default())
    }

    /// Returns where the rules would be.
    pub(crate) fn own_place(_: &InterfaceName) -> String {
        "packet filter".to_owned()
    }

    /// Returns the command that removes the kill switch: there is none.
    pub(crate) fn removing_command(interface: &InterfaceName) -> String {
        format!("weft down {interface}")
    }

    fn unsupported(interface: &InterfaceName) -> Result<(), FirewallError> {
        Err(FirewallError::Unsupported { action: format!("set the firewall rules of {interface}") })
    }
}

pub(crate) mod process {
    use std::env::consts::OS;
    use std::io;
    use std::time::Duration;

    use crate::platform::Process;

    /// Always `None`.
    pub(crate) fn started(_: u32) -> Option<u64> {
        None
    }

    /// Always `None`.
    pub(crate) fn user(_: u32) -> Option<u32> {
        None
    }

    /// Always false.
    pub(crate) fn has_lost_its_device(_: u32) -> bool {
        false
    }

    /// Always an error.
    pub(crate) fn end(_: Process, _: Duration) -> io::Result<bool> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("weft ends no other processes on {OS} yet")))
    }
}

pub(crate) mod memory {
    pub(crate) fn available_bytes() -> Option<u64> {
        None
    }

    pub(crate) fn total_bytes() -> Option<u64> {
        None
    }
}
