//! Tunnels joined by a virtual network, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agreement;
mod arrivals;
mod batches;
mod change;
mod forge;
mod handshake;
mod icmp;
mod inspect;
mod limits;
mod load;
mod paths;
mod rekey;
mod restore;
mod roaming;
mod shards;
mod sim;
mod spoofing;
mod staging;
mod timers;
