use ratatui::Terminal;
use ratatui::backend::TestBackend;
use weft_report::control_socket::ClientError;
use weft_report::{DropReport, LimitReport, PacketThreadReport, TunQueueReport};

use super::super::app::tests::{app, press, report};
use super::*;

/// Draws a screen of this size, and returns its lines without trailing spaces.
fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content().chunks(usize::from(width).max(1));
    cells
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

/// Returns a view with two peers; the first has a growing rate of about a megabyte per second.
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
    assert_eq!(screen[0], "wg0  up 9 s  2 peers  by rate in  port 51820  MTU 1420", "{text}");
    assert!(screen[1].starts_with("┌ in 17.0 Mbit/s, peak 17.0 Mbit/s ─"), "{text}");
    assert!(screen[1].contains("┌ out 1.7 Mbit/s, peak 1.7 Mbit/s ─"), "{text}");
    // The newest value is at the right, at full height.
    assert!(screen[5].contains("█│") && screen[2].contains("█│"), "{text}");
    assert_eq!(screen[10], "batches  1: 25 % 33–64: 75 %", "{text}");
    assert_eq!(
        screen[11], "waiting  0 B for sessions, 0 B to encrypt, 0 batches and 2 handshakes to send",
        "{text}"
    );
    assert_eq!(screen[12], "drops    45, 5/s now  no_peer +5", "{text}");
    let peers = &screen[7..10];
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
    assert_eq!(screen[25], KEYS.join("  "), "{text}");
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

/// Returns a view with two peers and `count` queues; each queue moves one share more than the previous queue.
fn with_queues(count: u64) -> App {
    let at = |second: u64| {
        let mut report = report(1000 * second, &[("office", 1000 * second, 100 * second), ("phone", 0, 148)]);
        let queue = |number: u64| TunQueueReport {
            bytes_read: 12_500 * number * second,
            bytes_written: 125_000 * number * second,
            ..TunQueueReport::default()
        };
        report.tun.queues = (0..count).map(queue).collect();
        report
    };
    app((1..=20).map(at))
}

#[test]
fn the_queues_stand_below_the_peers_where_there_are_several() {
    for (width, height) in [(80, 24), (160, 50)] {
        let screen = screen(&mut with_queues(3), width, height);
        let text = screen.join("\n");
        println!("{text}");
        let header = screen.iter().position(|line| line.starts_with("queue ")).unwrap();
        assert!(screen[header + 1].starts_with("queue 0      0 bit/s"), "{text}");
        assert!(
            screen[header + 2].starts_with("queue 1      1.0 Mbit/s   ") && screen[header + 2].contains('▄'),
            "{text}"
        );
        assert!(screen[header + 3].starts_with("queue 2      2.0 Mbit/s   "), "{text}");
        assert!(screen[header + 3].contains("200.0 kbit/s") && screen[header + 3].ends_with("██"), "{text}");
        assert!(
            screen[header - 6].starts_with("peer ") && screen[header - 5].starts_with("office"),
            "{text}"
        );
        assert_eq!(*screen.last().unwrap(), KEYS.join("  "), "{text}");
    }
    for queues in [0, 1] {
        let text = screen(&mut with_queues(queues), 80, 24).join("\n");
        assert!(!text.contains("queue"), "{text}");
    }
}

#[test]
fn queues_leave_room_for_the_peers_and_say_how_many_are_out_of_sight() {
    let lines = screen(&mut with_queues(40), 80, 24);
    let text = lines.join("\n");
    let last = lines.iter().position(|line| line.starts_with("and ")).unwrap();
    let shown = lines.iter().filter(|line| line.starts_with("queue ") && !line.contains(" in ")).count();
    assert_eq!(lines[last], format!("and {} more", 40 - shown), "{text}");
    assert!(lines[7].starts_with("peer ") && lines[9].starts_with("phone"), "{text}");
    // A small screen shows rates and peers only.
    let text = screen(&mut with_queues(40), 40, 12).join("\n");
    assert!(!text.contains("queue") && text.contains("phone"), "{text}");
}

/// Returns a view with two queues and `count` packet threads: the first was busy for a quarter of the time,
/// the others for all of it. It shows two peers: the second is served by the last thread.
fn with_threads(count: u64) -> App {
    let at = |second: u64| {
        let mut report = report(1000 * second, &[("office", 1000 * second, 100 * second), ("phone", 0, 148)]);
        let thread = |number: u64| PacketThreadReport {
            peers: 12 + number as usize,
            busy_ns: second * if number == 0 { 250_000_000 } else { 1_000_000_000 },
            ..PacketThreadReport::default()
        };
        report.packet_threads = (0..count).map(thread).collect();
        report.peers[0].packet_thread = Some(0);
        report.peers[1].packet_thread = count.checked_sub(1).map(|last| last as usize);
        report.tun.queues = vec![TunQueueReport::default(); 2];
        report
    };
    app((1..=20).map(at))
}

#[test]
fn the_packet_threads_stand_above_the_queues_where_there_are_several() {
    for (width, height) in [(80, 24), (160, 50)] {
        let screen = screen(&mut with_threads(2), width, height);
        let text = screen.join("\n");
        println!("{text}");
        let header = screen.iter().position(|line| line.starts_with("thread ")).unwrap();
        assert_eq!(screen[header], "thread       peers  busy", "{text}");
        assert!(screen[header + 1].starts_with("thread 0     12     25 %  "), "{text}");
        assert!(screen[header + 1].ends_with("▂▂▂"), "{text}");
        assert!(screen[header + 2].starts_with("thread 1     13     100 % "), "{text}");
        assert!(screen[header + 2].ends_with("███"), "{text}");
        assert!(
            screen[header + 3].starts_with("queue ") && screen[header + 4].starts_with("queue 0"),
            "{text}"
        );
        assert!(screen[header - 6].starts_with("peer ") && screen[header - 4].starts_with("phone"), "{text}");
        assert_eq!(*screen.last().unwrap(), KEYS.join("  "), "{text}");
    }
    for threads in [0, 1] {
        let text = screen(&mut with_threads(threads), 160, 50).join("\n");
        assert!(!text.contains("thread"), "{text}");
    }
}

#[test]
fn packet_threads_leave_room_for_the_peers() {
    let lines = screen(&mut with_threads(40), 80, 24);
    let text = lines.join("\n");
    let last = lines.iter().position(|line| line.starts_with("and ")).unwrap();
    let shown = lines.iter().filter(|line| line.starts_with("thread ") && line.contains('%')).count();
    assert_eq!(lines[last], format!("and {} more", 40 - shown), "{text}");
    assert!(lines[7].starts_with("peer ") && lines[9].starts_with("phone"), "{text}");
    let text = screen(&mut with_threads(40), 40, 12).join("\n");
    assert!(!text.contains("thread") && text.contains("phone"), "{text}");
}

#[test]
fn the_packet_thread_of_each_peer_is_shown_where_there_is_room() {
    for (width, is_shown, has_totals) in
        [(87, false, false), (88, true, false), (110, true, false), (111, true, true), (170, true, true)]
    {
        let screen = screen(&mut with_threads(2), width, 40);
        let text = screen.join("\n");
        let header = screen.iter().position(|line| line.starts_with("peer ")).unwrap();
        assert_eq!(screen[header].contains("total in"), has_totals, "{text}");
        let Some(column) = screen[header].find("thread") else {
            assert!(!is_shown, "{text}");
            continue;
        };
        assert!(is_shown, "{text}");
        let number = |line: usize| screen[line].chars().nth(column);
        assert_eq!([number(header + 1), number(header + 2)], [Some('0'), Some('1')], "{text}");
        // The name has room.
        assert!(column > 12 + 13, "{text}");
    }
}

/// Returns the view of `busy` with a limit of 20 Mbit/s from the office, and of 2.5 Gbit/s to the phone.
fn limited() -> App {
    let mut app = busy();
    let peers = &mut app.report.as_mut().unwrap().peers;
    let limit = |bits_per_second| Some(LimitReport { bits_per_second, dropped_packets: 0 });
    peers[0].limit_from_peer = limit(20_000_000);
    peers[1].limit_to_peer = limit(2_500_000_000);
    app
}

#[test]
fn a_limit_stands_beside_its_rate_where_there_is_one() {
    for (width, has_history, has_totals) in
        [(80, false, false), (106, true, false), (130, true, true), (170, true, true)]
    {
        let screen = screen(&mut limited(), width, 26);
        let text = screen.join("\n");
        let header = screen[7].as_str();
        assert_eq!(header.matches("limit").count(), 2, "{text}");
        let (limit_in, limit_out) = (header.find("limit").unwrap(), header.rfind("limit").unwrap());
        let (rate_in, rate_out) = (header.find(" in ").unwrap() + 1, header.find(" out ").unwrap() + 1);
        assert!(rate_in < limit_in && limit_in < rate_out && rate_out < limit_out, "{text}");
        let at = |line: usize, column: usize| -> String {
            screen[line].chars().skip(column).take(12).collect::<String>().trim().to_owned()
        };
        for (line, expected) in [
            (8, ["17.0 Mbit/s", "20.0 Mbit/s", "1.7 Mbit/s", ""]),
            (9, ["0 bit/s", "", "0 bit/s", "2.5 Gbit/s"]),
        ] {
            assert_eq!(
                [rate_in, limit_in, rate_out, limit_out].map(|column| at(line, column)),
                expected,
                "{text}"
            );
        }
        assert_eq!(screen[8].contains('█'), has_history, "{text}");
        assert_eq!(header.contains("total out"), has_totals, "{text}");
    }
    let narrow = screen(&mut limited(), 79, 26).join("\n");
    assert!(narrow.contains("17.0 Mbit/s") && !narrow.contains("limit"), "{narrow}");
    let unlimited = screen(&mut busy(), 200, 26).join("\n");
    assert!(!unlimited.contains("limit"), "{unlimited}");
}

#[test]
fn no_size_of_the_screen_is_too_small() {
    for mut app in [with_queues(9), with_threads(9)] {
        for (width, height) in [(1, 60), (9, 50), (28, 40), (44, 31), (80, 21)] {
            assert_eq!(screen(&mut app, width, height).len(), usize::from(height));
        }
    }
    let mut app = busy();
    app.take(Err(ClientError::Timeout { name: "wg0".to_owned(), seconds: 60, process: String::new() }));
    let mut limited = limited();
    for width in [1, 2, 5, 19, 28, 54, 80, 106, 200] {
        for height in 1..30 {
            assert_eq!(screen(&mut limited, width, height).len(), usize::from(height));
            let lines = screen(&mut app, width, height);
            assert_eq!(lines.len(), usize::from(height));
        }
    }
    assert_eq!(screen(&mut app, 10, 1), ["wg0"]);
    assert_eq!(screen(&mut app, 12, 1), ["wg0  up 9 s"]);
    assert_eq!(screen(&mut app, 30, 3)[1], "office            17.0 Mbit/s");
}

#[test]
fn narrow_screens_cut_no_line() {
    let mut app = busy();
    let queues = &mut app.report.as_mut().unwrap().queues;
    (queues.staged_bytes, queues.read_ahead_bytes) = (12_345_678, 123_456);
    let waiting = "waiting 11.8 MiB for sessions, 120.6 KiB to encrypt, 0 batches and 2 handshakes to send";
    for (width, in_title) in [(40, "2 peers"), (60, "by rate in")] {
        let lines = screen(&mut app, width, 26);
        let text = lines.join("\n");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(waiting), "{text}");
        assert!(lines[0].ends_with(in_title) || lines[0].contains(&format!("{in_title}  ")), "{text}");
        assert!(lines[1].contains(" in 17.0 Mbit/s ─") && lines[1].contains(" out 1.7 Mbit/s "), "{text}");
        assert!(KEYS.iter().any(|key| lines[25].ends_with(key)), "{text}");
    }
    press(&mut app, "?");
    let text = screen(&mut app, 40, 26).join("\n");
    let has = |key: &str| text.lines().any(|line| line.trim() == key);
    assert!(
        has("/          find peers") && has("j k, arrows  choose a peer") && has("p            pause"),
        "{text}"
    );
    press(&mut app, "⎋⏎");
    let endpoint = "[2001:db8:1111:2222:3333:4444:5555:6666]:51820";
    app.report.as_mut().unwrap().peers[0].endpoint = Some(endpoint.to_owned());
    let lines = screen(&mut app, 40, 26);
    assert!(lines.iter().map(|line| line.trim()).collect::<String>().contains(endpoint), "{lines:#?}");
}

#[test]
fn what_is_wrong_is_said_at_the_bottom() {
    let mut app = busy();
    app.take(Err(ClientError::Timeout { name: "wg0".to_owned(), seconds: 60, process: String::new() }));
    let screen = screen(&mut app, 100, 26);
    assert!(
        screen[24].starts_with("problem: wg0 does not answer within 60 s")
            || screen[23].starts_with("problem: "),
        "{}",
        screen.join("\n")
    );
    assert!(screen[7].starts_with("peer"), "{}", screen.join("\n"));
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
    // If the screen grows while the last peers are visible, there are no empty lines at the end.
    app.select_line(49);
    screen(&mut app, 40, 6);
    let large = screen(&mut app, 40, 15);
    assert_eq!(large.iter().filter(|line| line.starts_with("peer-")).count(), 9, "{}", large.join("\n"));
    assert!(large.iter().any(|line| line.starts_with("and 41 more peers")), "{}", large.join("\n"));
}

#[test]
fn peers_come_before_queues_by_name_and_those_out_of_sight_are_counted() {
    for (peers, shown, below) in
        [(11, 11, "queues   8, "), (12, 12, "q end  ? keys"), (13, 11, "and 2 more peers: ")]
    {
        let names: Vec<String> = (0..peers).map(|number| format!("peer-{number:02}")).collect();
        let peers: Vec<(&str, u64, u64)> = names.iter().rev().map(|name| (name.as_str(), 0, 0)).collect();
        let mut report = report(1000, &peers);
        report.tun.queues = vec![TunQueueReport::default(); 8];
        let lines = screen(&mut app([report]), 80, 24);
        let text = lines.join("\n");
        let found: Vec<&str> =
            lines.iter().filter_map(|line| line.get(..7).filter(|_| line.starts_with("peer-"))).collect();
        assert_eq!(found, names[..shown], "{text}");
        assert!(lines.iter().any(|line| line.starts_with(below)), "{text}");
    }
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
    assert_eq!((screen[0].as_str(), screen[25].as_str()), ("wg0", &*KEYS.join("  ")));
}

#[test]
fn one_peer_the_keys_and_a_filter_take_the_place_of_the_peers() {
    let mut app = busy();
    app.report.as_mut().unwrap().peers[1].settings.expires = Some("2999-01-01".parse().unwrap());
    let text = screen(&mut app, 100, 26).join("\n");
    assert!(text.contains("ends") && text.contains("in 35"), "{text}");
    press(&mut app, "/PHO");
    let lines = screen(&mut app, 100, 26);
    assert!(lines[25].starts_with("/PHO") && lines[0].contains("1 of 2 peers"), "{lines:#?}");
    assert!(lines[8].starts_with("phone") && !lines.join("\n").contains("office"), "{lines:#?}");
    // A letter is one of the filter; afterwards it is a key again.
    press(&mut app, "q⏎⏎");
    assert!(screen(&mut app, 100, 26)[0].contains("0 of 2 peers"));
    press(&mut app, "⎋/pho⏎⏎");
    let lines = screen(&mut app, 100, 26);
    let text = lines.join("\n");
    assert!(lines[0].starts_with("wg0  phone"), "{text}");
    for part in ["public key", "KEY-OF-phone", "2999-01-01T23:59:59Z", "Esc back"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("batches"), "{text}");
    press(&mut app, "?");
    let text = screen(&mut app, 100, 26).join("\n");
    assert!(text.contains("Enter      that peer alone"), "{text}");
    assert!(!press(&mut app, "⎋") && !press(&mut app, "⎋") && press(&mut app, "⎋"));
    assert!(screen(&mut app, 100, 26)[0].contains("  2 peers"));
}
