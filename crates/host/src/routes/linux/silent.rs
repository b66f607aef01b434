//! A device through which the kernel sends nothing by itself, as it is with a device of the kernel's
//! WireGuard.
//!
//! The kernel gives a new TUN a link-local address, looks for routers with it, and reports its multicast
//! groups, and programs such as mDNS responders take part in it. No peer has those addresses.

use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute};
use weft_config::MIN_MTU_IPV6;

use super::{Link, Netlink, RouteError, change};

impl Netlink {
    /// Makes a device silent: it resolves no neighbours, takes part in no multicast, and gets no link-local
    /// address from the kernel. Another program may change that later.
    pub fn make_silent(&self, link: &Link) -> Result<(), RouteError> {
        // A router's device is in the group of all routers since it was created. Below the least MTU of IPv6
        // the kernel forgets that, with all that IPv6 has of the device, which is nothing as long as it is
        // new.
        let is_new = self.device_state(link).is_ok_and(|found| found.is_some_and(|found| !found.is_up));
        let forgets = is_new && link.mtu >= MIN_MTU_IPV6.into();
        if forgets {
            self.set_mtu(link, MIN_MTU_IPV6 - 1)?;
        }
        let changed = self.change_link(change(link).arp(false).multicast(false).build());
        if forgets {
            self.set_mtu(link, u16::try_from(link.mtu).unwrap_or(u16::MAX))?;
        }
        changed.map_err(|failure| failure.because(|| format!("make {} silent", link.name)))?;
        self.generate_no_address(link);
        Ok(())
    }

    /// Keeps the kernel from giving a device a link-local address when it goes up.
    pub fn generate_no_address(&self, link: &Link) {
        let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let message = change(link).append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![mode])).build();
        if let Err(failure) = self.change_link(message) {
            // Without IPv6 there is nothing to set.
            let error = failure.because(|| format!("leave {} without a link-local address", link.name));
            tracing::debug!("{error}");
        }
    }
}
