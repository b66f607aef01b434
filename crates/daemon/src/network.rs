//! Adapts a running interface to changes of the network.

use std::net::SocketAddr;
use std::sync::Arc;

use weft_control::Controller;
use weft_host::network::{Follower, MtuPolicy, NetworkChange};
use weft_host::routes::{Link, Netlink};
use weft_tunnel::PublicKey;
use weft_uapi::ControlError;

use crate::interface::queue_limits;

/// Reacts to changes of the network, for one interface. Used by the control thread.
pub(crate) struct NetworkKeeper {
    follower: Follower,
    controller: Arc<Controller>,
    link: Link,
    /// The MTU of the device, as last set or read.
    mtu: u16,
    chosen: MtuChoice,
}

/// The origin of a device's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MtuChoice {
    /// The configuration: the MTU stays.
    Configured,
    /// Another program, or an operator: the MTU stays.
    ByHand,
    /// weft: the MTU follows the paths to the peers.
    Automatic,
}

impl NetworkKeeper {
    /// Creates a keeper for an interface that is up with this MTU; `ipv6` says whether IPv6 is in the tunnel.
    /// Records the paths to its peers, which lead through the network of `paths`.
    pub(crate) fn new(
        controller: Arc<Controller>,
        link: Link,
        mtu: u16,
        chosen: MtuChoice,
        ipv6: bool,
        paths: &Netlink,
    ) -> Result<Self, ControlError> {
        let policy = match chosen {
            MtuChoice::Configured | MtuChoice::ByHand => MtuPolicy::Fixed,
            MtuChoice::Automatic => MtuPolicy::Automatic { current: mtu, ipv6 },
        };
        let mut follower = Follower::new(controller.fw_mark(), policy);
        // The current paths are the baseline; a better MTU that is known already waits for the next change.
        let _ = follower.observe(&endpoints(&controller)?, paths);
        Ok(Self { follower, controller, link, mtu, chosen })
    }

    /// Reacts to a change: peers on changed paths are sent a packet, and the device gets the MTU of the
    /// paths. Call it in the network namespace of the sockets, which is that of `paths`; `netlink` is that of
    /// the device.
    ///
    /// # Errors
    /// When the interface is being taken down. An MTU that the kernel refuses is only logged.
    pub(crate) fn react(
        &mut self,
        change: &NetworkChange,
        netlink: &Netlink,
        paths: &Netlink,
    ) -> Result<(), ControlError> {
        if change.device_left || change.device_gone {
            // Another device may have its index in this namespace from now on.
            self.follower.fix_mtu();
        } else if change.device_mtu.is_some() || change.missed {
            self.see_mtu(netlink)?;
        }
        if let Some(by) = change.clock_set_forward {
            tracing::info!(seconds = by.as_secs(), "the clock was set forward");
            self.controller.clock_set_forward()?;
        }
        if !change.concerns_ways() {
            return Ok(());
        }
        let peers = endpoints(&self.controller)?;
        self.follower.set_mark(self.controller.fw_mark());
        let reaction = self.follower.react(change, &peers, paths);
        if let Some(slept) = reaction.slept {
            tracing::info!(seconds = slept.as_secs(), "the machine slept");
            self.controller.resumed(peers.iter().map(|(key, _)| *key).collect(), slept)?;
        }
        if !reaction.moved.is_empty() {
            tracing::info!(
                peers = reaction.moved.len(),
                "the network changed: peers are reached another way"
            );
            self.controller.paths_changed(reaction.moved)?;
        }
        if let Some(mtu) = reaction.mtu {
            self.set_mtu(mtu, netlink)?;
        }
        Ok(())
    }

    /// Returns the device's MTU in bytes, as far as it is known.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the origin of the MTU.
    pub(crate) fn mtu_choice(&self) -> MtuChoice {
        self.chosen
    }

    /// Reads the device's MTU, sets the size of super-packets to match, and detects whether another program
    /// set the MTU. It reads the current value because the notification may be older than weft's last change.
    pub(crate) fn see_mtu(&mut self, netlink: &Netlink) -> Result<(), ControlError> {
        let device = netlink.device_state(&self.link).ok().flatten();
        let Some(mtu) = device.and_then(|device| u16::try_from(device.mtu).ok()) else { return Ok(()) };
        netlink.set_queue_limits(&self.link, queue_limits(mtu));
        if mtu == self.mtu {
            return Ok(());
        }
        tracing::info!(mtu, interface = self.link.name, "the MTU was set by hand: it stays from now on");
        self.follower.fix_mtu();
        self.chosen = MtuChoice::ByHand;
        self.mtu = mtu;
        self.controller.set_mtu(mtu)
    }

    fn set_mtu(&mut self, mtu: u16, netlink: &Netlink) -> Result<(), ControlError> {
        // Inner packets must not be padded beyond the device's MTU, so the tunnel gets a smaller MTU first.
        self.controller.set_mtu(mtu.min(self.mtu))?;
        match netlink.set_mtu(&self.link, mtu) {
            Ok(()) => {
                tracing::info!(
                    before = self.mtu,
                    mtu,
                    interface = self.link.name,
                    "the MTU of the paths to the peers has changed"
                );
                self.mtu = mtu;
            }
            Err(error) => tracing::warn!("{error}"),
        }
        self.controller.set_mtu(self.mtu)
    }
}

/// Returns the endpoints of the peers that have one.
fn endpoints(controller: &Controller) -> Result<Vec<(PublicKey, SocketAddr)>, ControlError> {
    let peers = controller.snapshot()?.peers;
    Ok(peers.iter().filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect())
}
