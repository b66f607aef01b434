use weft_config::settings::ReportSettings;
use weft_report::finding::{Finding, Level};
use weft_report::{
    ConnectionReport, DropReport, PacketThreadReport, Rates, Recent, ThreadReport, TunQueueReport, TunReport,
};

use super::*;

fn plain(report: &StatusReport) -> String {
    let rendered = render(report, None);
    // The colours of the tables pass the writer that escapes what others sent.
    let printed = weft_config::printable(&rendered, weft_config::Notation::Coloured);
    assert_eq!(printed, rendered);
    anstream::adapter::strip_str(&printed).to_string()
}

#[test]
fn everything_that_a_user_asks_for_is_shown() {
    let mut report = StatusReport {
        interface: "wg0".to_owned(),
        weft_version: "0.1.0".to_owned(),
        pid: 42,
        cipher: "avx512ifma".to_owned(),
        public_key: Some("OWNKEY".to_owned()),
        listen_port: 51820,
        fw_mark: 0xca6c,
        mtu: 1420,
        uptime_ms: 3_725_000,
        addresses: vec!["10.0.0.1/24".to_owned()],
        routes: (0..10).map(|i| format!("10.{i}.0.0/16")).collect(),
        dns: vec!["1.1.1.1 by systemd-resolved".to_owned()],
        threads: vec![
            ThreadReport {
                name: "weft".to_owned(),
                capabilities: vec!["CAP_X".to_owned(); 41],
                is_filtered: false,
            },
            ThreadReport { name: "weft-packets".to_owned(), capabilities: Vec::new(), is_filtered: true },
        ],
        peers: vec![
            PeerReport {
                public_key: "PEERKEY".to_owned(),
                settings: ReportSettings::named("office"),
                endpoint: Some("192.0.2.1:51820".to_owned()),
                latest_handshake_ms: Some(65_000),
                tx_bytes: 1 << 20,
                rx_bytes: 1 << 30,
                persistent_keepalive: Some(25),
                allowed_ips: vec!["10.0.0.2/32".to_owned()],
                rates: Some(Rates { tx_bytes_per_second: 125_000, rx_bytes_per_second: 0 }),
                limit_to_peer: Some(LimitReport { bits_per_second: 2_500_000_000, dropped_packets: 0 }),
                limit_from_peer: Some(LimitReport { bits_per_second: 50_000_000, dropped_packets: 815 }),
                ..PeerReport::default()
            },
            PeerReport { public_key: "SILENT".to_owned(), is_trying: true, ..PeerReport::default() },
        ],
        connections: (0..30)
            .map(|port| ConnectionReport {
                local: format!("10.0.0.1:{}", 1000 + port),
                remote: "10.0.0.9:443".to_owned(),
                state: "ESTAB".to_owned(),
                rtt_us: 20_345,
                ..ConnectionReport::default()
            })
            .collect(),
        more_connections: 7,
        drops: vec![DropReport {
            reason: "no_peer".to_owned(),
            direction: "outbound".to_owned(),
            stage: "routing".to_owned(),
            packets: 17,
        }],
        recent: Some(Recent {
            window_ms: 500,
            drops: vec![DropReport { reason: "no_peer".to_owned(), packets: 4, ..DropReport::default() }],
            ..Recent::default()
        }),
        ..StatusReport::default()
    };
    (report.tun.threads, report.tun.tcp_offload) = (2, true);
    report.udp.gso = true;
    report.udp.batch_segments = [1, 0, 0, 0, 0, 0, 3];
    (report.udp.batches_sent, report.udp.datagrams_sent) = (4, 181);
    report.queues.staged_packets = 3;
    report.findings = vec![Finding::new("x", Level::Warning, "it is odd").advise("mend it")];
    let text = plain(&report);
    for shown in [
        "wg0  up 1 h 2 min, weft 0.1.0, process 42",
        "OWNKEY",
        "51820",
        "0xca6c",
        "1420",
        "10.0.0.1/24",
        "10.5.0.0/16",
        "and 4 more",
        "systemd-resolved",
        "1 of 2 threads: weft-packets",
        "weft has 41 capabilities",
        "ChaCha20-Poly1305 by avx512ifma",
        "2 queues, super-packets of TCP",
        "GSO on, GRO off",
        "45.2 datagrams a send",
        "33–64: 75 %",
        "3 packets (0 B) for a session",
        "office",
        "PEERKEY",
        "192.0.2.1:51820",
        "1 min 5 s ago",
        "1.0 GiB",
        "1.0 Mbit/s",
        "limit 2.5 Gbit/s",
        "limit 50.0 Mbit/s",
        "815 dropped",
        "25 s",
        "none yet, trying",
        "10.0.0.1:1019 10.0.0.9:443",
        "20.3 ms",
        "and 17 more connections",
        "not known",
        "+4",
        "routing",
        "warning  it is odd",
        "→ mend it",
    ] {
        assert!(text.contains(shown), "{shown:?} in:\n{text}");
    }
    assert!(!text.contains("10.6.0.0/16") && !text.contains('\x1b'), "{text}");
}

#[test]
fn an_interface_without_anything_is_shown_too() {
    let text = plain(&StatusReport { interface: "wg0".to_owned(), ..StatusReport::default() });
    assert!(text.contains("no traffic yet") && text.contains("nothing") && !text.contains("peer"), "{text}");
}

#[test]
fn queues_are_shown_where_there_are_several() {
    let queue = |bytes: u64| TunQueueReport {
        packets_read: 2,
        segments_read: 5,
        bytes_read: bytes,
        bytes_written: 3 * bytes,
        rates: Some(Rates { tx_bytes_per_second: 125_000, rx_bytes_per_second: 250_000 }),
        ..TunQueueReport::default()
    };
    let mut report = StatusReport { interface: "wg0".to_owned(), ..StatusReport::default() };
    report.tun.queues = vec![queue(1 << 20)];
    assert!(!plain(&report).contains("packets a write"));
    report.tun.queues.push(queue(1 << 30));
    let text = plain(&report);
    for shown in ["packets a write", "1.0 MiB", "3.0 MiB", "1.0 GiB", "1.0 Mbit/s", "2.0 Mbit/s", "2.5"] {
        assert!(text.contains(shown), "{shown:?} in:\n{text}");
    }
}

#[test]
fn packet_threads_are_shown_where_there_are_several() {
    let thread = |number: u64| PacketThreadReport {
        peers: 12,
        sealed: 700 + number,
        opened: 900 + number,
        handed_over_bytes: number << 20,
        busy: (number > 0).then_some(0.456),
        ..PacketThreadReport::default()
    };
    let mut report = StatusReport { interface: "wg0".to_owned(), ..StatusReport::default() };
    report.packet_threads = vec![thread(0)];
    assert!(!plain(&report).contains("packet thread"));
    report.packet_threads.push(thread(1));
    let text = plain(&report);
    let cells = |number: &str| -> Vec<String> {
        let rows = text.lines().map(|line| line.split(['│', '┆']).map(|cell| cell.trim().to_owned()));
        let mut rows = rows.map(Iterator::collect::<Vec<_>>);
        rows.rfind(|cells| cells.get(1).is_some_and(|cell| cell == number)).unwrap_or_default()
    };
    assert_eq!(cells("packet thread")[2..7], ["peers", "busy", "packets in", "packets out", "handed over"]);
    assert_eq!(cells("0")[2..7], ["12", "-", "900", "700", "0 B"], "{text}");
    assert_eq!(cells("1")[2..7], ["12", "46 %", "901", "701", "1.0 MiB"], "{text}");
}

#[test]
fn the_packet_thread_of_each_peer_is_shown_where_there_are_several() {
    let peer = |number| PeerReport {
        public_key: format!("KEY{number}"),
        packet_thread: Some(number),
        ..PeerReport::default()
    };
    let mut report = StatusReport {
        peers: vec![peer(1), peer(7)],
        packet_threads: vec![PacketThreadReport::default()],
        ..StatusReport::default()
    };
    assert!(!plain(&report).contains("thread"));
    report.packet_threads.resize_with(8, PacketThreadReport::default);
    report.peer_moves = 3;
    let text = plain(&report);
    for (key, number) in [("KEY1", "1"), ("KEY7", "7")] {
        let peer = text.split("peer ").find(|block| block.starts_with(key)).unwrap();
        assert!(peer.contains(&format!("  thread       {number}\n")), "{text}");
    }
    assert!(text.contains("3 of peers to packet threads with less to do"), "{text}");
}

#[test]
fn thousands_of_peers_are_cut_with_a_word() {
    let report = StatusReport {
        peers: vec![PeerReport { public_key: "KEY".to_owned(), ..PeerReport::default() }; 150],
        ..StatusReport::default()
    };
    let text = plain(&report);
    assert_eq!(text.matches("public key   KEY").count(), 100);
    assert!(text.contains("and 50 more peers"), "{text}");
}

#[test]
fn who_serves_the_queues_is_said() {
    for (threads, queues, shown) in
        [(0, 1, "inline, no"), (0, 4, "4 queues inline, no"), (1, 1, "1 queue, no"), (4, 4, "4 queues, no")]
    {
        let tun =
            TunReport { threads, queues: vec![TunQueueReport::default(); queues], ..TunReport::default() };
        let text = plain(&StatusReport { tun, ..StatusReport::default() });
        assert!(text.contains(shown), "{shown}: {text}");
    }
}
