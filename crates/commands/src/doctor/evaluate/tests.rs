use weft_confine::Support;
use weft_tun::TunOffload;
use weft_udp::{SEND_BUFFER_BYTES, UdpFeatures};

use super::*;
use crate::doctor::machine::{Gro, Nft};
use crate::doctor::{CipherChoice, Clock, Kernel, Link};

/// Returns a machine without problems.
fn well() -> MachineState {
    MachineState {
        is_running: false,
        tun_device: Some(TunDevice::Usable),
        net_admin: Some(true),
        net_bind_service: Some(true),
        unprivileged_ports_from: Some(1024),
        udp: Some(UdpFacts::Features(UdpFeatures {
            gso: true,
            gro: true,
            steered: true,
            receive_buffer_bytes: SEND_BUFFER_BYTES,
            send_buffer_bytes: SEND_BUFFER_BYTES,
            wanted_receive_buffer_bytes: SEND_BUFFER_BYTES,
            wanted_send_buffer_bytes: SEND_BUFFER_BYTES,
        })),
        tun_offload: Some(Result::Ok(TunOffload { tcp: true, udp: true })),
        kernel: Some(Kernel {
            release: "6.12.1".to_owned(),
            mangles_equal_segments: false,
            reports_gro_stride: true,
        }),
        gro: Some(vec![gro("eth0", Some(true), false)]),
        forwards_v4: Some(true),
        forwards_v6: Some(true),
        src_valid_mark: Some(true),
        strict_rp_filter: Some(false),
        sysctls_writable: Some(true),
        resolver: Some(Resolver::Resolved),
        existing_link: None,
        left_behind: None,
        port_in_use: Some(false),
        metrics_in_use: Some(false),
        metrics_elsewhere: false,
        obstacles: Vec::new(),
        wireguard_module: Some(Module::Absent),
        nft: Some(Nft::Works),
        confinement: Some(Support { system_calls: true, files: true }),
        cipher: Some(chosen(Cipher::Avx512, Why::Fastest)),
        cipher_in_use: None,
        clock: Clock { is_synchronised: Some(true), unix_ms: 1_800_000_000_000 },
        ipv6_off_by: Vec::new(),
        misrouted: Vec::new(),
        ways: vec![way(Result::Ok("192.0.2.1:51820".parse().unwrap()), Some(Result::Ok(1500)))],
    }
}

#[test]
fn metrics_that_are_not_reached_or_reached_by_all_are_warned_of() {
    let found = |address: &str, metrics_elsewhere: bool| {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\nAddress = 10.9.0.1/24\n\
             # weft: Metrics = {address}:9586\n"
        );
        let parsed = weft_config::parse(&text, std::path::Path::new("wg0.conf"), "wg0".parse().unwrap());
        let target = DoctorTarget::of(&parsed.unwrap().config);
        let findings = evaluate(&MachineState { metrics_elsewhere, ..well() }, &target);
        findings.into_iter().find(|finding| finding.check == "metrics").map(|finding| finding.says)
    };
    assert_eq!(found("127.0.0.1", false), None);
    // That of the interface comes with it.
    assert_eq!(found("10.9.0.1", true), None);
    assert!(found("192.0.2.7", true).unwrap().starts_with("this machine has no address 192.0.2.7"));
    assert!(found("0.0.0.0", false).unwrap().contains("every client that reaches this machine"));
}

fn gro(interface: &str, joins_forwarded_udp: Option<bool>, makes_lists: bool) -> Gro {
    Gro { interface: interface.to_owned(), joins_forwarded_udp, makes_lists }
}

fn way(address: Result<std::net::SocketAddr, String>, mtu: Option<Result<u32, String>>) -> Way {
    Way { endpoint: "vpn.example:51820".to_owned(), address, is_here: false, mtu }
}

/// Returns the target of a client that sends everything through the tunnel.
fn full_tunnel() -> DoctorTarget {
    DoctorTarget {
        interface: Some("wg0".parse().unwrap()),
        listen_port: 51820,
        full_tunnel_v4: true,
        full_tunnel_v6: true,
        dns: true,
        ..DoctorTarget::default()
    }
}

/// Returns the only finding that is not `ok` after `change`, and compares its check and level.
#[track_caller]
fn only(change: impl FnOnce(&mut MachineState, &mut DoctorTarget), check: &str, level: Level) -> Finding {
    let (mut facts, mut target) = (well(), full_tunnel());
    change(&mut facts, &mut target);
    let mut findings = evaluate(&facts, &target);
    findings.retain(|finding| finding.level != Ok);
    let [finding] = &findings[..] else { panic!("{check}: {findings:#?}") };
    assert_eq!((finding.check.as_str(), finding.level), (check, level), "{finding:?}");
    finding.clone()
}

#[track_caller]
fn advice(finding: &Finding, part: &str) {
    let advice = finding.advice.as_deref().unwrap_or_default();
    assert!(advice.contains(part), "{part:?} in {finding:?}");
}

#[test]
fn a_machine_that_is_well_passes_every_check() {
    let findings = evaluate(&well(), &full_tunnel());
    assert!(findings.iter().all(|finding| finding.level == Ok), "{findings:#?}");
    let checks: Vec<_> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(
        checks,
        [
            "tun_device",
            "net_admin",
            "tun_offload",
            "udp_buffers",
            "udp_offload",
            "kernel",
            "interface",
            "port",
            "wireguard_module",
            "forwarding",
            "udp_gro_forwarding",
            "reverse_path",
            "nft",
            "resolver",
            "confinement",
            "cipher",
            "clock",
            "route"
        ]
    );
}

#[test]
fn a_gateway_is_told_which_interfaces_do_not_join_the_udp_that_they_forward() {
    let finding = only(
        |facts, _| {
            let list = [
                gro("eth0", Some(false), false),
                gro("eth1", Some(true), true),
                gro("eth2", Some(true), false),
                gro("eth3", None, false),
            ];
            facts.gro = Some(list.to_vec());
        },
        "udp_gro_forwarding",
        Note,
    );
    assert!(finding.says.contains("from eth0, eth1 reaches"), "{finding:?}");
    advice(&finding, "ethtool -K eth0 rx-udp-gro-forwarding on rx-gro-list off; ethtool -K eth1");
    let mut facts = well();
    (facts.forwards_v4, facts.forwards_v6) = (Some(false), Some(false));
    facts.gro = Some(vec![gro("eth0", Some(false), false)]);
    let findings = evaluate(&facts, &full_tunnel());
    assert!(findings.iter().all(|finding| finding.check != "udp_gro_forwarding"), "{findings:#?}");
}

#[test]
fn what_cannot_be_seen_is_not_judged() {
    let facts = MachineState { clock: well().clock, ..MachineState::default() };
    let findings = evaluate(&facts, &full_tunnel());
    assert!(findings.iter().all(|finding| finding.level == Ok), "{findings:#?}");
}

#[test]
fn a_tun_driver_that_is_missing_or_forbidden_is_a_problem() {
    let missing = only(|facts, _| facts.tun_device = Some(TunDevice::Missing), "tun_device", Problem);
    advice(&missing, "modprobe tun");
    let forbidden = only(|facts, _| facts.tun_device = Some(TunDevice::Forbidden), "tun_device", Problem);
    advice(&forbidden, "chmod");
    let other = only(|facts, _| facts.tun_device = Some(TunDevice::Other), "tun_device", Problem);
    advice(&other, "mknod");
    let failed = |facts: &mut MachineState, _: &mut DoctorTarget| {
        facts.tun_device = Some(TunDevice::Failed("EIO".to_owned()));
    };
    assert!(only(failed, "tun_device", Problem).says.contains("EIO"));
}

#[test]
fn permissions_are_asked_for_by_name() {
    advice(&only(|facts, _| facts.net_admin = Some(false), "net_admin", Problem), "--cap-add NET_ADMIN");
    let low = |facts: &mut MachineState, target: &mut DoctorTarget| {
        facts.net_bind_service = Some(false);
        target.listen_port = 53;
    };
    assert!(only(low, "low_port", Problem).says.contains("CAP_NET_BIND_SERVICE"));
}

#[test]
fn a_port_is_low_only_below_what_the_system_says() {
    let mut facts =
        MachineState { net_bind_service: Some(false), unprivileged_ports_from: Some(0), ..well() };
    let target = DoctorTarget { listen_port: 53, ..full_tunnel() };
    assert!(evaluate(&facts, &target).iter().all(|finding| finding.check != "low_port"));
    facts.unprivileged_ports_from = Some(54);
    assert!(evaluate(&facts, &target).iter().any(|finding| finding.check == "low_port"));
}

#[test]
fn small_buffers_and_missing_offloads_are_named_with_what_brings_them() {
    let buffers = |receive| {
        move |facts: &mut MachineState, _: &mut DoctorTarget| {
            facts.udp = Some(UdpFacts::Features(UdpFeatures {
                gso: true,
                gro: true,
                steered: true,
                receive_buffer_bytes: receive,
                send_buffer_bytes: SEND_BUFFER_BYTES,
                wanted_receive_buffer_bytes: SEND_BUFFER_BYTES,
                wanted_send_buffer_bytes: SEND_BUFFER_BYTES,
            }));
        }
    };
    advice(&only(buffers(212_992), "udp_buffers", Warning), "net.core.rmem_max=7340032");
    only(buffers(4 << 20), "udp_buffers", Note);
    let offload = |gso, gro| {
        move |facts: &mut MachineState, _: &mut DoctorTarget| {
            facts.udp = Some(UdpFacts::Features(UdpFeatures { gso, gro, ..UdpFeatures::default() }));
        }
    };
    advice(&only(offload(false, true), "udp_offload", Warning), "4.18");
    advice(&only(offload(true, false), "udp_offload", Note), "5.12");
    only(|facts, _| facts.udp = Some(UdpFacts::Failed("EPERM".to_owned())), "udp_socket", Problem);
    let tun =
        |offload| move |facts: &mut MachineState, _: &mut DoctorTarget| facts.tun_offload = Some(offload);
    advice(&only(tun(Result::Ok(TunOffload { tcp: true, udp: false })), "tun_offload", Note), "6.2");
    only(tun(Result::Ok(TunOffload::default())), "tun_offload", Warning);
    only(tun(Err("no".to_owned())), "tun_offload", Note);
}

#[test]
fn a_kernel_with_a_known_bug_is_named_with_the_release_that_mends_it() {
    let finding =
        only(|facts, _| facts.kernel.as_mut().unwrap().mangles_equal_segments = true, "kernel", Warning);
    advice(&finding, "7.1.5");
    assert!(finding.says.contains("6.12.1"));
}

#[test]
fn a_name_or_port_that_is_taken_is_a_problem_unless_weft_has_it() {
    for (kind, part) in [
        (LinkKind::KernelWireGuard, "wg-quick down wg0"),
        (LinkKind::Tun, "ip -d link show wg0"),
        (LinkKind::Other, "another name"),
    ] {
        let taken = |facts: &mut MachineState, _: &mut DoctorTarget| {
            facts.existing_link = Some(Link { name: "wg0".to_owned(), is_up: true, kind });
        };
        advice(&only(taken, "interface", Problem), part);
    }
    advice(&only(|facts, _| facts.port_in_use = Some(true), "port", Problem), "ss -ulpn");
    let mut facts = well();
    facts.existing_link = Some(Link { name: "wg0".to_owned(), is_up: true, kind: LinkKind::Tun });
    (facts.port_in_use, facts.is_running) = (Some(true), true);
    assert!(evaluate(&facts, &full_tunnel()).iter().all(|finding| finding.level == Ok));
}

#[test]
fn the_kernels_own_wireguard_is_a_note() {
    for module in [Module::Loaded, Module::Loadable] {
        let finding = only(|facts, _| facts.wireguard_module = Some(module), "wireguard_module", Note);
        advice(&finding, "weft up");
    }
}

#[test]
fn forwarding_matters_to_a_hub() {
    let off = |facts: &mut MachineState| (facts.forwards_v4, facts.forwards_v6) = (Some(false), Some(false));
    assert_eq!(only(|facts, _| off(facts), "forwarding", Note).advice, None, "a client needs none");
    let hub = |facts: &mut MachineState, target: &mut DoctorTarget| {
        off(facts);
        target.is_hub = true;
    };
    advice(&only(hub, "forwarding", Warning), "net.ipv4.ip_forward=1");
}

#[test]
fn a_full_tunnel_needs_src_valid_mark_where_sources_are_checked_strictly() {
    let read_only = |facts: &mut MachineState, _: &mut DoctorTarget| {
        (facts.src_valid_mark, facts.strict_rp_filter, facts.sysctls_writable) =
            (Some(false), Some(true), Some(false));
    };
    advice(&only(read_only, "reverse_path", Problem), "--sysctl net.ipv4.conf.all.src_valid_mark=1");
    for (strict, writable) in [(false, false), (true, true)] {
        let mut facts = well();
        (facts.src_valid_mark, facts.strict_rp_filter, facts.sysctls_writable) =
            (Some(false), Some(strict), Some(writable));
        assert!(evaluate(&facts, &full_tunnel()).iter().all(|finding| finding.level == Ok));
    }
}

#[test]
fn a_kernel_that_cannot_restrict_threads_is_named() {
    let none = only(|facts, _| facts.confinement = Some(Support::default()), "confinement", Note);
    advice(&none, "CONFIG_SECCOMP_FILTER");
    let no_files = Support { system_calls: true, files: false };
    let finding = only(|facts, _| facts.confinement = Some(no_files), "confinement", Note);
    assert!(finding.says.contains("landlock"), "{finding:?}");
}

#[test]
fn nft_is_needed_by_full_tunnels_the_kill_switch_and_the_mss_clamp() {
    advice(&only(|facts, _| facts.nft = Some(Nft::Missing), "nft", Warning), "nftables");
    let unneeded = |facts: &mut MachineState, target: &mut DoctorTarget| {
        facts.nft = Some(Nft::Missing);
        *target = DoctorTarget::default();
    };
    only(unneeded, "nft", Note);
    let kill_switch = |facts: &mut MachineState, target: &mut DoctorTarget| {
        facts.nft = Some(Nft::Missing);
        *target = DoctorTarget { kill_switch: true, ..DoctorTarget::default() };
    };
    assert!(only(kill_switch, "nft", Problem).says.contains("kill switch"));
    let mss_clamp = |facts: &mut MachineState, target: &mut DoctorTarget| {
        facts.nft = Some(Nft::Missing);
        *target = DoctorTarget { mss_clamp: true, ..DoctorTarget::default() };
    };
    assert!(only(mss_clamp, "nft", Warning).says.contains("MssClamp"));
    let failing = |facts: &mut MachineState| facts.nft = Some(Nft::Fails("no part of it".to_owned()));
    assert!(only(|facts, _| failing(facts), "nft", Warning).says.contains("no part of it"));
}

#[test]
fn a_resolv_conf_that_cannot_be_written_matters_when_dns_is_configured() {
    let read_only = |facts: &mut MachineState| facts.resolver = Some(Resolver::File { is_writable: false });
    only(|facts, _| read_only(facts), "resolver", Problem);
    let without = |facts: &mut MachineState, target: &mut DoctorTarget| {
        read_only(facts);
        target.dns = false;
    };
    only(without, "resolver", Note);
}

#[test]
fn a_clock_that_is_wrong_or_alone_is_named() {
    advice(&only(|facts, _| facts.clock.unix_ms = 1000, "clock", Problem), "timedatectl");
    only(|facts, _| facts.clock.is_synchronised = Some(false), "clock", Warning);
}

#[test]
fn the_ways_to_the_endpoints_are_looked_at_one_by_one() {
    let address: std::net::SocketAddr = "192.0.2.1:51820".parse().unwrap();
    let one = |way: Way| move |facts: &mut MachineState, _: &mut DoctorTarget| facts.ways = vec![way];
    let unknown = only(one(way(Err("no such name".to_owned()), None)), "route", Warning);
    assert_eq!(unknown.about.as_deref(), Some("vpn.example:51820"));
    let none = only(one(way(Result::Ok(address), Some(Err("unreachable".to_owned())))), "route", Problem);
    advice(&none, "ip route get 192.0.2.1");
    only(one(way(Result::Ok(address), Some(Result::Ok(1300)))), "route", Note);
    let too_large = |facts: &mut MachineState, target: &mut DoctorTarget| {
        facts.ways = vec![way(Result::Ok(address), Some(Result::Ok(1492)))];
        target.mtu = Some(1420);
    };
    advice(&only(too_large, "route", Warning), "MTU = 1412");
}

#[test]
fn ipv6_that_is_switched_off_is_a_problem_for_a_file_that_has_ipv6() {
    let off = |facts: &mut MachineState, has_ipv6| {
        facts.ipv6_off_by = vec!["net.ipv6.conf.default.disable_ipv6".to_owned()];
        DoctorTarget { ipv6: has_ipv6, ..full_tunnel() }
    };
    let finding = only(|facts, target| *target = off(facts, true), "ipv6", Level::Problem);
    assert!(finding.says.contains("net.ipv6.conf.default.disable_ipv6"), "{finding:?}");
    let advice = finding.advice.unwrap();
    assert!(advice.contains("disable_ipv6=0") && advice.contains("AllowedIPs"), "{advice}");
    let mut facts = well();
    let target = off(&mut facts, false);
    assert!(evaluate(&facts, &target).iter().all(|finding| finding.level == Ok));
}

#[test]
fn an_endpoint_on_this_machine_needs_an_mtu_in_the_file() {
    let is_here = |facts: &mut MachineState| facts.ways[0].is_here = true;
    let finding = only(|facts, _| is_here(facts), "route", Level::Warning);
    assert!(finding.says.contains("is on this machine") && finding.says.contains("1420"), "{finding:?}");
    assert!(finding.advice.unwrap().contains("set MTU"));
    let mut facts = well();
    is_here(&mut facts);
    let target = DoctorTarget { mtu: Some(1280), ..full_tunnel() };
    assert!(evaluate(&facts, &target).iter().all(|finding| finding.level == Ok));
}

#[test]
fn what_goes_past_the_tunnel_is_told_with_its_advice() {
    let past = weft_host::misrouted::Misrouted::FamilyPast {
        family: weft_host::routes::Family::V6,
        via: "eth0".to_owned(),
    };
    let finding = only(|facts, _| facts.misrouted = vec![past], "traffic_past_tunnel", Level::Warning);
    assert!(finding.says.contains("eth0") && finding.advice.unwrap().contains("::/0"), "{}", finding.says);
}

fn chosen(cipher: Cipher, why: Why) -> Result<CipherChoice, String> {
    Result::Ok(CipherChoice { cipher, why })
}

#[test]
fn what_encrypts_is_told_with_the_reason() {
    let illegal = Why::Fallback("an illegal instruction (SIGILL) ended the self-test".to_owned());
    let wrong = "WEFT_CIPHER is \"rot13\", which is no cipher".to_owned();
    for (choice, in_use, level, says) in [
        (chosen(Cipher::Avx512, Why::Fastest), Some("avx512ifma"), Ok, "passes its self-test"),
        (chosen(Cipher::AwsLc, Why::Fastest), Some("aws-lc"), Ok, "aws-lc encrypts: there is no AVX-512"),
        (chosen(Cipher::AwsLc, Why::Fastest), None, Ok, "aws-lc encrypts: there is no AVX-512"),
        (chosen(Cipher::AwsLc, Why::Named), None, Note, "because WEFT_CIPHER says so"),
        (chosen(Cipher::Avx512, Why::Fastest), Some("aws-lc"), Note, "with aws-lc, and a start"),
        (chosen(Cipher::AwsLc, illegal.clone()), Some("avx512ifma"), Note, "with avx512ifma, and a start"),
        (chosen(Cipher::AwsLc, illegal), Some("aws-lc"), Level::Warning, "(SIGILL) ended the self-test"),
        (Err(wrong), Some("aws-lc"), Level::Problem, "rot13"),
    ] {
        let facts = MachineState { cipher: Some(choice), cipher_in_use: in_use.map(str::to_owned), ..well() };
        let findings = evaluate(&facts, &full_tunnel());
        let finding = findings.iter().find(|it| it.check == "cipher").unwrap();
        assert!(finding.level == level && finding.says.contains(says), "{finding:?}");
        if level != Ok {
            advice(finding, "WEFT_CIPHER");
        }
    }
}
