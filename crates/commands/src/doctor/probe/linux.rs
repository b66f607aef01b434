//! Observes the machine through /proc, /sys and netlink, and by creating a few sockets and devices.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use weft_host::dns::{Method, System};
use weft_host::firewall::{self, FirewallError, FullTunnel, KillSwitch, Local, OwnPackets, Rules};
use weft_host::misrouted;
use weft_host::routes::{Netlink, RouteError};
use weft_ipc::runtime_dir::runtime_dir;
use weft_lab::Namespace;
use weft_report::StatusReport;
use weft_tun::{TunConfig, TunOffload};
use weft_udp::{Release, Udp as _, UdpConfig, UdpSockets};

use super::super::machine::{
    Kernel, Link, LinkKind, MachineState, Module, Nft, Resolver, TunDevice, UdpFacts,
};
use super::super::target::DoctorTarget;
use super::{gro, name_of};

/// Capability numbers (linux/capability.h).
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_NET_ADMIN: u32 = 12;
/// Directories of programs for root, searched in addition to PATH.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Observes the machine. `running` is the report of the interface, if it is up.
pub(super) fn observe(facts: &mut MachineState, target: &DoctorTarget, running: Option<StatusReport>) {
    facts.tun_device = Some(tun_device());
    facts.net_admin = net_admin();
    facts.net_bind_service = may(CAP_NET_BIND_SERVICE);
    facts.unprivileged_ports_from = Some(
        sysctl("net/ipv4/ip_unprivileged_port_start").and_then(|text| text.parse().ok()).unwrap_or(1024),
    );
    facts.udp = Some(udp(target.fw_mark));
    facts.tun_offload = (facts.tun_device == Some(TunDevice::Usable)).then(tun_offload);
    facts.kernel = kernel();
    facts.gro = gro::all();
    facts.forwards_v4 = is_set("net/ipv4/ip_forward");
    facts.forwards_v6 = is_set("net/ipv6/conf/all/forwarding");
    facts.src_valid_mark = is_set("net/ipv4/conf/all/src_valid_mark");
    facts.strict_rp_filter = strict_rp_filter();
    facts.sysctls_writable = Some(is_writable(Path::new("/proc/sys/net/ipv4/conf/all/src_valid_mark")));
    facts.resolver = Some(resolver());
    facts.wireguard_module = wireguard_module();
    facts.nft = Some(nft(target));
    facts.confinement = Some(weft_confine::support());
    facts.clock.is_synchronised = is_clock_synchronised();
    let mark = running.as_ref().map(|report| report.fw_mark);
    let of_peers: Vec<SocketAddr> = running.iter().flat_map(endpoints_of).collect();
    facts.cipher_in_use = running.map(|report| report.cipher).filter(|cipher| !cipher.is_empty());
    ways(facts, mark.unwrap_or(target.fw_mark));
    if let Some(config) = &target.config {
        let endpoints: Vec<SocketAddr> =
            facts.ways.iter().filter_map(|way| way.address.as_ref().ok().copied()).collect();
        facts.misrouted = match (mark, Netlink::open()) {
            (Some(mark), Ok(netlink)) => {
                let name = &config.interface.name;
                let (index, of_rules) = misrouted::recorded(&runtime_dir(), name).unwrap_or((None, mark));
                let mut found = misrouted::in_force(&netlink, index, config, &of_peers, mark, of_rules);
                found.extend(misrouted::dns_in_force(&runtime_dir(), name));
                found
            }
            _ => {
                let mut found = misrouted::predicted(config, &endpoints);
                found.extend(misrouted::dns_predicted(config));
                found
            }
        };
        facts.misrouted.extend(misrouted::local_resolver(config));
        facts.misrouted.extend(misrouted::not_forwarded(config));
        facts.misrouted.extend(misrouted::not_translated(config, target.is_hub));
    }
}

/// Returns where the peers are now.
fn endpoints_of(report: &StatusReport) -> impl Iterator<Item = SocketAddr> {
    report.peers.iter().filter_map(|peer| peer.endpoint.as_ref()?.parse().ok())
}

/// Observes the TUN driver, the devices of this name, whether they have IPv6, and whether the program is
/// there that sets the rules of a firewall.
pub(super) fn observe_devices(facts: &mut MachineState, target: &DoctorTarget) {
    facts.nft = (target.needs_nft() && !is_installed("nft")).then_some(Nft::Missing);
    // Who starts it may open what this user may not, and what runs does not open it again.
    facts.tun_device = Some(tun_device())
        .filter(|device| !facts.is_running && (*device != TunDevice::Forbidden || geteuid().is_root()));
    facts.existing_link = name_of(target).and_then(link);
    facts.ipv6_off_by = ipv6_off_by(name_of(target).filter(|_| facts.is_running));
}

/// Returns the sysctls that switch IPv6 off for this interface, or for one that is made now.
fn ipv6_off_by(existing: Option<&str>) -> Vec<String> {
    let names = match existing {
        Some(name) => vec![name],
        None => vec!["default", "all"],
    };
    let is_off = |name: &&str| is_set(&format!("net/ipv6/conf/{name}/disable_ipv6")) == Some(true);
    names.into_iter().filter(is_off).map(|name| format!("net.ipv6.conf.{name}.disable_ipv6")).collect()
}

fn tun_device() -> TunDevice {
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(device) if is_tun(&device) => TunDevice::Usable,
        Ok(_) => TunDevice::Other,
        Err(error) => match error.raw_os_error() {
            Some(libc::EISDIR) => TunDevice::Other,
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TunDevice::Missing,
            Some(libc::EACCES | libc::EPERM) => TunDevice::Forbidden,
            _ => TunDevice::Failed(error.to_string()),
        },
    }
}

fn is_tun(device: &fs::File) -> bool {
    // The driver's number (Documentation/networking/tuntap.rst).
    let number = libc::makedev(10, 200);
    device.metadata().is_ok_and(|state| state.file_type().is_char_device() && state.rdev() == number)
}

/// Reports whether this process may configure networks; `None`: not known.
pub(in super::super) fn net_admin() -> Option<bool> {
    may(CAP_NET_ADMIN)
}

/// Reports whether this process has a capability in effect (proc_pid_status(5)).
fn may(capability: u32) -> Option<bool> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(line.trim(), 16).ok()? >> capability & 1 == 1)
}

/// Opens the sockets of weft to find out their features.
fn udp(fwmark: u32) -> UdpFacts {
    let opened = tokio::runtime::Builder::new_current_thread().enable_io().build().map(|runtime| {
        let _context = runtime.enter();
        // The mark needs a capability, which a separate check covers.
        let receive_buffer_bytes = weft_udp::receive_buffer_bytes(weft_host::memory::total_bytes(), 1);
        let plain = UdpConfig { receive_buffer_bytes, ..UdpConfig::default() };
        let marked = UdpSockets::bind(&UdpConfig { fwmark, ..plain });
        marked.or_else(|_| UdpSockets::bind(&plain)).map(|sockets| sockets.features())
    });
    match opened {
        Ok(Ok(features)) => UdpFacts::Features(features),
        Ok(Err(error)) => UdpFacts::Failed(error.to_string()),
        Err(error) => UdpFacts::Failed(error.to_string()),
    }
}

/// Creates a TUN in a separate network namespace to find out its offloads.
fn tun_offload() -> Result<TunOffload, String> {
    let namespace = Namespace::new("doctor").map_err(|error| error.to_string())?;
    namespace.run(|| {
        weft_tun::open(TunConfig::new("weft-doctor"))
            .map(|device| device.offload())
            .map_err(|error| error.to_string())
    })
}

fn kernel() -> Option<Kernel> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let running = Release::running();
    Some(Kernel {
        release: release.trim().to_owned(),
        mangles_equal_segments: running.mangles_equal_segments(),
        reports_gro_stride: running.reports_gro_stride(),
    })
}

fn sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    Some(text.trim().to_owned())
}

fn is_set(name: &str) -> Option<bool> {
    sysctl(name).map(|value| value != "0")
}

/// Reports whether the reverse path check is strict (1). For each interface the kernel uses the larger value
/// of `all` and of the interface, which is initialised from `default` (ip-sysctl); 2 is loose.
fn strict_rp_filter() -> Option<bool> {
    let all = sysctl("net/ipv4/conf/all/rp_filter")?;
    let default = sysctl("net/ipv4/conf/default/rp_filter")?;
    Some(all.max(default) == "1")
}

fn is_writable(path: &Path) -> bool {
    // Opening the file does not change it.
    OpenOptions::new().write(true).open(path).is_ok()
}

fn resolver() -> Resolver {
    match System::default().present_method() {
        Method::Resolved => Resolver::Resolved,
        Method::Resolvconf => Resolver::Resolvconf,
        _ => Resolver::File { is_writable: is_writable(Path::new("/etc/resolv.conf")) },
    }
}

/// Lets nft check the rules that the target needs, or all of them if it needs none. Nothing is changed.
fn nft(target: &DoctorTarget) -> Nft {
    if !is_installed("nft") {
        return Nft::Missing;
    }
    let mark = NonZeroU32::new(target.fw_mark).unwrap_or(NonZeroU32::MIN);
    let (ipv4, ipv6) = (target.full_tunnel_v4 || !target.needs_nft(), target.full_tunnel_v6);
    let local = Local::Allowed { dns: BTreeSet::new() };
    let is_wanted = |wanted: bool| wanted || !target.needs_nft();
    let kill_switch = || KillSwitch { own: OwnPackets::Marked(mark), local };
    let Some(interface) = target.interface.clone().or_else(|| "weft-doctor".parse().ok()) else {
        return Nft::Works;
    };
    let addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let rules = Rules {
        full_tunnel: Some(FullTunnel { mark, addresses, ipv4, ipv6 }),
        kill_switch: is_wanted(target.kill_switch).then(kill_switch),
        mss_clamp: is_wanted(target.mss_clamp),
        ..Rules::none(interface)
    };
    match firewall::check(&rules) {
        // The permission is another finding.
        Ok(()) | Err(FirewallError::Permission { .. }) => Nft::Works,
        Err(FirewallError::Missing { .. }) => Nft::Missing,
        Err(error) => Nft::Fails(error.to_string()),
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|directory| is_executable(&directory.join(program)))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn link(name: &str) -> Option<Link> {
    nix::net::if_::if_nametoindex(name).ok()?;
    // /sys may belong to another network namespace; then the kind is unknown.
    let directory = Path::new("/sys/class/net").join(name);
    let uevent = fs::read_to_string(directory.join("uevent")).unwrap_or_default();
    let kind = if uevent.lines().any(|line| line == "DEVTYPE=wireguard") {
        LinkKind::KernelWireGuard
    } else if directory.join("tun_flags").exists() {
        LinkKind::Tun
    } else {
        LinkKind::Other
    };
    Some(Link { name: name.to_owned(), is_up: is_up(name).unwrap_or(true), kind })
}

/// Reports whether a device is up; `None` if that cannot be determined.
fn is_up(name: &str) -> Option<bool> {
    let netlink = Netlink::open().ok()?;
    let link = netlink.link(&name.parse().ok()?).ok()?;
    Some(netlink.device_state(&link).ok()??.is_up)
}

fn wireguard_module() -> Option<Module> {
    if Path::new("/sys/module/wireguard").exists() {
        return Some(Module::Loaded);
    }
    let release = sysctl("kernel/osrelease")?;
    let directory = Path::new("/lib/modules").join(release);
    let lists = |file: &str| {
        let list = fs::read_to_string(directory.join(file)).unwrap_or_default();
        list.lines().any(|line| is_module(line, "wireguard"))
    };
    Some(if lists("modules.builtin") {
        Module::Loaded
    } else if lists("modules.dep") {
        Module::Loadable
    } else {
        Module::Absent
    })
}

/// Reports whether a line of modules.dep or modules.builtin describes this module, such as
/// `kernel/drivers/net/wireguard.ko.zst: …`.
fn is_module(line: &str, name: &str) -> bool {
    let path = line.split(':').next().unwrap_or_default();
    let file = Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or_default();
    file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".ko"))
}

fn is_clock_synchronised() -> Option<bool> {
    // SAFETY: a zeroed timex is valid, and requests no change.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the timex, which outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    (state >= 0).then_some(timex.status & libc::STA_UNSYNC == 0)
}

fn ways(facts: &mut MachineState, fw_mark: u32) {
    if facts.ways.is_empty() {
        return;
    }
    let netlink = Netlink::open();
    for way in &mut facts.ways {
        let Ok(address) = way.address else { continue };
        let answer = netlink.as_ref().ok().and_then(|netlink| netlink.route_to(address, fw_mark).ok());
        way.is_here = answer.is_some_and(|answer| answer.is_local);
        way.mtu = Some(match &netlink {
            Ok(netlink) => netlink.mtu_towards(address, fw_mark).map_err(|error| match error {
                // The finding adds the request and the advice.
                RouteError::Refused { error, .. } => error.to_string(),
                other => other.to_string(),
            }),
            Err(error) => Err(error.to_string()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_however_it_is_packed() {
        for line in [
            "kernel/drivers/net/wireguard/wireguard.ko.zst: kernel/net/ipv4/udp_tunnel.ko.zst",
            "kernel/drivers/net/wireguard/wireguard.ko:",
            "kernel/drivers/net/wireguard/wireguard.ko",
        ] {
            assert!(is_module(line, "wireguard"), "{line}");
        }
        for line in
            ["", "kernel/x/wireguardish.ko:", "kernel/a.ko: kernel/drivers/net/wireguard/wireguard.ko"]
        {
            assert!(!is_module(line, "wireguard"), "{line}");
        }
    }

    #[test]
    fn a_program_of_every_machine_is_found_and_a_made_up_one_is_not() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
    }
}
