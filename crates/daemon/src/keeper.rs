//! Keeps a running interface in step with the network around it.

use std::net::SocketAddr;
use std::sync::Arc;

use weft_host::network::{Change, Follower, MtuPolicy};
use weft_host::routes::{Link, Netlink};
use weft_tunnel::PublicKey;
use weft_uapi::ControlError;

use crate::control::Controller;
use crate::interface::queue_limits;

/// What has to be done about changes of the network, for one interface. Of the control thread.
pub(crate) struct Keeper {
    follower: Follower,
    controller: Arc<Controller>,
    link: Link,
    /// The MTU that the device was given.
    mtu: u16,
    chosen: MtuChoice,
}

/// Who has chosen the MTU of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MtuChoice {
    /// The configuration: it stays.
    Configured,
    /// Somebody, beside weft: it stays.
    ByHand,
    /// weft: it follows the ways to the peers.
    Automatic,
}

impl Keeper {
    /// For an interface that is up with this MTU; `ipv6` if it has such an address. Looks at the ways to its peers.
    pub(crate) fn new(
        controller: Arc<Controller>,
        link: Link,
        mtu: u16,
        chosen: MtuChoice,
        ipv6: bool,
    ) -> Result<Self, ControlError> {
        let policy = match chosen {
            MtuChoice::Configured | MtuChoice::ByHand => MtuPolicy::Fixed,
            MtuChoice::Automatic => MtuPolicy::Automatic { current: mtu, ipv6 },
        };
        let mut follower = Follower::new(controller.fw_mark(), policy);
        // What the ways were before is what they are now; an MTU that is better already waits for the next change.
        let _ = follower.look(&endpoints(&controller)?);
        Ok(Self { follower, controller, link, mtu, chosen })
    }

    /// Does what a change asks for: peers that are reached another way hear from us, and the device gets the MTU that
    /// the ways have. To be called in the network namespace of the sockets.
    ///
    /// # Errors
    /// The interface is being taken down. An MTU that is refused is only logged.
    pub(crate) fn react(&mut self, change: &Change, netlink: &Netlink) -> Result<(), ControlError> {
        if change.device_left || change.device_gone {
            // Its number in this namespace may be another's from now on.
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
        let reaction = self.follower.react(change, &peers);
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

    /// The device's MTU in bytes, as far as is known.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Who has chosen it.
    pub(crate) fn mtu_choice(&self) -> MtuChoice {
        self.chosen
    }

    /// The device has another MTU, and so its super-packets another size. Finds out whether somebody else chose it: what
    /// was told may be older than what weft did since.
    pub(crate) fn see_mtu(&mut self, netlink: &Netlink) -> Result<(), ControlError> {
        let Ok(link) = self.link.name.parse().map(|name| netlink.link(&name)) else { return Ok(()) };
        let Some(mtu) = link.ok().and_then(|link| u16::try_from(link.mtu).ok()) else { return Ok(()) };
        netlink.set_queue_limits(&self.link, queue_limits(mtu));
        if mtu == self.mtu {
            return Ok(());
        }
        tracing::info!(mtu, interface = self.link.name, "somebody set the MTU: from now on it stays");
        self.follower.fix_mtu();
        self.chosen = MtuChoice::ByHand;
        self.mtu = mtu;
        self.controller.set_mtu(mtu)
    }

    fn set_mtu(&mut self, mtu: u16, netlink: &Netlink) -> Result<(), ControlError> {
        // Inner packets may not be padded beyond what the device says, so a smaller MTU comes to the tunnel first.
        self.controller.set_mtu(mtu.min(self.mtu))?;
        match netlink.set_mtu(&self.link, mtu) {
            Ok(()) => {
                tracing::info!(
                    before = self.mtu,
                    mtu,
                    interface = self.link.name,
                    "the ways to the peers have another MTU"
                );
                self.mtu = mtu;
            }
            Err(error) => tracing::warn!("{error}"),
        }
        self.controller.set_mtu(self.mtu)
    }
}

/// Where the peers are, those of whom that is known.
fn endpoints(controller: &Controller) -> Result<Vec<(PublicKey, SocketAddr)>, ControlError> {
    let peers = controller.snapshot()?.peers;
    Ok(peers.iter().filter_map(|peer| Some((peer.public_key, peer.endpoint?))).collect())
}
