use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::app::tests::{app, report};
use super::*;
use crate::control::socket::ClientError;
use crate::status::DropReport;

/// The screen of that size, line by line, without the spaces at the ends.
fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content().chunks(usize::from(width).max(1));
    cells
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

/// Two peers, one of which moves a megabyte a second in a growing rate.
fn busy() -> App {
    let at = |second: u64| {
        let bytes = 125_000 * second * second;
        let mut report = report(1000 * second, &[("office", bytes, bytes / 10), ("phone", 0, 148)]);
        report.listen_port = 51820;
        report.peers[0].latest_handshake_ms = Some(65_000);
        report.peers[0].endpoint = Some("192.0.2.1:51820".to_owned());
        report.peers[1].latest_handshake_ms = None;
        report.udp.batch_segments = [second, 0, 0, 0, 0, 0, 3 * second];
        report.drops = vec![DropReport {
            reason: "no_peer".to_owned(),
            direction: "outbound".to_owned(),
            stage: "routing".to_owned(),
            packets: 5 * second,
        }];
        report.queues.control_waiting = 2;
        report
    };
    app((1..=9).map(at))
}

#[test]
fn a_large_screen_shows_everything() {
    let screen = screen(&mut busy(), 130, 26);
    let text = screen.join("\n");
    assert_eq!(screen[0], "wg0  up 9 s  port 51820  MTU 1420  2 peers  by rate in", "{text}");
    assert!(screen[1].starts_with("┌ in 17.0 Mbit/s, peak 17.0 Mbit/s ─"), "{text}");
    assert!(screen[1].contains("┌ out 1.7 Mbit/s, peak 1.7 Mbit/s ─"), "{text}");
    // The chart grows to the right, and its newest value is as high as it can be.
    assert!(screen[5].contains("█│") && screen[2].contains("█│"), "{text}");
    assert_eq!(screen[7], "batches  1: 25 % 33–64: 75 %", "{text}");
    assert_eq!(
        screen[8],
        "waiting  0 B for sessions, 0 B to be encrypted, 0 batches and 2 handshakes for the socket",
        "{text}"
    );
    assert_eq!(screen[9], "drops    45, 5/s now  no_peer +5", "{text}");
    let peers = &screen[10..13];
    for (line, words) in peers.iter().zip([
        &["peer", "handshake", "in", "out", "total in", "total out", "endpoint"][..],
        &["office", "1 min 5 s", "17.0 Mbit/s", "▇█", "1.7 Mbit/s", "9.7 MiB", "192.0.2.1:51820"],
        &["phone", "none yet", "0 bit/s", "148 B", "not known"],
    ]) {
        let mut rest = line.as_str();
        for word in words {
            let at = rest.find(word).unwrap_or_else(|| panic!("{word:?} in {line:?} of:\n{text}"));
            rest = &rest[at + word.len()..];
        }
    }
    assert_eq!(screen[25], KEYS, "{text}");
}

#[test]
fn a_small_screen_shows_rates_and_peers() {
    let screen = screen(&mut busy(), 40, 9);
    let text = screen.join("\n");
    assert!(screen[1].starts_with("in   17.0 Mbit/s") && screen[1].ends_with("▁▂▃▄▅▆▇█"), "{text}");
    assert!(screen[2].starts_with("out   1.7 Mbit/s"), "{text}");
    assert!(screen.iter().any(|line| line.starts_with("office") && line.contains("17.0 Mbit/s")), "{text}");
    assert!(screen[8].starts_with("q end"), "{text}");
}

#[test]
fn no_size_of_the_screen_is_too_small() {
    let mut app = busy();
    app.take(Err(ClientError::Timeout { name: "wg0".to_owned(), seconds: 60 }));
    for width in [1, 2, 5, 19, 28, 54, 80, 200] {
        for height in 1..30 {
            let lines = screen(&mut app, width, height);
            assert_eq!(lines.len(), usize::from(height));
        }
    }
    assert_eq!(screen(&mut app, 10, 1), ["wg0  up 9"]);
    assert_eq!(screen(&mut app, 30, 3)[1], "office            17.0 Mbit/s");
}

#[test]
fn what_is_wrong_is_said_at_the_bottom() {
    let mut app = busy();
    app.take(Err(ClientError::Timeout { name: "wg0".to_owned(), seconds: 60 }));
    let screen = screen(&mut app, 100, 26);
    assert!(
        screen[24].starts_with("problem: wg0 does not answer within 60 s")
            || screen[23].starts_with("problem: "),
        "{}",
        screen.join("\n")
    );
    assert!(screen[10].starts_with("peer"), "{}", screen.join("\n"));
}

#[test]
fn the_chosen_peer_is_always_in_sight() {
    let names: Vec<String> = (0..50).map(|number| format!("peer-{number:02}")).collect();
    let peers: Vec<(&str, u64, u64)> = names.iter().map(|name| (name.as_str(), 0, 0)).collect();
    let mut app = app([report(1000, &peers)]);
    for line in (0..50).chain((0..50).rev()) {
        app.select_line(line);
        let text = screen(&mut app, 40, 12).join("\n");
        assert!(text.contains(&names[line]), "{line}:\n{text}");
    }
    // The screen became larger while the last ones were in sight: no empty lines at the end.
    app.select_line(49);
    screen(&mut app, 40, 6);
    let large = screen(&mut app, 40, 15);
    assert_eq!(large.iter().filter(|line| line.starts_with("peer-")).count(), 10, "{}", large.join("\n"));
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let colours = |is_coloured| {
        let mut app = busy();
        app.is_coloured = is_coloured;
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        terminal.draw(|frame| draw(frame, &mut app)).unwrap();
        terminal.backend().buffer().content().iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 0);
}

#[test]
fn before_the_first_report_there_is_a_name_and_the_keys() {
    let mut app = App::new("wg0", false);
    let screen = screen(&mut app, 60, 26);
    assert_eq!((screen[0].as_str(), screen[25].as_str()), ("wg0", KEYS));
}
