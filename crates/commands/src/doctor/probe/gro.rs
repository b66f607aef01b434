//! Reads which interfaces join received datagrams before they forward them (ethtool -k).

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use weft_host::ethtool::Features;

use crate::doctor::machine::Gro;

/// Returns what the network cards do that are up; in a container, which has none, what its Ethernet
/// interfaces do.
pub(super) fn all() -> Option<Vec<Gro>> {
    let directory = Path::new("/sys/class/net");
    let names = fs::read_dir(directory).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_ethernet_that_is_up(&directory.join(name))).collect();
    let is_card = |name: &String| directory.join(name).join("device").exists();
    if names.iter().any(is_card) {
        names.retain(is_card);
    }
    names.sort();
    Some(names.into_iter().filter_map(|name| of(name).ok()).collect())
}

/// Bridges and TAPs do not receive from a network themselves.
fn is_ethernet_that_is_up(directory: &Path) -> bool {
    const ARPHRD_ETHER: &str = "1";
    let read = |file| fs::read_to_string(directory.join(file)).unwrap_or_default();
    let flags = u32::from_str_radix(read("flags").trim().trim_start_matches("0x"), 16).unwrap_or_default();
    read("type").trim() == ARPHRD_ETHER
        && flags & libc::IFF_UP as u32 != 0
        && !["tun_flags", "bridge"].iter().any(|file| directory.join(file).exists())
}

fn of(interface: String) -> io::Result<Gro> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let features = Features::of(&socket, &interface)?;
    let active = features.active()?;
    let is_active = |wanted: &str| active.iter().find(|(name, _)| *name == wanted).map(|(_, on)| *on);
    Ok(Gro {
        joins_forwarded_udp: is_active("rx-udp-gro-forwarding"),
        makes_lists: is_active("rx-gro-list").unwrap_or(false),
        interface,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_both_features_and_no_interface_of_a_long_name() {
        let loopback = of("lo".to_owned()).unwrap();
        assert_eq!((loopback.joins_forwarded_udp.is_some(), loopback.interface.as_str()), (true, "lo"));
        assert!(of("no-such-device".to_owned()).is_err());
        assert!(of("a-name-that-is-too-long".to_owned()).is_err());
        assert!(all().unwrap().iter().all(|gro| gro.interface != "lo"));
    }
}
