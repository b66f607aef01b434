//! Interfaces that another program runs: who it is, and how to end it.

use std::path::Path;

use weft_config::InterfaceName;
use weft_host::routes::Netlink;
use weft_ipc::holder::{Held, Holder};

/// Returns the interface that wg-quick brings up if wg-quick has started this process.
pub(crate) fn interface_of_wg_quick() -> Option<String> {
    let parent = format!("/proc/{}/cmdline", std::os::unix::process::parent_id());
    let command = std::fs::read_to_string(parent).ok()?;
    let mut words = command.split_terminator('\0');
    words.find(|word| *word == "wg-quick" || word.ends_with("/wg-quick"))?;
    let target = words.next_back()?;
    let name = target.rsplit('/').next().unwrap_or(target);
    Some(if name == target { name } else { name.strip_suffix(".conf").unwrap_or(name) }.to_owned())
}

/// Returns which other WireGuard runs an interface and how to end it; `None` if none does.
pub(crate) fn runs(interface: &InterfaceName) -> Option<String> {
    let wg_quick = format!("`wg-quick down {interface}` ends it if wg-quick brought it up");
    let socket = Path::new(weft_uapi::SOCKET_DIRECTORY).join(format!("{interface}.sock"));
    for held in [Held::Socket(&socket), Held::Device(interface.as_str())] {
        if let Holder::Process { id, program } = Holder::of(held) {
            return Some(format!("{program} (process {id}) runs it; {wg_quick}, else `kill {id}`"));
        }
    }
    // The kernel finds a device by its other names too.
    let has_own_name = Path::new("/proc/sys/net/ipv4/conf").join(interface.as_str()).exists();
    let is_kernels =
        has_own_name && Netlink::open().is_ok_and(|netlink| netlink.is_of_kernel_wireguard(interface));
    is_kernels.then(|| {
        format!("the WireGuard of the kernel runs it; {wg_quick}, else `ip link delete {interface}`")
    })
}
