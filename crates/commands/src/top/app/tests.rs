use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weft_config::settings::ReportSettings;
use weft_report::control_socket::ClientError;

use super::super::key;
use super::*;

/// Returns the report of an interface with these peers: name, received bytes, sent bytes.
pub(in super::super) fn report(uptime_ms: u64, peers: &[(&str, u64, u64)]) -> StatusReport {
    let peers = peers.iter().map(|&(name, rx_bytes, tx_bytes)| PeerReport {
        public_key: format!("KEY-OF-{name}"),
        settings: ReportSettings::named(name),
        rx_bytes,
        tx_bytes,
        latest_handshake_ms: Some(rx_bytes),
        ..PeerReport::default()
    });
    let peers: Vec<_> = peers.collect();
    let mut report =
        StatusReport { interface: "wg0".to_owned(), uptime_ms, mtu: 1420, peers, ..StatusReport::default() };
    report.public_key = Some("OWN".to_owned());
    report.udp.bytes_received = report.peers.iter().map(|peer| peer.rx_bytes).sum();
    report.udp.bytes_sent = report.peers.iter().map(|peer| peer.tx_bytes).sum();
    report
}

/// Returns a view that has processed these reports.
pub(in super::super) fn app(reports: impl IntoIterator<Item = StatusReport>) -> App {
    let mut app = App::new("wg0", false);
    reports.into_iter().for_each(|report| app.take(Ok(Box::new(report))));
    app
}

fn shown(app: &App) -> Vec<String> {
    let peers = &app.report.as_ref().unwrap().peers;
    app.order.iter().map(|&place| peers[place].label()).collect()
}

pub(in super::super) fn press(app: &mut App, keys: &str) -> bool {
    let mut is_end = false;
    for key in keys.chars() {
        let code = match key {
            '⎋' => KeyCode::Esc,
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            '⏎' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        is_end = key::is_end(app, KeyEvent::new(code, KeyModifiers::NONE));
    }
    is_end
}

fn three() -> App {
    app([
        report(1000, &[("ada", 100, 5), ("bob", 50, 6), ("cyd", 10, 7)]),
        report(2000, &[("ada", 101, 105), ("bob", 150, 56), ("cyd", 60, 17)]),
    ])
}

#[test]
fn peers_are_ordered_as_the_keys_say() {
    let mut app = three();
    assert_eq!(shown(&app), ["bob", "cyd", "ada"]);
    for (keys, order) in [
        ("t", ["ada", "bob", "cyd"]),
        ("R", ["bob", "ada", "cyd"]),
        ("T", ["ada", "bob", "cyd"]),
        ("h", ["cyd", "ada", "bob"]),
        ("hh", ["cyd", "ada", "bob"]),
        ("i", ["bob", "ada", "cyd"]),
        ("n", ["ada", "bob", "cyd"]),
        ("n", ["cyd", "bob", "ada"]),
        ("r", ["bob", "cyd", "ada"]),
    ] {
        press(&mut app, keys);
        assert_eq!(shown(&app), order, "{keys}");
    }
}

#[test]
fn the_chosen_peer_stays_chosen_when_the_order_changes() {
    let mut app = three();
    press(&mut app, "↓");
    assert_eq!(app.selected_line(), 1);
    app.take(Ok(Box::new(report(3000, &[("ada", 101, 105), ("bob", 150, 56), ("cyd", 5000, 17)]))));
    assert_eq!((shown(&app)[0].as_str(), app.selected_line()), ("cyd", 0));
    press(&mut app, "kkk");
    assert_eq!(app.selected_line(), 0);
    press(&mut app, "jjjjj");
    assert_eq!(app.selected_line(), 2);
    press(&mut app, "g");
    assert_eq!(app.selected_line(), 0);
    press(&mut app, "G↑");
    assert_eq!(app.selected_line(), 1);
    // The peer was removed.
    app.take(Ok(Box::new(report(4000, &[]))));
    assert_eq!(app.selected_line(), 0);
    press(&mut app, "jkG");
}

#[test]
fn the_histories_follow_the_peers() {
    let mut app = three();
    assert_eq!(app.peers["KEY-OF-bob"].inbound.last(), 100);
    assert_eq!((app.inbound.last(), app.outbound.last()), (151, 160));
    app.take(Ok(Box::new(report(3000, &[("bob", 350, 56)]))));
    assert_eq!(app.peers.len(), 1);
    assert_eq!(app.peers["KEY-OF-bob"].inbound.padded(2), [100, 200]);
}

#[test]
fn a_daemon_that_went_away_leaves_its_last_report_until_it_is_back() {
    let mut app = three();
    app.take(Err(ClientError::Timeout { name: "wg0".to_owned(), seconds: 60, process: String::new() }));
    assert!(app.trouble.as_ref().unwrap().contains("does not answer"));
    assert_eq!(shown(&app).len(), 3);
    // The interface was restarted: its report cannot be compared with the last.
    app.take(Ok(Box::new(report(10, &[("ada", 1, 1)]))));
    assert_eq!(app.trouble, None);
    assert_eq!(app.report.as_ref().unwrap().recent, None);
}

#[test]
fn nothing_moves_while_it_is_paused() {
    let mut app = three();
    press(&mut app, "p");
    app.take(Ok(Box::new(report(3000, &[]))));
    assert_eq!(shown(&app).len(), 3);
    press(&mut app, "p");
    app.take(Ok(Box::new(report(3000, &[]))));
    assert_eq!(shown(&app).len(), 0);
}

#[test]
fn q_escape_and_ctrl_c_end_and_nothing_else_does() {
    let mut app = App::new("wg0", false);
    assert!(press(&mut app, "q") && press(&mut app, "⎋"));
    assert!(key::is_end(&mut app, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(!press(&mut app, "jknhrtRTipgG↓↑xc"));
}
