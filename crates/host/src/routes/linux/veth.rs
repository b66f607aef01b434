//! A veth pair between two network namespaces, which is the device of a tunnel where there may be no TUN.

use std::os::fd::{AsFd, AsRawFd as _};

use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{Failure, Link, Netlink, RouteError, advice, change};

/// One end of a pair.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// The name of the interface.
    pub name: &'a str,
    /// Its Ethernet address.
    pub address: [u8; 6],
}

impl Netlink {
    /// Makes a pair: the `far` end in the namespace of this socket, the `near` end in `there`. Neither is up.
    pub fn add_veth(&self, far: VethEnd<'_>, near: VethEnd<'_>, there: impl AsFd) -> Result<(), RouteError> {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(near.name)
            .address(near.address.to_vec())
            .setns_by_fd(there.as_fd().as_raw_fd())
            .build();
        let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(far.name)
            .address(far.address.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        let action = || format!("make the veth pair {}", near.name);
        self.wait(self.handle().link().add(message).execute()).map_err(|failure| match failure {
            Failure::Kernel(error) => {
                let advice = match error.raw_os_error() {
                    Some(libc::EOPNOTSUPP) => {
                        "the kernel has no veth devices: load the module (modprobe veth)"
                    }
                    _ => advice(&error),
                };
                RouteError::Refused { action: action(), error, advice }
            }
            Failure::Timeout => RouteError::Timeout { action: action() },
        })
    }

    /// Keeps the kernel from sending packets of the link through a device: it resolves no neighbours, and has
    /// no link-local address, from which it would look for routers.
    pub fn make_silent(&self, link: &Link) -> Result<(), RouteError> {
        self.change_link(change(link).arp(false).build())
            .map_err(|failure| failure.because(|| format!("set {} to resolve no neighbours", link.name)))?;
        let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let message = change(link).append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![mode])).build();
        if let Err(failure) = self.change_link(message) {
            // Without IPv6 there is nothing to set.
            let error = failure.because(|| format!("leave {} without a link-local address", link.name));
            tracing::debug!("{error}");
        }
        Ok(())
    }
}
