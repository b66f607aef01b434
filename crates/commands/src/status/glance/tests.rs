use weft_config::settings::ReportSettings;
use weft_report::finding::{Finding, Level};
use weft_report::{Rates, Recent};

use super::*;

/// A gateway with this many peers, of which every second one is there.
fn gateway(peers: usize) -> StatusReport {
    let peer = |number: usize| {
        let is_there = number % 2 == 1;
        let rate = if is_there { 1_250_000 * number as u64 } else { 0 };
        PeerReport {
            public_key: format!("{number:03}TIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8="),
            settings: match number % 3 {
                0 => ReportSettings::default(),
                _ => ReportSettings::named(&format!("laptop-{number}")),
            },
            endpoint: (number % 5 != 4).then(|| format!("203.0.113.{number}:51820")),
            latest_handshake_ms: is_there.then_some(65_000).or((number % 4 == 2).then_some(90_000_000)),
            rx_bytes: (number as u64) << 30,
            tx_bytes: (number as u64) << 31,
            allowed_ips: vec![format!("10.9.0.{number}/32"), format!("fd09::{number}/128")],
            rates: Some(Rates { rx_bytes_per_second: rate, tx_bytes_per_second: rate / 2 }),
            ..PeerReport::default()
        }
    };
    StatusReport {
        interface: "wg0".to_owned(),
        public_key: Some("OWNKEY".to_owned()),
        listen_port: 51820,
        uptime_ms: 3_725_000,
        addresses: vec!["10.9.0.1/24".to_owned(), "fd09::1/64".to_owned()],
        recent: Some(Recent {
            rates: Rates { rx_bytes_per_second: 12_500_000, tx_bytes_per_second: 125_000 },
            ..Recent::default()
        }),
        peers: (0..peers).map(peer).collect(),
        ..StatusReport::default()
    }
}

fn plain(report: &StatusReport, width: Option<usize>) -> String {
    let rendered = render(report, width);
    // The colours pass the writer that escapes what others sent.
    assert_eq!(weft_config::printable(&rendered, weft_config::Notation::Coloured), rendered);
    anstream::adapter::strip_str(&rendered).to_string()
}

#[test]
fn an_interface_is_a_line_and_a_peer_is_one_on_a_wide_terminal() {
    let text = plain(&gateway(3), Some(120));
    assert_eq!(
        text,
        "wg0  up 1 h 2 min, 10.9.0.1/24, fd09::1/64, port 51820, 100.0 Mbit/s in, 1.0 Mbit/s out, 1 of 3 peers \
         connected\n\
         peer         endpoint           handshake      in           out         received  sent     allowed IPs\n\
         laptop-1     203.0.113.1:51820  1 min 5 s ago  10.0 Mbit/s  5.0 Mbit/s  1.0 GiB   2.0 GiB  10.9.0.1/32, \
         fd09::1/128\n\
         laptop-2     203.0.113.2:51820  1 d 1 h ago    0 bit/s      0 bit/s     2.0 GiB   4.0 GiB  10.9.0.2/32, \
         fd09::2/128\n\
         000TIBA5rb…  203.0.113.0:51820  none yet       0 bit/s      0 bit/s     0 B       0 B      10.9.0.0/32, \
         fd09::0/128\n"
    );
    // Without a terminal each peer is one line, of any length.
    assert_eq!(plain(&gateway(3), None), text);
}

#[test]
fn a_narrow_terminal_gets_blocks_that_break_nothing() {
    let text = plain(&gateway(2), Some(60));
    assert_eq!(
        text,
        "wg0  up 1 h 2 min, 10.9.0.1/24, fd09::1/64, port 51820,\n  \
           100.0 Mbit/s in, 1.0 Mbit/s out, 1 of 2 peers connected\n\
         laptop-1  203.0.113.1:51820, 10.9.0.1/32, fd09::1/128\n  \
           1 min 5 s ago, 1.0 GiB received (10.0 Mbit/s),\n  \
           2.0 GiB sent (5.0 Mbit/s)\n\
         000TIBA5rb…  203.0.113.0:51820, 10.9.0.0/32, fd09::0/128\n  \
           none yet, 0 B received, 0 B sent\n"
    );
}

#[test]
fn lines_need_100_columns_and_tell_the_end_of_a_peer_as_blocks_do() {
    let mut report = gateway(2);
    for peer in &mut report.peers {
        peer.rates = None;
        peer.allowed_ips.truncate(1);
    }
    let header = |report: &StatusReport, width| {
        let text = plain(report, Some(width));
        text.lines().find(|line| line.starts_with("peer ")).unwrap_or_default().to_owned()
    };
    let columns = "peer         endpoint           handshake      received  sent     allowed IPs";
    assert_eq!([99, 100].map(|width| header(&report, width)), ["", columns]);
    report.peers[0].settings.expires = Some("2999-12-31".parse().unwrap());
    assert_eq!(header(&report, 100), format!("{columns}  ends"));
    assert_eq!(plain(&report, Some(99)).matches(", ends in ").count(), 1);
}

#[test]
fn eleven_peers_fit_24_lines_of_80_columns() {
    for (peers, width) in [(1, 60), (1, 80), (11, 80), (1, 120), (11, 120), (200, 60), (200, 80), (200, 120)]
    {
        let text = plain(&gateway(peers), Some(width));
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        if peers == 11 {
            assert!(text.lines().count() <= 24, "{text}");
        }
        assert_eq!(text.contains("and 100 more peers"), peers == 200, "{text}");
        for part in ["203.0.113.1:51820", "10.9.0.1/32"].into_iter().filter(|_| peers > 1) {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn what_is_wrong_stands_before_the_peers_and_long_addresses_are_blocks() {
    let mut report = gateway(2);
    report.peers[1].endpoint = Some("[2001:db8:1111:2222:3333:4444:5555:6666]:51820".to_owned());
    report.peers[1].allowed_ips = (0..5).map(|i| format!("10.{i}.0.0/16")).collect();
    report.findings = vec![Finding::new("x", Level::Warning, "it is odd").advise("mend it")];
    let text = plain(&report, Some(100));
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(place("warning  it is odd") < place("→ mend it") && place("→ mend it") < place("laptop-1"));
    place("laptop-1  [2001:db8:1111:2222:3333:4444:5555:6666]:51820, 10.0.0.0/16, 10.1.0.0/16, 3 more\n");
}

#[test]
fn an_interface_without_peers_or_key_is_shown_too() {
    let mut report = gateway(0);
    report.file = Some("/etc/wireguard/wg0.conf".to_owned());
    let text = plain(&report, Some(80));
    assert!(text.ends_with("no peers\n") && !text.contains("file"), "{text}");
    report.file = Some("/root/wg0.conf".to_owned());
    let text = plain(&report, Some(80));
    assert!(text.contains("file /root/wg0.conf"), "{text}");
    report.public_key = None;
    assert!(plain(&report, Some(80)).ends_with("no private key\n"));
}
