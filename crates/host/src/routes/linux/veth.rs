//! A veth pair between two network namespaces, which is the device of a tunnel where there may be no TUN.

use std::os::fd::{AsFd, AsRawFd as _};

use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{Failure, Netlink, RouteError, advice};

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
}
