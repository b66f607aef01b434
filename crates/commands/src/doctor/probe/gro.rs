//! Reads which interfaces join received datagrams before they forward them (ethtool -k), by the SIOCETHTOOL
//! ioctl of netdevice(7).

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::doctor::machine::Gro;

/// From linux/ethtool.h.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// Words of a block of 32 features: available, requested, active, never changed.
const BLOCK: usize = 4;
const ACTIVE: usize = 2;
/// More features than any kernel has.
const MAX_FEATURES: usize = 1024;

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
    let ask = |request: &mut [u32]| ethtool(&socket, &interface, request);

    // The mask of wanted sets takes 64 bits; the answer is the number of features.
    let mut counts = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
    ask(&mut counts)?;
    let count = usize::try_from(counts[4]).unwrap_or(MAX_FEATURES).min(MAX_FEATURES);

    let mut strings = vec![0; 3 + count * ETH_GSTRING_LEN / size_of::<u32>()];
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
    ask(&mut strings)?;
    let names: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();

    let blocks = count.div_ceil(u32::BITS as usize);
    let mut features = vec![0; 2 + blocks * BLOCK];
    features[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
    ask(&mut features)?;

    let is_active = |wanted: &CStr| {
        let number = names
            .chunks_exact(ETH_GSTRING_LEN)
            .position(|name| CStr::from_bytes_until_nul(name) == Ok(wanted))?;
        let word = features.get(2 + number / 32 * BLOCK + ACTIVE)?;
        Some(word >> (number % 32) & 1 == 1)
    };
    Ok(Gro {
        joins_forwarded_udp: is_active(c"rx-udp-gro-forwarding"),
        makes_lists: is_active(c"rx-gro-list").unwrap_or(false),
        interface,
    })
}

/// Makes one request about an interface. The answer replaces the request.
fn ethtool(socket: &OwnedFd, interface: &str, request: &mut [u32]) -> io::Result<()> {
    // SAFETY: a zeroed ifreq is valid.
    let mut parameters: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= parameters.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in parameters.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    parameters.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
    // SAFETY: the ioctl reads an ifreq, which points to a request. The kernel writes no more than the lengths
    // in the request allow, which are those of the slice.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
