use super::*;
use crate::{
    AlternationReport, DropReport, PacketThreadReport, Rates, Recent, RefusalReport, SendFailureReport,
};

/// A healthy interface, with a peer that completed a handshake a minute ago.
fn well() -> StatusReport {
    let mut report = StatusReport {
        interface: "wg0".to_owned(),
        pid: 1,
        public_key: Some("OWN".to_owned()),
        mtu: 1420,
        uptime_ms: 600_000,
        unix_time_ms: 1_800_000_000_000,
        peers: vec![PeerReport {
            public_key: "PEER".to_owned(),
            endpoint: Some("192.0.2.1:51820".to_owned()),
            has_configured_endpoint: true,
            latest_handshake_ms: Some(60_000),
            tx_bytes: 1000,
            rx_bytes: 1000,
            allowed_ips: vec!["10.0.0.0/24".to_owned(), "fd00::/64".to_owned()],
            ..PeerReport::default()
        }],
        ..StatusReport::default()
    };
    report.tun.tcp_offload = true;
    report.udp.gso = true;
    report.udp.receive_buffer_bytes = 7 << 20;
    report.udp.send_buffer_bytes = 7 << 20;
    report.udp.wanted_receive_buffer_bytes = 7 << 20;
    report.udp.wanted_send_buffer_bytes = 7 << 20;
    report.udp.datagrams_received = 10;
    report
}

fn with(change: impl FnOnce(&mut StatusReport)) -> Vec<Finding> {
    let mut report = well();
    change(&mut report);
    diagnose(&report)
}

fn dropped(report: &mut StatusReport, reason: DropReason, total: u64, recent: u64) {
    let drop = |packets| DropReport { reason: reason.label().to_owned(), packets, ..DropReport::default() };
    report.drops.push(drop(total));
    let recent = if recent > 0 { vec![drop(recent)] } else { Vec::new() };
    report.recent = Some(Recent { window_ms: 500, drops: recent, ..Recent::default() });
}

/// Returns the only finding, after comparing its check and level.
#[track_caller]
fn only(findings: &[Finding], check: &str, level: Level) -> Finding {
    let [finding] = findings else { panic!("not one finding: {findings:#?}") };
    assert_eq!((finding.check.as_str(), finding.level), (check, level), "{finding:?}");
    finding.clone()
}

#[test]
fn nothing_is_said_of_an_interface_that_is_well() {
    assert_eq!(with(|_| {}), []);
}

#[test]
fn a_peer_that_never_answers_is_a_problem_once_it_had_the_time() {
    let never = |report: &mut StatusReport| {
        let peer = &mut report.peers[0];
        (peer.latest_handshake_ms, peer.rx_bytes, peer.is_trying, peer.staged_bytes) = (None, 0, true, 2048);
        report.udp.datagrams_received = 0;
    };
    let finding = only(&with(never), "no_handshake", Level::Problem);
    assert!(finding.says.contains("192.0.2.1:51820") && finding.says.contains("2.0 KiB wait"), "{finding:?}");
    assert_eq!(finding.about.as_deref(), Some("PEER"));
    // ICMP says more, if it is about this endpoint and not old.
    for (endpoint, age_ms, is_told) in
        [("192.0.2.1:51820", 20_000, true), ("192.0.2.1:51820", 70_000, false), ("192.0.2.9:51820", 1, false)]
    {
        let refused = with(|report| {
            never(report);
            let (endpoint, says) = (endpoint.to_owned(), "its host says no".to_owned());
            report.peers[0].refusal = Some(RefusalReport { endpoint, says, age_ms });
        });
        let says = only(&refused, "no_handshake", Level::Problem).says;
        assert_eq!(says.contains("to 192.0.2.1:51820, and its host says no; 2.0 KiB"), is_told, "{says}");
    }
    let early = with(|report| {
        never(report);
        report.uptime_ms = 2000;
    });
    assert_eq!(early, []);
    // Nothing was sent to it.
    let unused = with(|report| {
        never(report);
        let peer = &mut report.peers[0];
        (peer.tx_bytes, peer.is_trying, peer.staged_bytes) = (0, false, 0);
    });
    assert_eq!(unused, []);
}

#[test]
fn a_peer_that_went_silent_is_a_problem_only_while_something_is_wanted_of_it() {
    let silent = |change: fn(&mut PeerReport)| {
        with(|report| {
            report.peers[0].latest_handshake_ms = Some(600_000);
            change(&mut report.peers[0]);
        })
    };
    assert_eq!(silent(|_| {}), []);
    for change in [
        (|peer| peer.is_trying = true) as fn(&mut PeerReport),
        |peer| peer.staged_bytes = 1,
        |peer| peer.persistent_keepalive = Some(25),
    ] {
        let finding = only(&silent(change), "stale_handshake", Level::Problem);
        assert!(finding.says.contains("10 min ago"), "{finding:?}");
    }
}

#[test]
fn a_client_that_sleeps_where_it_was_last_heard_from_keeps_no_interface_from_being_ready() {
    // The peer roams, and packets for it wait.
    let roaming = |change: &dyn Fn(&mut PeerReport)| {
        let mut report = well();
        let peer = &mut report.peers[0];
        (peer.has_configured_endpoint, peer.latest_handshake_ms) = (false, Some(600_000));
        (peer.is_trying, peer.staged_bytes) = (true, 1400);
        change(peer);
        report.findings = diagnose(&report);
        report
    };
    let asleep = roaming(&|_| {});
    assert_eq!(asleep.findings, []);
    assert_eq!(unready(&asleep), [""; 0]);
    assert!(!should_have_session(&asleep.peers[0]));
    // Also after a restart of this interface, which the peer has not noticed yet.
    let never = roaming(&|peer| peer.latest_handshake_ms = None);
    assert_eq!(never.findings, []);
    assert_eq!(unready(&never), [""; 0]);
    // It should have a session once it has a keepalive or a configured endpoint.
    let with_keepalive = roaming(&|peer| peer.persistent_keepalive = Some(25));
    let with_endpoint = roaming(&|peer| peer.has_configured_endpoint = true);
    for expected in [with_keepalive, with_endpoint] {
        only(&expected.findings, "stale_handshake", Level::Problem);
        assert_eq!(unready(&expected).len(), 1);
        assert!(should_have_session(&expected.peers[0]));
    }
}

#[test]
fn a_peer_is_missed_as_the_file_says_whatever_its_other_settings() {
    let missed = |change: &dyn Fn(&mut PeerReport)| {
        let mut report = well();
        change(&mut report.peers[0]);
        report.findings = diagnose(&report);
        let level = report.findings.first().map(|finding| finding.level);
        (level, unready(&report).len(), should_have_session(&report.peers[0]))
    };
    // Nothing is wanted of a roaming peer, which was silent for long, or was never heard from.
    for (endpoint, handshake) in [(true, Some(600_000)), (true, None), (false, None)] {
        let roaming = |peer: &mut PeerReport| {
            (peer.has_configured_endpoint, peer.latest_handshake_ms, peer.tx_bytes) = (false, handshake, 0);
            peer.endpoint = peer.endpoint.take().filter(|_| endpoint);
        };
        assert_eq!(missed(&roaming), (None, 0, false));
        let on = |peer: &mut PeerReport| {
            roaming(peer);
            peer.settings.expected = Some(true);
        };
        assert_eq!(missed(&on), (Some(Level::Problem), 1, true), "{endpoint} {handshake:?}");
    }
    assert_eq!(missed(&|peer| peer.settings.expected = Some(true)), (None, 0, true), "it has a session");
    // Everything is wanted of a peer with an endpoint.
    let silent = |peer: &mut PeerReport| {
        (peer.persistent_keepalive, peer.latest_handshake_ms) = (Some(25), Some(600_000));
        (peer.is_trying, peer.staged_bytes) = (true, 1400);
    };
    assert_eq!(missed(&silent), (Some(Level::Problem), 1, true));
    let off = |peer: &mut PeerReport| {
        silent(peer);
        peer.settings.expected = Some(false);
    };
    assert_eq!(missed(&off), (None, 0, false));
}

#[test]
fn among_many_that_sleep_the_peer_that_is_missing_is_named() {
    let mut report = well();
    let peer = &mut report.peers[0];
    (peer.has_configured_endpoint, peer.latest_handshake_ms, peer.is_trying) = (false, Some(600_000), true);
    report.peers = vec![report.peers[0].clone(); 200];
    let office = &mut report.peers[150];
    (office.has_configured_endpoint, office.settings.friendly_name) = (true, Some("office".to_owned()));
    report.findings = diagnose(&report);
    assert_eq!(report.findings[0].about.as_deref(), Some("office"));
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(unready(&report).len(), 1);
}

#[test]
fn a_peer_without_endpoint_matters_when_packets_for_it_are_dropped() {
    let waiting = |report: &mut StatusReport| {
        (report.peers[0].endpoint, report.peers[0].latest_handshake_ms) = (None, None);
    };
    assert_eq!(with(waiting), []);
    let findings = with(|report| {
        waiting(report);
        dropped(report, DropReason::NoEndpoint, 5, 5);
    });
    only(&findings, "no_endpoint", Level::Warning);
}

#[test]
fn many_silent_peers_are_counted() {
    let findings = with(|report| {
        report.peers[0].latest_handshake_ms = None;
        report.peers = vec![report.peers[0].clone(); 12];
    });
    assert_eq!(findings.len(), 6);
    assert!(findings.iter().any(|finding| finding.says.starts_with("7 more peers")), "{findings:#?}");
}

#[test]
fn sends_that_the_kernel_refuses_name_the_route_to_look_at() {
    let refused = |age_ms, handshake_ms| {
        with(|report| {
            dropped(report, DropReason::UdpSendFailed, 9, 0);
            report.fw_mark = 0xca6c;
            report.peers[0].endpoint = Some("[2001:db8::1]:51820".to_owned());
            report.peers[0].latest_handshake_ms = handshake_ms;
            report.send_failure = Some(SendFailureReport {
                endpoint: "[2001:db8::1]:51820".to_owned(),
                error: "Network is unreachable".to_owned(),
                age_ms,
            });
        })
    };
    let finding = only(&refused(5000, Some(60_000)), "no_route", Level::Problem);
    assert!(finding.says.contains("5 s ago: Network is unreachable"), "{finding:?}");
    assert!(finding.advice.unwrap().contains("ip route get 2001:db8::1 mark 0xca6c"));
    // It answers now: another program had taken the network down for a moment.
    for (recently_refused, rx, is_over) in [(0, 100, true), (0, 0, false), (3, 100, false)] {
        let found = with(|report| {
            dropped(report, DropReason::UdpSendFailed, 9, recently_refused);
            let endpoint = "192.0.2.1:51820".to_owned();
            report.peers[0].rates = Some(Rates { rx_bytes_per_second: rx, ..Rates::default() });
            report.send_failure = Some(SendFailureReport { endpoint, ..SendFailureReport::default() });
        });
        assert_eq!(found.is_empty(), is_over, "{recently_refused} {rx}: {found:?}");
    }
    let roaming = with(|report| {
        dropped(report, DropReason::UdpSendFailed, 9, 0);
        report.peers[0].has_configured_endpoint = false;
        let endpoint = "192.0.2.1:51820".to_owned();
        report.send_failure = Some(SendFailureReport { endpoint, ..SendFailureReport::default() });
    });
    only(&roaming, "no_route", Level::Warning);
    // A handshake completed since, or the failure is old, or the peer has another endpoint.
    assert_eq!(refused(5000, Some(1000)), []);
    assert_eq!(refused(90_000, Some(100_000)), []);
    let moved = with(|report| {
        dropped(report, DropReason::UdpSendFailed, 9, 0);
        let endpoint = "198.51.100.1:1".to_owned();
        report.send_failure = Some(SendFailureReport { endpoint, ..SendFailureReport::default() });
    });
    assert_eq!(moved, []);
}

#[test]
fn a_clock_that_is_wrong_or_was_set_back_is_suspected() {
    only(&with(|report| report.unix_time_ms = 1_000_000_000_000), "clock_wrong", Level::Problem);
    let finding = only(&with(|report| report.clock_shift_ms = -3_600_000), "clock_set_back", Level::Warning);
    assert!(finding.says.contains("1 h"), "{finding:?}");
    assert_eq!(with(|report| report.clock_shift_ms = 3_600_000), []);
    only(&with(|report| dropped(report, DropReason::ReplayedHandshake, 1, 1)), "peer_clock", Level::Warning);
}

#[test]
fn an_mtu_that_does_not_fit_is_named() {
    only(&with(|report| report.mtu = 1200), "mtu_small", Level::Warning);
    let no_ipv6 = with(|report| {
        report.mtu = 1200;
        report.peers[0].allowed_ips.pop();
    });
    assert_eq!(no_ipv6, []);
    only(&with(|report| report.mtu = 8920), "mtu_large", Level::Note);
    only(&with(|report| dropped(report, DropReason::DatagramTooLong, 3, 0)), "mtu_large", Level::Warning);
    let fallbacks = with(|report| (report.udp.gso_fallbacks, report.udp.batches_sent) = (500, 1000));
    only(&fallbacks, "gso_fallbacks", Level::Note);
}

#[test]
fn small_buffers_and_missing_offloads_are_named() {
    let finding =
        only(&with(|report| report.udp.receive_buffer_bytes = 212_992), "udp_buffers", Level::Warning);
    assert!(finding.advice.unwrap().contains("net.core.rmem_max=7340032"));
    let finding = only(&with(|report| report.udp.send_buffer_bytes = 4 << 20), "udp_buffers", Level::Note);
    assert!(finding.advice.unwrap().contains("net.core.wmem_max"));
    assert_eq!(with(|report| report.udp.receive_buffer_bytes = 0), []);
    only(&with(|report| report.udp.gso = false), "no_gso", Level::Note);
    only(&with(|report| report.tun.tcp_offload = false), "no_tun_offload", Level::Note);
}

#[test]
fn what_a_healthy_gateway_drops_is_no_finding() {
    use DropReason::*;
    // For phones that sleep, to tell TCP to slow down, and what every network has.
    for reason in [HandshakeTimeout, StagingFull, Overload, PacketTooBig, LinkLocal, UnknownReceiverIndex] {
        assert_eq!(with(|report| dropped(report, reason, 10, 10)), [], "{reason:?}");
    }
}

#[test]
fn every_reason_that_is_worth_a_word_has_one_while_it_grows() {
    for reason in DropReason::ALL {
        let findings = with(|report| dropped(report, reason, 10, 10));
        let spoken = findings.iter().any(|finding| finding.check == format!("drops_{}", reason.label()));
        assert_eq!(spoken, explain(reason).is_some(), "{reason:?}");
        assert!(
            findings.iter().all(|finding| finding.says.len() > 20 && finding.advice.is_some()),
            "{reason:?}"
        );
        assert_eq!(with(|report| dropped(report, DropReason::NoPeer, 10, 0)), []);
    }
}

#[test]
fn the_daemons_own_findings_are_kept_and_the_worst_comes_first() {
    let findings = with(|report| {
        report.findings.push(Finding::new("dns", Level::Note, "no resolver was found"));
        report.mtu = 1200;
        report.public_key = None;
    });
    let checks: Vec<_> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(checks, ["no_private_key", "mtu_small", "dns"]);
}

#[test]
fn an_interface_that_is_being_brought_up_is_not_said_to_lack_a_key_or_peers() {
    let findings = with(|report| {
        report.findings.push(Finding::new(STARTING, Level::Note, "it is being brought up"));
        report.public_key = None;
        report.peers.clear();
    });
    let checks: Vec<_> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(checks, [STARTING]);
}

#[test]
fn what_the_kernel_threw_away_is_told_while_it_grows() {
    let lately = |recent: Recent| with(move |report| report.recent = Some(recent));
    let overflow = |tun, udp| Recent { queue_overflows: tun, receive_overflows: udp, ..Recent::default() };
    assert!(only(&lately(overflow(3, 0)), "tun_overflow", Level::Warning).says.contains("3 packets"));
    assert!(only(&lately(overflow(0, 4)), "udp_overflow", Level::Warning).says.contains("4 datagrams"));
    assert_eq!(lately(overflow(0, 0)), []);
}

#[test]
fn one_peer_that_fills_the_packet_thread_is_told_with_the_way_out() {
    let rates = |bytes| Rates { tx_bytes_per_second: bytes, rx_bytes_per_second: bytes / 10 };
    let busy = |busy, of_peer| {
        with(|report| {
            report.peers[0].rates = Some(rates(of_peer));
            report.recent =
                Some(Recent { window_ms: 500, busy, rates: rates(1_000_000), ..Recent::default() });
        })
    };
    let finding = only(&busy(0.95, 900_000), "one_big_peer", Level::Note);
    assert_eq!(finding.about.as_deref(), Some("PEER"));
    assert!(finding.advice.unwrap().contains("One big peer"));
    assert_eq!(busy(0.95, 700_000), [], "others have a part in it");
    assert_eq!(busy(0.8, 900_000), [], "the thread has room");
}

/// Returns the findings about packet threads with these shares of their time, and peers with these rates,
/// each with the number of its thread.
fn with_threads(
    busy: &[f64],
    peers: &[(usize, u64)],
    change: impl FnOnce(&mut StatusReport),
) -> Vec<Finding> {
    with(|report| {
        let rates = |bytes| Rates { tx_bytes_per_second: bytes, rx_bytes_per_second: 0 };
        report.udp.steered = true;
        let thread = |(number, &busy)| PacketThreadReport {
            peers: peers.iter().filter(|(thread, _)| *thread == number).count(),
            busy: Some(busy),
            ..PacketThreadReport::default()
        };
        report.packet_threads = busy.iter().enumerate().map(thread).collect();
        let peer = |(number, &(thread, bytes)): (usize, &(usize, u64))| PeerReport {
            public_key: format!("PEER{number}"),
            packet_thread: Some(thread),
            rates: Some(rates(bytes)),
            ..report.peers[0].clone()
        };
        report.peers = peers.iter().enumerate().map(peer).collect();
        report.recent = Some(Recent {
            window_ms: 500,
            busy: busy.iter().copied().fold(0.0, f64::max),
            rates: rates(peers.iter().map(|(_, bytes)| bytes).sum()),
            ..Recent::default()
        });
        change(report);
    })
}

#[test]
fn one_peer_that_fills_one_of_several_packet_threads_is_told() {
    // Its share of the whole interface is a half.
    let findings = with_threads(&[0.2, 0.95], &[(0, 700), (1, 800), (0, 100), (1, 10)], |_| {});
    let finding = only(&findings, "one_big_peer", Level::Note);
    assert_eq!(finding.about.as_deref(), Some("PEER1"));
    assert!(finding.says.contains("fills a packet thread"), "{finding:?}");
    assert_eq!(with_threads(&[0.2, 0.8], &[(0, 700), (1, 800)], |_| {}), [], "the thread has room");
    // It is full of something else than its peers.
    assert_eq!(with_threads(&[0.2, 0.95], &[(0, 700), (1, 0)], |_| {}), []);
    // One packet thread, as a daemon reports that has only this one.
    let findings = with_threads(&[0.95], &[(0, 10), (0, 800)], |_| {});
    assert!(only(&findings, "one_big_peer", Level::Note).says.contains("fills the packet thread"));
}

#[test]
fn packet_threads_with_unequal_work_are_told_where_no_single_peer_is_the_reason() {
    let two_and_two = [(0, 10), (0, 10), (1, 300), (1, 300)];
    let finding =
        only(&with_threads(&[0.3, 0.95], &two_and_two, |_| {}), "uneven_packet_threads", Level::Note);
    assert!(
        finding.says.contains("thread 1 with 2 of the peers is full") && finding.says.contains("30 %"),
        "{finding:?}"
    );
    assert_eq!(with_threads(&[0.6, 0.95], &two_and_two, |_| {}), [], "the other is busy, too");
    assert_eq!(with_threads(&[0.95], &[(0, 300), (0, 300)], |_| {}), [], "there is no other");
    // Each of these may move, and one does.
    let three_and_one = [(0, 10), (1, 300), (1, 300), (1, 300)];
    assert_eq!(with_threads(&[0.3, 0.95], &three_and_one, |_| {}), []);
}

#[test]
fn datagrams_that_the_kernel_does_not_steer_are_told_where_there_are_several_packet_threads() {
    let unsteered = |report: &mut StatusReport| report.udp.steered = false;
    let finding = only(&with_threads(&[0.1, 0.1], &[(0, 1)], unsteered), "not_steered", Level::Note);
    assert!(finding.advice.unwrap().contains("4.5"));
    assert_eq!(with_threads(&[0.1], &[(0, 1)], unsteered), []);
    // A daemon of an earlier release reports neither.
    let earlier: StatusReport = serde_json::from_str(r#"{"udp": {"gso": true}, "peers": [{}]}"#).unwrap();
    assert!(diagnose(&earlier).iter().all(|finding| finding.check != "not_steered"));
}

#[test]
fn a_load_of_handshakes_is_told_with_its_time_and_what_was_refused() {
    let finding = only(
        &with(|report| {
            report.tunnel.handshake_load_ms = Some(42_000);
            dropped(report, DropReason::CookieRequired, 9000, 700);
        }),
        "handshake_load",
        Level::Warning,
    );
    assert!(finding.says.contains("42 s") && finding.says.contains("700 were asked"), "{finding:?}");
    // A burst that is over is not reported.
    assert_eq!(with(|report| dropped(report, DropReason::CookieRequired, 9000, 700)), []);
}

#[test]
fn an_endpoint_that_goes_back_and_forth_is_a_key_of_two_machines() {
    let finding = only(
        &with(|report| {
            report.peers[0].alternation = Some(AlternationReport {
                endpoints: vec!["192.0.2.1:1".to_owned(), "192.0.2.2:2".to_owned()],
                returns: 6,
                first_ms: 90_000,
                latest_ms: 30_000,
            });
        }),
        "shared_key",
        Level::Warning,
    );
    assert_eq!(finding.about.as_deref(), Some("PEER"));
    assert!(finding.says.contains("192.0.2.1:1 and 192.0.2.2:2 (6 times in 1 min"), "{finding:?}");
}
