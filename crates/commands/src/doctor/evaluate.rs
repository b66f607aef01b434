//! Derives findings from the state of a machine.

use std::net::SocketAddr;

use Level::{Note, Ok, Problem, Warning};
use ipnet::IpNet;
use weft_aead::Cipher;
use weft_config::metrics::Address;
use weft_config::{OVERHEAD, endpoint};
use weft_host::Obstacle;
use weft_host::misrouted::Misrouted;
use weft_report::bytes;
use weft_report::finding::{Finding, Level};
use weft_report::rules;

use super::machine::{LinkKind, MachineState, Module, Nft, Resolver, TunDevice, UdpFacts, Way, Why};
use super::target::DoctorTarget;
use crate::misrouted::{before_start, finding};
use crate::running;

/// Returns the findings about a machine for this target: at most one for each check, in the order in which a
/// start needs them, then one for each endpoint, then what does not go where it is meant to go.
pub fn evaluate(facts: &MachineState, target: &DoctorTarget) -> Vec<Finding> {
    let checks = [
        tun_device,
        permission,
        low_port,
        tun_offload,
        udp_buffers,
        udp_offload,
        kernel,
        interface,
        port,
        metrics,
        module,
        forwarding,
        udp_gro_forwarding,
        reverse_path,
        ipv6,
        nft,
        resolver,
        confinement,
        cipher,
        clock,
    ];
    let mut findings: Vec<Finding> = checks.iter().filter_map(|check| check(facts, target)).collect();
    findings.extend(facts.obstacles.iter().map(obstacle));
    findings.extend(facts.ways.iter().map(|way| route(way, target)));
    findings.extend(facts.misrouted.iter().map(|misrouted| match &target.config {
        Some(config) if !facts.is_running => before_start(misrouted, config),
        _ => finding(misrouted),
    }));
    findings
}

fn tun_device(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let found = |level, says: &str| Finding::new("tun_device", level, says);
    Some(match facts.tun_device.as_ref()? {
        TunDevice::Usable => found(Ok, "/dev/net/tun can be opened"),
        TunDevice::Missing => found(Problem, "/dev/net/tun is missing").advise(
            "modprobe tun; in a container: --device /dev/net/tun, or mkdir -p /dev/net && mknod /dev/net/tun c 10 200",
        ),
        TunDevice::Other => found(Problem, "/dev/net/tun is not the TUN driver, but a file or another device")
            .advise("remove it, and make it (mknod /dev/net/tun c 10 200)"),
        TunDevice::Forbidden => found(Problem, "not allowed to open /dev/net/tun")
            .advise("run as root, or chmod 0666 /dev/net/tun; in a container: --device /dev/net/tun"),
        TunDevice::Failed(reason) => found(Problem, &format!("/dev/net/tun cannot be opened: {reason}"))
            .advise("see that the kernel has CONFIG_TUN (modprobe tun)"),
    })
}

fn permission(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    Some(if facts.net_admin? {
        Finding::new("net_admin", Ok, "CAP_NET_ADMIN is present: interfaces and routes can be created")
    } else {
        Finding::new(
            "net_admin",
            Problem,
            "CAP_NET_ADMIN is missing: no interface and no route can be created",
        )
        .advise("run as root, or as a service (systemd/weft@.service); in a container: --cap-add NET_ADMIN")
    })
}

fn low_port(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    let port = target.listen_port;
    let is_low = port != 0 && port < facts.unprivileged_ports_from?;
    (is_low && !facts.net_bind_service?).then(|| {
        Finding::new("low_port", Problem, format!("UDP port {port} needs CAP_NET_BIND_SERVICE"))
            .advise("run as root, or choose a ListenPort from 1024 on")
    })
}

fn tun_offload(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let found = |level, says: &str| Finding::new("tun_offload", level, says);
    Some(match facts.tun_offload.as_ref()? {
        Result::Ok(offload) if offload.tcp && offload.udp => {
            found(Ok, "a TUN takes super-packets of TCP (TSO) and UDP (USO)")
        }
        Result::Ok(offload) if offload.tcp => {
            found(Note, "a TUN takes super-packets of TCP (TSO), not of UDP (USO)")
                .advise("Linux 6.2 or newer has USO: UDP through the tunnel is faster with it")
        }
        Result::Ok(_) => found(Warning, "a TUN takes no super-packets: every packet costs a system call")
            .advise("use a kernel with TSO in its TUN driver; find out which sandbox or emulation this is"),
        Err(reason) => {
            found(Note, &format!("whether a TUN takes super-packets could not be tried: {reason}"))
                .advise("run as root")
        }
    })
}

fn udp_buffers(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let features = match facts.udp.as_ref()? {
        UdpFacts::Features(features) => features,
        UdpFacts::Failed(reason) => {
            return Some(
                Finding::new("udp_socket", Problem, format!("no UDP socket can be opened: {reason}"))
                    .advise("see what sandbox or security module forbids it"),
            );
        }
    };
    let (receive, send) = (features.receive_buffer_bytes, features.send_buffer_bytes);
    let (wanted_receive, wanted_send) =
        (features.wanted_receive_buffer_bytes, features.wanted_send_buffer_bytes);
    let level = rules::buffer_level(receive, wanted_receive)?.max(rules::buffer_level(send, wanted_send)?);
    if level == Ok {
        let says = format!("UDP buffers have {}", bytes(receive.min(send)));
        return Some(Finding::new("udp_buffers", level, says));
    }
    let says = format!(
        "UDP buffers get {} in and {} out, not {} and {}: bursts get lost",
        bytes(receive),
        bytes(send),
        bytes(wanted_receive),
        bytes(wanted_send)
    );
    Some(Finding::new("udp_buffers", level, says).advise(format!(
        "sysctl -w net.core.rmem_max={wanted_receive} net.core.wmem_max={wanted_send}; with CAP_NET_ADMIN weft needs \
         neither"
    )))
}

fn udp_offload(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let UdpFacts::Features(features) = facts.udp.as_ref()? else { return None };
    let found = |level, says: &str| Finding::new("udp_offload", level, says);
    Some(match (features.gso, features.gro) {
        (true, true) => found(Ok, "UDP is sent and received in batches (GSO, GRO)"),
        (true, false) => {
            found(Note, "UDP is received one by one (no GRO): slower").advise("use Linux 5.12 or newer")
        }
        (false, _) => {
            found(Warning, "UDP is sent one by one (no GSO): much slower").advise("use Linux 4.18 or newer")
        }
    })
}

fn kernel(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let kernel = facts.kernel.as_ref()?;
    let release = &kernel.release;
    Some(if kernel.mangles_equal_segments {
        Finding::new(
            "kernel",
            Warning,
            format!("Linux {release} damages some UDP batches; weft sends those one by one, which is slower"),
        )
        .advise("update to Linux 7.1.5 or newer")
    } else {
        Finding::new("kernel", Ok, format!("Linux {release} has no bug that weft has to avoid"))
    })
}

fn interface(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    let name = target.interface.as_ref()?;
    let found = |level, says: String| Finding::new("interface", level, says);
    if let Some(left) = &facts.left_behind {
        let advice = format!("{}; so does the next start", running::take_back(name));
        return Some(found(Warning, left.clone()).advise(advice));
    }
    let Some(link) = &facts.existing_link else {
        return Some(found(Ok, format!("the name {name} is free")));
    };
    if facts.is_running && !link.is_up {
        let says = format!("{name} is running under weft, and was set down: nothing goes through the tunnel");
        return Some(found(Problem, says).advise(format!("ip link set {name} up")));
    }
    if facts.is_running {
        return Some(
            found(Ok, format!("{name} is running under weft")).advise(format!("weft status {name}")),
        );
    }
    Some(match link.kind {
        LinkKind::KernelWireGuard => {
            found(Problem, format!("{name} exists already, by the kernel's WireGuard"))
                .advise(format!("wg-quick down {name}, or ip link del {name}"))
        }
        LinkKind::Tun => found(Problem, format!("{name} exists already, as a TUN device of another program"))
            .advise(format!("end that program (ip -d link show {name}), or choose another name")),
        LinkKind::Other => {
            found(Problem, format!("{name} exists already, and is no tunnel")).advise("choose another name")
        }
    })
}

fn port(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    let port = target.listen_port;
    if port == 0 || facts.is_running {
        return None;
    }
    Some(if facts.port_in_use? {
        Finding::new("port", Problem, format!("UDP port {port} is in use by another program"))
            .advise(format!("ss -ulpn sport = :{port}; or choose another ListenPort"))
    } else {
        Finding::new("port", Ok, format!("UDP port {port} is free"))
    })
}

fn metrics(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    let address = target.metrics?;
    if facts.metrics_in_use != Some(true) || facts.is_running {
        let addresses = target.config.as_ref().map_or(&[][..], |config| &config.interface.addresses);
        let elsewhere = || facts.metrics_elsewhere.then(|| elsewhere(address, addresses)).flatten();
        let warning = target.config.as_ref().and_then(|config| config.interface.host.metrics.warning());
        return warning.map(|warning| Finding::new("metrics", Warning, warning)).or_else(elsewhere);
    }
    let says = format!("another program listens at {address}, where metrics are to be served");
    let advice = format!("ss -ltnp sport = :{}; or choose another port for Metrics", address.port());
    Some(Finding::new("metrics", Problem, says).advise(advice))
}

/// Warns of metrics at an address that neither this machine nor the interface, with these addresses, has.
pub fn metrics_elsewhere(address: &Address, own: &[IpNet]) -> Option<Finding> {
    let Address::Tcp(address) = address else { return None };
    (!weft_host::has_address(address.ip())).then(|| elsewhere(*address, own)).flatten()
}

fn elsewhere(address: SocketAddr, own: &[IpNet]) -> Option<Finding> {
    let says = format!("this machine has no address {}: metrics are not reached there", address.ip());
    let advice =
        "see `ip address`, and give one of those for Metrics; they are served once the address is there";
    let is_own = own.iter().any(|net| net.addr() == address.ip());
    (!is_own).then(|| Finding::new("metrics", Warning, says).advise(advice))
}

fn obstacle(obstacle: &Obstacle) -> Finding {
    match obstacle {
        Obstacle::Route { error } => Finding::new("route", Problem, error.clone()),
        Obstacle::Scope { endpoint, interface } => Finding::new(
            "scope",
            Problem,
            format!("{endpoint} is on {interface}, and there is no interface {interface}"),
        )
        .advise("write the name of an interface of this machine behind the %, see `ip link`"),
    }
}

fn module(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    Some(match facts.wireguard_module? {
        Module::Absent => Finding::new(
            "wireguard_module",
            Ok,
            "the kernel has no WireGuard: wg-quick uses WG_QUICK_USERSPACE_IMPLEMENTATION=weft",
        ),
        present => {
            let how = if present == Module::Loaded { "has" } else { "can load" };
            Finding::new(
                "wireguard_module",
                Note,
                format!("the kernel {how} WireGuard, which wg-quick prefers to weft"),
            )
            .advise(
                "use `weft up`, or keep the module away: echo blacklist wireguard >/etc/modprobe.d/weft.conf",
            )
        }
    })
}

fn forwarding(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    // Another finding says it of the families that the file needs.
    if facts.misrouted.iter().any(|found| matches!(found, Misrouted::NotForwarded { .. })) {
        return None;
    }
    let (v4, v6) = (facts.forwards_v4?, facts.forwards_v6.unwrap_or(false));
    Some(match (v4 || v6, target.is_hub) {
        (true, _) => Finding::new("forwarding", Ok, format!("packets are forwarded: {}", families(v4, v6))),
        (false, true) => Finding::new(
            "forwarding",
            Warning,
            "the peers look like clients of this machine, and it does not forward what they send to others",
        )
        .advise("sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"),
        (false, false) => Finding::new(
            "forwarding",
            Note,
            "packets are not forwarded: correct, unless peers should reach others through this machine",
        ),
    })
}

/// Datagrams that were joined before they are forwarded reach the TUN as super-packets.
fn udp_gro_forwarding(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    if !(facts.forwards_v4? || facts.forwards_v6.unwrap_or(false)) {
        return None;
    }
    let found = |level, says: String| Finding::new("udp_gro_forwarding", level, says);
    let interfaces = facts.gro.as_ref()?;
    let known = interfaces.iter().filter(|gro| gro.joins_forwarded_udp.is_some());
    let (joining, single): (Vec<_>, Vec<_>) =
        known.partition(|gro| gro.joins_forwarded_udp == Some(true) && !gro.makes_lists);
    if single.is_empty() {
        return (!joining.is_empty())
            .then(|| found(Ok, "UDP that is forwarded is joined first (rx-udp-gro-forwarding)".to_owned()));
    }
    let names: Vec<&str> = single.iter().map(|gro| gro.interface.as_str()).collect();
    let commands =
        names.iter().map(|name| format!("ethtool -K {name} rx-udp-gro-forwarding on rx-gro-list off"));
    Some(
        found(Note, format!("UDP that is forwarded from {} reaches weft packet by packet", names.join(", ")))
            .advise(commands.collect::<Vec<_>>().join("; ")),
    )
}

fn families(v4: bool, v6: bool) -> &'static str {
    match (v4, v6) {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4",
        (false, _) => "IPv6",
    }
}

fn reverse_path(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    if !target.full_tunnel_v4 {
        return None;
    }
    let found = |level, says: &str| Finding::new("reverse_path", level, says);
    Some(match (facts.src_valid_mark?, facts.strict_rp_filter.unwrap_or(true), facts.sysctls_writable?) {
        (true, ..) => found(Ok, "net.ipv4.conf.all.src_valid_mark is 1, as a full tunnel needs it"),
        (false, _, true) => found(Ok, "net.ipv4.conf.all.src_valid_mark is 0, and can be set when it is needed"),
        (false, false, false) => {
            found(Ok, "net.ipv4.conf.all.src_valid_mark is 0, and sources are not checked strictly")
        }
        (false, true, false) => found(
            Problem,
            "net.ipv4.conf.all.src_valid_mark is 0 and cannot be set: strict reverse-path filtering will drop what \
             comes through a full tunnel",
        )
        .advise("in a container: --sysctl net.ipv4.conf.all.src_valid_mark=1"),
    })
}

fn ipv6(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    if !target.ipv6 || facts.ipv6_off_by.is_empty() {
        return None;
    }
    let off_by = facts.ipv6_off_by.join(" and ");
    let settings: Vec<String> = facts.ipv6_off_by.iter().map(|name| format!("{name}=0")).collect();
    Some(
        Finding::new(
            "ipv6",
            Problem,
            format!("IPv6 is switched off by {off_by}, and the configuration has IPv6"),
        )
        .advise(format!(
            "sysctl -w {}; or remove the IPv6 addresses from Address and AllowedIPs",
            settings.join(" ")
        )),
    )
}

fn nft(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    let (is, advice) = match facts.nft.as_ref()? {
        Nft::Works => return Some(Finding::new("nft", Ok, "nft is installed, and sets the rules")),
        Nft::Missing => ("nft is missing".to_owned(), "install nftables (apt-get install nftables)"),
        Nft::Fails(reason) => {
            (format!("nft does not work ({reason})"), "see what `nft --version` and `nft list tables` say")
        }
    };
    let is_full = target.full_tunnel_v4 || target.full_tunnel_v6;
    Some(match target.needs_nft() {
        true if target.kill_switch => {
            Finding::new("nft", Problem, format!("{is}, and the kill switch needs it")).advise(advice)
        }
        // The start warns in these words.
        true => {
            let lacks = weft_host::without_rules(is_full, target.mss_clamp);
            Finding::new("nft", Warning, format!("{is}; {lacks}")).advise(advice)
        }
        false => Finding::new(
            "nft",
            Note,
            format!("{is}: a full tunnel, the kill switch and the MSS clamp would need it"),
        )
        .advise(advice),
    })
}

fn resolver(facts: &MachineState, target: &DoctorTarget) -> Option<Finding> {
    let found = |level, says: &str| Finding::new("resolver", level, says);
    Some(match facts.resolver.as_ref()? {
        Resolver::Resolved => found(Ok, "systemd-resolved manages the name servers"),
        Resolver::Resolvconf => found(Ok, "resolvconf manages the name servers"),
        Resolver::File { is_writable: true } => {
            found(Ok, "/etc/resolv.conf is changed, and restored at the end")
        }
        Resolver::File { is_writable: false } if target.dns => {
            found(Problem, "DNS is configured, and /etc/resolv.conf cannot be written")
                .advise("run as root, mount it writable, or leave DNS out of the configuration")
        }
        Resolver::File { is_writable: false } => {
            found(Note, "/etc/resolv.conf cannot be written: DNS could not be configured")
        }
    })
}

fn confinement(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let found = |level, says: &str| Finding::new("confinement", level, says);
    let support = facts.confinement?;
    Some(match (support.system_calls, support.files) {
        (true, true) => found(Ok, "threads can be restricted to the system calls and files that they need"),
        (true, false) => found(Note, "the kernel has no landlock: look-ups of names may write to files"),
        (false, _) => {
            found(Note, "system calls cannot be filtered here: a fault in weft could use all of the kernel")
                .advise("a kernel with CONFIG_SECCOMP_FILTER on x86-64, arm64 or riscv64")
        }
    })
}

fn cipher(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    let found = |level, says: &str| Finding::new("cipher", level, says);
    let choice = match facts.cipher.as_ref()? {
        Result::Ok(choice) => choice,
        Err(error) => return Some(found(Problem, error).advise("correct WEFT_CIPHER or unset it")),
    };
    let name = choice.cipher.name();
    Some(match (facts.cipher_in_use.as_deref(), &choice.why) {
        (Some(used), _) if used != name => found(
            Note,
            &format!("the interface encrypts with {used}, and a start from here would choose {name}"),
        )
        .advise("see WEFT_CIPHER in the environment of weft, and its log for a self-test that failed; restart weft"),
        (_, Why::Fallback(reason)) => found(
            Warning,
            &format!("{name} encrypts, which is slower: the processor reports AVX-512, and {reason}"),
        )
        .advise("have the hypervisor report the real processor; WEFT_CIPHER=aws-lc skips the self-test"),
        (_, Why::Named) => {
            found(Note, &format!("{name} encrypts, because WEFT_CIPHER says so"))
                .advise("unset WEFT_CIPHER for the fastest")
        }
        (_, Why::Fastest) if choice.cipher == Cipher::Avx512 => {
            found(Ok, &format!("AVX-512 with IFMA encrypts ({name}): it passes its self-test"))
        }
        (_, Why::Fastest) => found(Ok, &format!("{name} encrypts: there is no AVX-512 with IFMA")),
    })
}

fn clock(facts: &MachineState, _: &DoctorTarget) -> Option<Finding> {
    if let Some(wrong) = rules::wrong_clock("clock", facts.clock.unix_ms) {
        return Some(wrong);
    }
    Some(if facts.clock.is_synchronised? {
        Finding::new("clock", Ok, "the clock is synchronised")
    } else {
        Finding::new(
            "clock",
            Warning,
            "the clock is not synchronised: if it jumps back, peers reject handshakes until it catches up",
        )
        .advise("timedatectl set-ntp true")
    })
}

fn route(way: &Way, target: &DoctorTarget) -> Finding {
    let found = |level, says: String| Finding::new("route", level, says).about(way.endpoint.clone());
    let address = match &way.address {
        Result::Ok(address) => address,
        Err(reason) => {
            return found(Warning, format!("the name has no address now: {reason}"))
                .advise("see that name servers can be reached without the tunnel");
        }
    };
    let request = route_request(address);
    let address = endpoint::text(address);
    let mtu = match &way.mtu {
        None => return found(Ok, format!("is at {address}")),
        Some(Err(reason)) => {
            return found(Problem, format!("there is no route to {address}: {reason}")).advise(request);
        }
        Some(Result::Ok(mtu)) => *mtu,
    };
    let room = mtu.saturating_sub(OVERHEAD.into());
    match target.mtu {
        Some(wished) if u32::from(wished) > room => found(
            Warning,
            format!(
                "the route to {address} carries {mtu} bytes, and MTU = {wished} needs {}",
                wished + OVERHEAD
            ),
        )
        .advise(format!("set MTU = {room}, or leave it out: weft then derives it from the path")),
        None if way.is_here => found(
            Warning,
            format!(
                "{address} is on this machine: the path from there on is not known, and the MTU becomes that of the \
                 uplinks, {room}"
            ),
        )
        .advise(
            "set MTU to what the path of the relay carries, less 80 and what the relay adds to a packet, such as \
             MTU = 1280",
        ),
        _ if room < u32::from(weft_config::MIN_MTU_IPV6) => found(
            Note,
            format!(
                "the route to {address} carries only {mtu} bytes: with IPv6 in the tunnel, packets are sent in pieces"
            ),
        ),
        _ => found(Ok, format!("the route to {address} carries {mtu} bytes")),
    }
}

/// Returns the command that shows the route to an address.
fn route_request(address: &SocketAddr) -> String {
    let of_link = endpoint::link(address).map(|name| format!(" oif {name}")).unwrap_or_default();
    format!("ip route get {}{of_link}", address.ip())
}

#[cfg(test)]
#[path = "evaluate/tests.rs"]
mod tests;
