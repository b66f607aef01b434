//! The state of a device, whatever its name is now.

use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo};

use super::{DeviceState, Failure, Link, Netlink, RouteError, change, link_of};

impl Netlink {
    /// Returns the state of the device with the index of `link`; `None` if there is none in this namespace.
    pub fn device_state(&self, link: &Link) -> Result<Option<DeviceState>, RouteError> {
        let found = match self.list(self.handle().link().get().match_index(link.index).execute()) {
            Err(Failure::Kernel(error)) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            found => found.map_err(|failure| failure.because(|| format!("find interface {}", link.name)))?,
        };
        let name = |attribute: &LinkAttribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        };
        Ok(found.first().map(|found| DeviceState {
            name: found.attributes.iter().find_map(name).unwrap_or_default(),
            is_tun: found.attributes.iter().any(is_tun),
            is_up: found.header.flags.contains(LinkFlags::Up),
            mtu: link_of(&link.name, found).mtu,
        }))
    }

    /// Gives the device with the index of `link` its name.
    pub fn rename(&self, link: &Link) -> Result<(), RouteError> {
        let message = change(link).name(link.name.clone()).build();
        self.change_link(message)
            .map_err(|failure| failure.because(|| format!("give the interface its name {}", link.name)))
    }
}

fn is_tun(attribute: &LinkAttribute) -> bool {
    let is_kind = |info: &LinkInfo| matches!(info, LinkInfo::Kind(InfoKind::Tun));
    matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(is_kind))
}
