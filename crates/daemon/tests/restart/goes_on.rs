//! What a restart must not interrupt or forget.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::time::Instant;

use serde_json::Value;
use weft_lab::{PATIENCE, here, wait_until};

use crate::world::{World, file_of, file_of_a, file_of_b, inner, key, public};

fn peer(status: &Value) -> &Value {
    &status["peers"][0]
}

#[test]
fn streams_live_through_a_restart_and_the_interface_stays_as_it_is() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let (there, back) = (world.stream(1), world.stream(2));
    let (before, status) = (world.picture(), world.status());
    let initiations = world.initiations();
    let start = Instant::now();
    world.stop_for_restart();
    let stopped = (Instant::now(), there.bytes(), back.bytes());
    assert_eq!(world.picture(), before, "it is there, without a daemon");
    world.start();
    for stream in [&there, &back] {
        stream.goes_on();
    }
    println!(
        "from SIGTERM to streams that go on: {} ms, of these from the end of one process: {} ms",
        start.elapsed().as_millis(),
        stopped.0.elapsed().as_millis()
    );
    assert!(there.bytes() > stopped.1 && back.bytes() > stopped.2);
    assert_eq!(world.picture(), before, "number, addresses and routes of the device");
    initiations.assert_one();
    let after = world.status();
    assert_eq!(after["listen_port"], status["listen_port"]);
    assert_eq!(after["tunnel"]["handshakes"], 1);
    for counter in ["rx_bytes", "tx_bytes"] {
        let (before, after) = (peer(&status)[counter].as_u64(), peer(&after)[counter].as_u64());
        assert!(after > before && before > Some(1 << 20), "{counter}: {before:?} {after:?}");
    }
    there.end();
    back.end();
    // And once more: what was inherited is handed on.
    let again = world.stream(2);
    world.restart();
    again.end();
    assert_eq!(world.picture(), before);
    world.stop();
}

#[test]
fn what_waited_for_the_next_process_arrives_in_order() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    world.stream(1).end();
    let to = (inner(2), 9);
    let receiver = world.b.run(|| UdpSocket::bind(to)).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = world.a.run(|| UdpSocket::bind((inner(1), 0))).unwrap();
    world.stop_for_restart();
    for number in 0..100_u8 {
        sender.send_to(&[number], to).unwrap();
    }
    world.start();
    for number in 0..100 {
        let mut byte = [0];
        receiver.recv(&mut byte).expect("what waited arrives");
        assert_eq!(byte, [number]);
    }
}

#[test]
fn a_peer_that_roamed_is_greeted_where_it_is() {
    // A's endpoint for B is wrong.
    let (a, b) = (file_of(1, "", "Endpoint = 192.0.2.99:9"), file_of_b());
    let Some(mut world) = World::up(&a, &b) else { return };
    let stream = world.stream(2);
    assert_eq!(peer(&world.status())["endpoint"], "192.0.2.2:51820");
    let initiations = world.initiations();
    world.restart();
    stream.end();
    initiations.assert_one();
    assert_eq!(peer(&world.status())["endpoint"], "192.0.2.2:51820");
}

/// As a reload does it.
#[test]
fn a_peer_at_an_address_within_the_tunnel_is_looked_for_at_the_endpoint_of_the_file() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    // It would be heard from where it is.
    world.other_end.take().unwrap().stop().unwrap();
    let stray = format!("{}:9", inner(2));
    world.weft_ok(&["set", "weft0", "peer", &public(2).to_string(), "endpoint", &stray]);
    assert_eq!(peer(&world.status())["endpoint"], stray);
    world.restart();
    assert_eq!(peer(&world.status())["endpoint"], "192.0.2.2:51820");
}

#[test]
fn an_endpoint_that_was_set_lives_through_a_restart_and_a_reload_takes_it_back() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    world.other_end.take().unwrap().stop().unwrap();
    world.weft_ok(&["set", "weft0", "peer", &public(2).to_string(), "endpoint", "192.0.2.99:9"]);
    for _ in 0..2 {
        world.restart();
        assert_eq!(peer(&world.status())["endpoint"], "192.0.2.99:9");
    }
    let told = world.weft_ok(&["reload", "weft0"]);
    assert_eq!(told, format!("change endpoint of peer {}\n", public(2)));
    assert_eq!(peer(&world.status())["endpoint"], "192.0.2.2:51820");
}

#[test]
fn an_idle_peer_shows_its_last_handshake_and_is_not_disturbed() {
    let more = format!("[Peer]\nPublicKey = {}\nAllowedIPs = 10.99.0.0/24\n", public(9));
    let Some(mut world) = World::up(&(file_of_a() + &more), &file_of_b()) else { return };
    world.stream(1).end();
    let shown = world.weft_ok(&["show", "weft0", "latest-handshakes"]);
    let transfer =
        |text: &str| -> Vec<u64> { text.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let before = transfer(&world.weft_ok(&["show", "weft0", "transfer"]));
    world.restart();
    let line = |text: &str| {
        let mut words =
            text.lines().find(|line| line.contains(&public(9).to_string())).unwrap().split_whitespace();
        words.nth(1).unwrap().to_owned()
    };
    assert_eq!(line(&world.weft_ok(&["show", "weft0", "latest-handshakes"])), "0", "never was one");
    let status = wait_until("the handshake of the other one", || {
        let status = world.status();
        (status["tunnel"]["handshakes"] == 1).then_some(status)
    });
    assert!(peer(&status)["latest_handshake_ms"].is_u64());
    let after = transfer(&world.weft_ok(&["show", "weft0", "transfer"]));
    assert!(before.iter().zip(&after).all(|(before, after)| after >= before), "{before:?} {after:?}");
    assert!(shown.contains(&public(2).to_string()));
    // Without a peer to send to: only what was recorded is known.
    world.stop_for_restart();
    let daemon = world.other_end.take().unwrap();
    daemon.stop().unwrap();
    let asked = std::time::SystemTime::now();
    world.start();
    let shown = world.weft_ok(&["show", "weft0", "latest-handshakes"]);
    let key = public(2).to_string();
    let seconds = shown.lines().find(|line| line.contains(&key)).unwrap().split_whitespace().nth(1).unwrap();
    let seconds: u64 = seconds.parse().unwrap();
    let asked = asked.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((1..=asked).contains(&seconds), "{seconds}, and now it is {asked}");
}

#[test]
fn changes_that_were_made_while_it_ran_outlive_a_restart() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let added = public(5).to_string();
    world.weft_ok(&["set", "weft0", "listen-port", "51999", "peer", &added, "allowed-ips", "10.5.0.0/16"]);
    world.weft_ok(&["set", "weft0", "peer", &public(2).to_string(), "persistent-keepalive", "77"]);
    let stream = world.stream(1);
    world.restart();
    stream.end();
    let configured = world.weft_ok(&["showconf", "weft0"]);
    for line in ["ListenPort = 51999", "AllowedIPs = 10.5.0.0/16", "PersistentKeepalive = 77"] {
        assert!(configured.contains(line), "{line} in:\n{configured}");
    }
    assert!(configured.contains(&added), "{configured}");
    world.weft_ok(&["set", "weft0", "peer", &added, "remove"]);
    world.restart();
    assert!(!world.weft_ok(&["showconf", "weft0"]).contains(&added));
    // The file alone counts for a reload, and for a service that was really stopped.
    world.weft_ok(&["reload", world.file.to_str().unwrap()]);
    assert!(world.weft_ok(&["showconf", "weft0"]).contains("ListenPort = 51820"));
}

/// The answer of A's HTTP server.
fn ask(world: &World, path: &str) -> String {
    world.a.run(|| {
        let mut stream = TcpStream::connect("192.0.2.1:9586").unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 192.0.2.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
}

#[test]
fn the_file_alone_says_which_peers_are_missed() {
    let silent = public(5).to_string();
    // B has a keepalive, which makes it an expected peer. Peer 5 has nothing, and never comes.
    let file = |of_b: &str, of_silent: &str| {
        let more = format!("\n[Peer]\nPublicKey = {silent}\nAllowedIPs = 10.5.0.0/16\n{of_silent}");
        let b = format!("Endpoint = 192.0.2.2:51820\nPersistentKeepalive = 25\n{of_b}{more}");
        file_of(1, "# weft: Metrics = 192.0.2.1:9586", &b)
    };
    let (on, off) = ("# weft: Expected = on", "# weft: Expected = off");
    let Some(mut world) = World::up(&file(off, on), &file_of_b()) else { return };
    let expected = |world: &World| {
        let status = world.status();
        let mut peers = status["peers"].as_array().unwrap().iter();
        peers.find(|peer| peer["public_key"] == silent.as_str()).unwrap()["expected"].clone()
    };
    let metric = |world: &World, peer: &str| {
        let text = ask(world, "/metrics");
        let mut lines = text.lines().filter(|line| line.starts_with("weft_peer_expected{"));
        lines.find(|line| line.contains(peer)).and_then(|line| line.chars().last())
    };
    let is_missed = |world: &World| {
        assert_eq!((expected(world), metric(world, &silent)), (true.into(), Some('1')));
        assert_eq!(metric(world, &public(2).to_string()), Some('0'));
        let ready = ask(world, "/readyz");
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains(&silent[..8]), "{ready}");
    };
    is_missed(&world);

    // Whatever wg(8) does, the file stays in force.
    world.weft_ok(&["set", "weft0", "peer", &silent, "remove"]);
    world.weft_ok(&["set", "weft0", "peer", &silent, "allowed-ips", "10.5.0.0/16"]);
    is_missed(&world);
    let path = world.file.to_str().unwrap().to_owned();
    let stripped = world.weft_ok(&["strip", &path]);
    assert!(stripped.contains(on) && stripped.contains(off), "{stripped}");
    let synced = world.directory.path().join("stripped.conf");
    std::fs::write(&synced, stripped).unwrap();
    world.weft_ok(&["syncconf", "weft0", synced.to_str().unwrap()]);
    is_missed(&world);
    world.weft_ok(&["set", "weft0", "listen-port", "51999"]);
    world.weft_ok(&["save", &path]);
    let saved = world.inside(|| std::fs::read_to_string(&path).unwrap());
    assert_eq!(saved, file(off, on).replace("51820\n# weft: Metrics", "51999\n# weft: Metrics"));
    world.restart();
    is_missed(&world);

    world.write(&file("", off));
    let told = world.weft_ok(&["reload", &path]);
    assert!(told.contains(&format!("change expectation of peer {silent}")), "{told}");
    assert_eq!(expected(&world), false);
    wait_until("it is ready", || ask(&world, "/readyz").starts_with("HTTP/1.1 200").then_some(()));
    assert_eq!(metric(&world, &silent), Some('0'));
    world.write(&file("", ""));
    world.weft_ok(&["reload", &path]);
    assert_eq!(expected(&world), Value::Null);
    assert_eq!(metric(&world, &public(2).to_string()), Some('1'));
}

#[test]
fn a_key_that_only_a_command_gave_outlives_a_restart() {
    let Some(mut world) = World::up(&file_of_a(), &file_of_b()) else { return };
    let secret = world.directory.path().join("secret");
    std::fs::write(&secret, key(7).to_base64().as_bytes()).unwrap();
    world.weft_ok(&["set", "weft0", "private-key", secret.to_str().unwrap()]);
    std::fs::remove_file(&secret).unwrap();
    world.restart();
    assert_eq!(world.weft_ok(&["show", "weft0", "public-key"]).trim(), public(7).to_string());
    let log = world.log();
    assert!(!log.contains(key(7).to_base64().as_str()), "{log}");
}

#[test]
fn the_number_of_queues_may_be_another_one() {
    let Some(mut world) = World::new() else { return };
    // Several serve the queues themselves.
    world.set_packet_threads(1);
    world.start_both(&file_of_a(), &file_of_b());
    let before = world.picture();
    let stream = world.stream(2);
    for (threads, queues) in [(1, 1), (4, 4), (2, 2), (0, 8), (3, 3), (1, 1), (0, 8)] {
        world.set_tun_threads(threads);
        world.restart();
        assert_eq!(world.queues(), queues);
        let kept = world.manager.shared.names();
        let tuns = kept.iter().filter(|name| name.starts_with("tun-weft0-")).count();
        assert_eq!(u64::try_from(tuns).unwrap(), queues, "{kept:?}");
        stream.goes_on();
        world.stream(1).end();
    }
    stream.end();
    assert_eq!(world.picture(), before);
}

#[test]
fn the_number_of_packet_threads_may_be_another_one() {
    let Some(mut world) = World::new() else { return };
    world.set_packet_threads(1);
    world.start_both(&file_of_a(), &file_of_b());
    if weft_udp::MAX_SHARDS == 1 {
        return here::not_run("several packet threads: this build has one");
    }
    let before = world.picture();
    let stream = world.stream(2);
    for (packet_threads, queues, sockets) in [(3, 9, 8), (2, 8, 6), (4, 8, 10), (1, 8, 4)] {
        world.set_packet_threads(packet_threads);
        world.restart();
        assert_eq!(world.queues(), queues);
        let status = world.status();
        assert_eq!(status["packet_threads"].as_array().unwrap().len(), usize::from(packet_threads));
        assert_eq!(status["udp"]["steered"], true);
        let kept = world.manager.shared.names();
        let count = |prefix: &str| kept.iter().filter(|name| name.starts_with(prefix)).count();
        // Sockets of packet threads that no longer run stay in the store, for a later start.
        assert!(count("udp4-weft0") >= sockets && count("udp6-weft0") >= sockets, "{kept:?}");
        assert_eq!(count("tun-weft0-") as u64, queues, "{kept:?}");
        stream.goes_on();
        world.stream(1).end();
    }
    stream.end();
    assert_eq!(world.picture(), before);
}
