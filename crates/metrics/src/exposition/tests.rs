use weft_config::settings::ReportSettings;
use weft_report::{DropReport, LimitReport, PacketThreadReport, PeerReport, StageReport};
use weft_tunnel::DropReason;

use super::*;

fn report() -> StatusReport {
    let mut report = StatusReport {
        interface: "wg0".to_owned(),
        cipher: "avx512ifma".to_owned(),
        unix_time_ms: 2_000_000_000_500,
        peers: vec![PeerReport {
            public_key: "KEY=".to_owned(),
            settings: ReportSettings::named("the \"one\" \\ only"),
            allowed_ips: vec!["10.0.0.0/24".to_owned(), "fd00::/64".to_owned()],
            tx_bytes: 7,
            rx_bytes: 9,
            latest_handshake_ms: Some(30_000),
            limit_from_peer: Some(LimitReport { bits_per_second: 50_000_000, dropped_packets: 5 }),
            ..PeerReport::default()
        }],
        drops: vec![DropReport {
            reason: DropReason::NoPeer.label().to_owned(),
            packets: 3,
            ..DropReport::default()
        }],
        ..StatusReport::default()
    };
    report.udp.batch_segments = [1, 0, 2, 0, 0, 0, 1];
    (report.tun.queue_overflows, report.tun.write_drops, report.udp.receive_overflows) = (11, 12, 13);
    report.udp.datagrams_sent = 70;
    report.times.turns = HistogramReport {
        count: 6,
        sum_ns: 3_000_000_000,
        buckets: vec![(Some(1500), 3), (Some(8000), 2), (None, 1)],
    };
    report.times.stages = vec![StageReport {
        direction: "outbound".to_owned(),
        stage: "encrypt".to_owned(),
        times: HistogramReport { count: 1, sum_ns: 900, buckets: vec![(Some(1000), 1)] },
    }];
    report
}

fn lines(format: Format) -> Vec<String> {
    encode(Arc::new(report()), true, format).lines().map(str::to_owned).collect()
}

#[test]
fn what_the_kernel_dropped_is_told_by_direction_and_stage() {
    let lines = lines(Format::Classic);
    for (labels, count) in [
        (r#"direction="outbound",stage="tun""#, 11),
        (r#"direction="inbound",stage="tun""#, 12),
        (r#"direction="inbound",stage="udp""#, 13),
    ] {
        let line = format!(r#"weft_kernel_dropped_packets_total{{interface="wg0",{labels}}} {count}"#);
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
}

#[test]
fn a_peer_has_the_metrics_that_dashboards_know() {
    let labels = r#"{interface="wg0",public_key="KEY=",allowed_ips="10.0.0.0/24,fd00::/64",friendly_name="the \"one\" \\ only"}"#;
    for format in [Format::Classic, Format::OpenMetrics] {
        let lines = lines(format);
        for line in [
            format!("wireguard_sent_bytes_total{labels} 7"),
            format!("wireguard_received_bytes_total{labels} 9"),
            format!("wireguard_latest_handshake_seconds{labels} 1999999970"),
        ] {
            assert!(lines.contains(&line), "{line}");
        }
    }
}

#[test]
fn the_start_is_the_same_at_every_scrape() {
    let start = |unix_time_ms, uptime_ms, clock_shift_ms| {
        let report = StatusReport { unix_time_ms, uptime_ms, clock_shift_ms, ..report() };
        let text = encode(Arc::new(report), false, Format::Classic);
        let line = text.lines().find(|line| line.starts_with("weft_start_time_seconds{")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(start(2_000_000_060_500, 60_000, 0), "2000000000.5");
    // The two clocks change to the next millisecond at different moments, and the wall clock may have been
    // set.
    assert_eq!(start(2_000_000_060_501, 60_000, 1), "2000000000.5");
    assert_eq!(start(2_300_000_060_500, 60_000, 300_000_000_000), "2000000000.5");
    assert_eq!(start(30_500, 60_000, -2_000_000_030_000), "2000000000.5");
}

#[test]
fn a_limited_peer_has_its_limit_and_what_that_cost() {
    let labels = r#"{interface="wg0",public_key="KEY=",allowed_ips="10.0.0.0/24,fd00::/64",friendly_name="the \"one\" \\ only",direction="inbound"}"#;
    let lines = lines(Format::Classic);
    let of_limits: Vec<_> = lines.iter().filter(|line| line.starts_with("weft_peer_limit_")).collect();
    assert_eq!(
        of_limits,
        [
            &format!("weft_peer_limit_bits_per_second{labels} 50000000"),
            &format!("weft_peer_limit_dropped_packets_total{labels} 5")
        ]
    );
}

#[test]
fn every_reason_has_a_counter_also_before_it_occurs() {
    let lines = lines(Format::Classic);
    let drops = |line: &&String| line.starts_with("weft_dropped_packets_total{");
    assert_eq!(lines.iter().filter(drops).count(), DropReason::ALL.len());
    let line = r#"weft_dropped_packets_total{interface="wg0",reason="no_peer",direction="outbound",stage="routing"} 3"#;
    assert!(lines.iter().any(|at| at == line));
    let refused = r#"weft_handshakes_total{interface="wg0",outcome="invalid_mac"} 0"#;
    assert!(lines.iter().any(|at| at == refused));
}

#[test]
fn every_packet_thread_has_its_time_peers_and_packets_also_when_there_is_only_one() {
    let of_threads = |count: u64| {
        let thread = |number: u64| PacketThreadReport {
            peers: 3 + number as usize,
            busy_ns: 1_500_000_000 * (number + 1),
            sealed: 20 + number,
            opened: 30 + number,
            handed_over_bytes: 40 + number,
            ..PacketThreadReport::default()
        };
        let report = StatusReport { packet_threads: (0..count).map(thread).collect(), ..report() };
        let text = encode(Arc::new(report), false, Format::Classic);
        let lines = text.lines().filter_map(|line| line.strip_prefix("weft_packet_thread_"));
        lines.map(|line| line.replace(r#"interface="wg0","#, "")).collect::<Vec<_>>()
    };
    assert_eq!(
        of_threads(2),
        [
            r#"busy_seconds_total{thread="0"} 1.5"#,
            r#"busy_seconds_total{thread="1"} 3.0"#,
            r#"peers{thread="0"} 3"#,
            r#"peers{thread="1"} 4"#,
            r#"packets_total{thread="0",direction="outbound"} 20"#,
            r#"packets_total{thread="0",direction="inbound"} 30"#,
            r#"packets_total{thread="1",direction="outbound"} 21"#,
            r#"packets_total{thread="1",direction="inbound"} 31"#,
            r#"handed_over_bytes_total{thread="0"} 40"#,
            r#"handed_over_bytes_total{thread="1"} 41"#,
        ]
    );
    assert_eq!(of_threads(1).len(), 5);
}

#[test]
fn the_packet_thread_of_each_peer_is_told_where_there_are_several() {
    let text = |threads| {
        let mut report = report();
        report.packet_threads = vec![PacketThreadReport::default(); threads];
        report.peer_moves = 4;
        report.peers[0].packet_thread = Some(1);
        encode(Arc::new(report), true, Format::Classic)
    };
    let values = |text: &str, name: &str| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.1.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(values(&text(2), "weft_peer_packet_thread{"), ["1"]);
    assert_eq!(values(&text(1), "weft_peer_packet_thread{"), [""; 0]);
    assert_eq!(values(&text(2), "weft_peer_moves_total{"), ["4"]);
}

#[test]
fn histograms_count_upwards_to_infinity() {
    let lines = lines(Format::OpenMetrics);
    let values = |start: &str| -> Vec<u64> {
        let matching = lines.iter().filter(|line| line.starts_with(start));
        matching.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    let turns = values("weft_turn_seconds_bucket{");
    assert_eq!(turns.len(), Histogram::BOUNDS + 1);
    assert_eq!((turns[0], turns[1], turns[6], turns[7], *turns.last().unwrap()), (0, 3, 5, 5, 6));
    assert!(lines.contains(&r#"weft_turn_seconds_bucket{interface="wg0",le="+Inf"} 6"#.to_owned()));
    assert!(lines.contains(&r#"weft_turn_seconds_sum{interface="wg0"} 3.0"#.to_owned()));
    assert_eq!(values("weft_udp_batch_datagrams_bucket{"), [1, 1, 3, 3, 3, 3, 4, 4]);
    assert!(lines.contains(&r#"weft_udp_batch_datagrams_sum{interface="wg0"} 70.0"#.to_owned()));
    assert_eq!(
        values("weft_stage_seconds_count{interface=\"wg0\",direction=\"outbound\",stage=\"encrypt\"}"),
        [1]
    );
}

#[test]
fn the_format_is_the_one_that_is_understood() {
    let accepted = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, value.parse().unwrap());
        Format::accepted(&headers)
    };
    assert_eq!(Format::accepted(&HeaderMap::new()), Format::Classic);
    assert_eq!(accepted("*/*"), Format::Classic);
    assert_eq!(accepted("text/plain;version=0.0.4;q=0.3,*/*;q=0.1"), Format::Classic);
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    assert_eq!(accepted(prometheus), Format::OpenMetrics);
    assert_eq!(lines(Format::OpenMetrics).last().map(String::as_str), Some("# EOF"));
    assert!(!lines(Format::Classic).iter().any(|line| line.starts_with("# EOF")));
}

#[test]
fn the_cipher_is_told_by_its_name() {
    let lines = lines(Format::Classic);
    let line = r#"weft_cipher_info{interface="wg0",cipher="avx512ifma"} 1"#;
    assert!(lines.iter().any(|it| it == line), "{lines:#?}");
}
