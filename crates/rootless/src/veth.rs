//! The device of the tunnel where there is no `/dev/net/tun`: a veth pair. Its near end is the interface; its
//! far end is in another network namespace, alone with a packet socket that takes the place of a TUN's queue.
//!
//! ```text
//!   namespace of the commands          namespace of the far end       the host's
//!   office 10.9.0.2/24 ─────────────── far ── packet socket ───────── weft
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use weft_host::ethtool::Features;
use weft_host::routes::{Netlink, VethEnd};
use weft_tun::{FAR, NEAR, TunOffload, bind_far_end, offload_of};

use crate::ask::RootlessError;

/// The name of the far end. No other interface is in its namespace but the loopback device.
pub const FAR_END: &str = "far";
/// The longest frames pass, so the MTU of the near end decides.
const FAR_MTU: u16 = u16::MAX;

/// What the keeper opens in a new network namespace.
pub(crate) struct FarNamespace {
    netlink: OwnedFd,
    /// A packet socket, bound to nothing. It keeps the namespace.
    pub(crate) packets: OwnedFd,
    /// proc_pid_net(5): `dev` of the namespace.
    pub(crate) counters: File,
}

impl FarNamespace {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [netlink, packets, counters] =
            <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| crate::ask::unexpected())?;
        Ok(Self { netlink, packets, counters: counters.into() })
    }

    /// Makes a pair with the near end `name` in the namespace `there`, whose network `near` configures, and
    /// binds the packet socket to the far end. `socket` is any socket of that namespace.
    pub(crate) fn connect(
        self,
        name: &str,
        there: impl AsFd,
        near: &Netlink,
        socket: impl AsFd,
        offload: bool,
    ) -> Result<(OwnedFd, File), RootlessError> {
        let Self { netlink, packets, counters } = self;
        let far = Netlink::adopt(netlink)?;
        far.add_veth(VethEnd { name: FAR_END, address: FAR }, VethEnd { name, address: NEAR }, there)?;
        let interface = |name: &str| name.parse().map_err(|_| crate::ask::unexpected());
        let near_link = near.link(&interface(name)?)?;
        near.make_silent(&near_link)?;
        // An end is running only if the other one is up too.
        near.set_up(&near_link)?;
        let link = far.link(&interface(FAR_END)?)?;
        far.make_silent(&link)?;
        far.set_mtu(&link, FAR_MTU)?;
        far.set_up(&link)?;
        bind_far_end(&packets, link.index)?;
        let offload = if offload { offload_of(&packets) } else { TunOffload::default() };
        let described = |feature: &str| is_described(feature, offload);
        Features::of(&socket, name)?.switch_off(|feature| is_of_offload(feature) && !described(feature))?;
        Ok((packets, counters))
    }
}

/// Reports whether a feature leaves work on the packets that an interface sends.
fn is_of_offload(feature: &str) -> bool {
    let is_segmentation = feature.starts_with("tx-") && feature.ends_with("-segmentation");
    is_segmentation || feature.starts_with("tx-checksum-") || feature.starts_with("tx-gso-")
}

/// Reports whether a virtio header describes the work that a feature leaves, and weft does it.
fn is_described(feature: &str, offload: TunOffload) -> bool {
    match feature {
        "tx-udp-segmentation" => offload.udp,
        "tx-checksum-ip-generic"
        | "tx-tcp-segmentation"
        | "tx-tcp-ecn-segmentation"
        | "tx-tcp-mangleid-segmentation"
        | "tx-tcp6-segmentation" => offload.tcp,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_virtio_header_cannot_say_is_not_left_to_weft() {
        let all = TunOffload { tcp: true, udp: true };
        let left = |feature, offload| !is_of_offload(feature) || is_described(feature, offload);
        for feature in ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-checksum-ip-generic"] {
            assert!(left(feature, all) && !left(feature, TunOffload::default()), "{feature}");
        }
        assert!(left("tx-udp-segmentation", all));
        assert!(!left("tx-udp-segmentation", TunOffload { udp: false, ..all }));
        for feature in ["tx-checksum-sctp", "tx-sctp-segmentation", "tx-udp_tnl-segmentation", "tx-gso-list"]
        {
            assert!(!left(feature, all), "{feature}");
        }
        assert!(left("tx-scatter-gather", TunOffload::default()) && left("rx-gro", all));
    }
}
