//! `weft status`, `weft top` and `weft doctor` with interfaces that really run.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use serde_json::Value;
use weft_lab::{PATIENCE, until, wait_until};

use crate::support::{
    Conf, End, Ends, Family, NAME, PORT, PeerConf, Pty, Running, answers, links_of, weft, weft_up,
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn checks(findings: &Value) -> Vec<(&str, &str)> {
    let findings = findings.as_array().unwrap();
    findings.iter().map(|f| (f["check"].as_str().unwrap(), f["level"].as_str().unwrap())).collect()
}

#[test]
fn status_tells_what_a_tunnel_does_and_that_none_runs() {
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf_a, conf_b) = Conf::pair(Family::V4);
    conf_a.peers[0].persistent_keepalive = Some(25);
    let (a, b) = (Running::up(&ends.a, &conf_a, &[]), Running::up(&ends.b, &conf_b, &[]));
    assert!(answers(&ends.a, End::B.inner(Family::V4)));

    let status = a.status("0.1");
    assert_eq!(status["interface"], NAME);
    assert_eq!(status["pid"], a.pid());
    assert_eq!(status["public_key"], conf_a.private_key.public_key().to_string());
    assert_eq!((&status["listen_port"], &status["mtu"]), (&Value::from(PORT), &Value::from(1420)));
    assert_eq!(
        (&status["udp"]["gso"], &status["tun"]["tcp_offload"]),
        (&Value::Bool(true), &Value::Bool(weft_tun::SUPER_PACKETS))
    );
    assert_eq!(status["addresses"].as_array().unwrap().len(), 2);
    let peer = &status["peers"][0];
    assert_eq!(peer["public_key"], conf_b.private_key.public_key().to_string());
    assert_eq!(peer["endpoint"], SocketAddr::new(End::B.outer(Family::V4), PORT).to_string());
    assert!(peer["latest_handshake_ms"].as_u64().unwrap() < 60_000, "{peer}");
    assert_eq!((&peer["persistent_keepalive"], &peer["is_trying"]), (&Value::from(25), &Value::Bool(false)));
    // Handshakes, data and keepalives, as the sockets have counted them.
    assert!(peer["rx_bytes"].as_u64().unwrap() > 148 && peer["tx_bytes"].as_u64().unwrap() > 148, "{peer}");
    assert_eq!(peer["tx_bytes"], status["udp"]["bytes_sent"]);
    assert_eq!(peer["allowed_ips"].as_array().unwrap().len(), 2);
    assert!(peer["rates"].is_object() && status["recent"]["window_ms"].as_u64().unwrap() >= 100, "{status}");
    let bad = checks(&status["findings"]).into_iter().find(|(_, level)| *level == "problem");
    assert_eq!(bad, None, "{status}");

    // All that run, for people; without a terminal there are no colours.
    let output = a.weft(&["status", "-v", "--sample", "0"]);
    let shown = text(&output.stdout);
    assert!(output.status.success() && !shown.contains('\x1b'), "{output:?}");
    for part in [NAME, "51820", "1420", &conf_b.private_key.public_key().to_string(), "10.77.0.2/32"] {
        assert!(shown.contains(part), "{part} in:\n{shown}");
    }
    assert!(!shown.contains(&*conf_a.private_key.to_base64()));
    // One peer, by its key.
    let key = conf_b.private_key.public_key().to_string();
    let shown = text(&a.weft(&["status", NAME, &key[..12]]).stdout);
    assert!(shown.contains(&key) && shown.contains("10.77.0.2/32") && !shown.contains("1420"), "{shown}");
    let unknown = a.weft(&["status", NAME, "laptop"]);
    assert!(unknown.status.code() == Some(1) && text(&unknown.stderr).contains("laptop"), "{unknown:?}");

    let (_, directory) = a.stop();
    b.stop();
    let none = weft(directory.path(), &["status"]).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("no interface is running"), "{none:?}");
    let named = weft(directory.path(), &["status", NAME]).output().unwrap();
    assert_eq!(named.status.code(), Some(1));
    assert!(text(&named.stderr).contains("weft0 is not running"), "{named:?}");
}

#[test]
fn a_host_on_which_no_program_has_the_port_is_told_from_one_that_is_silent() {
    let Some(ends) = Ends::new(1500) else { return };
    for family in [Family::V4, Family::V6] {
        let (mut conf, _) = Conf::pair(family);
        // The first handshakes begin by themselves.
        conf.peers[0].persistent_keepalive = Some(1);
        let a = Running::up(&ends.a, &conf, &[]);
        let says = || {
            let status = a.status("0");
            let findings = status["findings"].as_array().unwrap().clone();
            let of_peer = findings.iter().find(|finding| finding["check"] == "no_handshake");
            of_peer.map(|finding| finding["says"].as_str().unwrap().to_owned()).unwrap_or_default()
        };
        until("ICMP is heard", || {
            says().contains("no program listens on this UDP port (ICMP port unreachable)")
        });
        let words = "the peer does not answer: its host answers that no program";
        until("it is in the log", || a.log().contains(words));
        a.stop();
    }
}

#[test]
fn status_tells_what_each_queue_moves() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let directory = tempfile::tempdir().unwrap();
    let mut command = weft_up(&ends.a, &conf_a.write(directory.path(), NAME));
    // Several packet threads have no threads of the TUN beside them.
    command.args(["--tun-threads", "2"]).env_remove("WEFT_PACKET_THREADS");
    let a = Running::start(&ends.a, command, directory);
    let b = Running::up(&ends.b, &conf_b, &[]);
    for _ in 0..20 {
        assert!(answers(&ends.a, End::B.inner(Family::V4)));
    }
    let mut status = a.status("0.1");
    let tun = status["tun"].take();
    // Nothing is counted twice.
    assert_eq!(tun["segments_written"], status["tunnel"]["opened"], "{tun} {status}");
    let queues = tun["queues"].as_array().unwrap();
    assert_eq!(queues.len(), 2.min(weft_tun::MAX_QUEUES), "{tun}");
    for counter in [
        "packets_read",
        "segments_read",
        "bytes_read",
        "packets_written",
        "segments_written",
        "bytes_written",
    ] {
        let number = |value: &Value| value[counter].as_u64().unwrap();
        assert_eq!(queues.iter().map(number).sum::<u64>(), number(&tun), "{counter} in {tun}");
        // By chance all of twenty connections may be in one queue, once in half a million times.
        assert!(queues.iter().all(|queue| number(queue) > 0), "{counter} in {tun}");
    }
    assert!(queues.iter().all(|queue| queue["rates"].is_object()), "{tun}");
    let shown = text(&a.weft(&["status", "-v", "--sample", "0"]).stdout);
    // The table of the queues is shown if there are several.
    assert_eq!(shown.contains("packets a write"), weft_tun::MAX_QUEUES > 1, "{shown}");
    a.stop();
    b.stop();
}

#[test]
fn status_says_why_nothing_comes_through() {
    let Some(ends) = Ends::new(1500) else { return };
    let mut conf = Conf::new();
    conf.listen_port = Some(PORT);
    conf.peers.push(PeerConf {
        endpoint: Some("203.0.113.1:51820".parse().unwrap()),
        allowed_ips: vec!["10.9.0.0/24".to_owned()],
        persistent_keepalive: Some(1),
        ..PeerConf::new(Conf::new().private_key.public_key())
    });
    let a = Running::up(&ends.a, &conf, &[]);
    let status = wait_until("a word on the missing route", || {
        let status = a.status("0.1");
        checks(&status["findings"]).contains(&("no_route", "problem")).then_some(status)
    });
    // Besides what the kernel itself sends into a new interface (router solicitations), which belongs to no
    // peer.
    let drops = status["drops"].as_array().unwrap();
    assert!(drops.iter().any(|d| d["reason"] == "udp_send_failed" && d["stage"] == "udp"), "{drops:?}");
    let output = a.weft(&["status", NAME]);
    assert!(text(&output.stdout).contains("ip route get 203.0.113.1"), "{output:?}");
    a.stop();
}

#[test]
fn an_interface_that_is_stopped_over_its_socket_is_gone_when_the_connection_ends() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf, _) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf, &[]);
    let mut stream = UnixStream::connect(a.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"{\"version\":1,\"request\":\"stop\"}\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "{\"version\":1,\"ok\":{}}\n");
    assert!(links_of(&ends.a).iter().all(|(name, ..)| name != NAME));
    assert!(!a.socket().exists());
    assert_eq!(a.wait().0.code, Some(0));
}

#[test]
fn the_socket_of_a_killed_daemon_is_no_interface_and_in_no_way() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf, _) = Conf::pair(Family::V4);
    let killed = Running::up(&ends.a, &conf, &[]);
    let socket = killed.socket();
    killed.signal(Signal::SIGKILL);
    let (_, directory) = killed.wait();
    assert!(socket.exists());
    assert_eq!(weft(directory.path(), &["status"]).output().unwrap().status.code(), Some(1));
    let command = weft_up(&ends.a, &conf.write(directory.path(), NAME));
    let again = Running::start(&ends.a, command, directory);
    until("the new daemon to answer", || again.weft(&["status", "--sample", "0"]).status.success());
    assert!(!again.stop().0.stderr.contains("no control socket"));
    assert!(!socket.exists());
}

#[test]
fn top_shows_a_running_interface_in_a_terminal_and_gives_it_back() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let (a, b) = (Running::up(&ends.a, &conf_a, &[]), Running::up(&ends.b, &conf_b, &[]));
    assert!(answers(&ends.a, End::B.inner(Family::V4)));
    let peer = conf_b.private_key.public_key().to_string();
    let leave = "\x1b[?1049l";
    type Ending = fn(&mut Pty);
    let endings: [Ending; 4] = [
        |top| top.press("jkni\x1b[Bq"),
        |top| top.press("\x03"),
        |top| top.signal(Signal::SIGTERM),
        |top| top.signal(Signal::SIGINT),
    ];
    for ending in endings {
        let mut top = Pty::spawn(weft(a.directory(), &["top", "--interval", "0.1"]), 100, 30);
        top.wait_for(&peer[..10], 0);
        assert!(top.output().contains("51820") && top.output().contains("\x1b[?1049h"), "{}", top.output());
        assert!(!top.is_restored());
        let so_far = top.output().len();
        top.resize(30, 6);
        top.wait_for(NAME, so_far);
        ending(&mut top);
        assert!(top.wait().success(), "{}", top.output());
        top.wait_for(leave, 0);
        assert!(top.is_restored());
    }
    // The daemon goes away, and is waited for.
    let mut top = Pty::spawn(weft(a.directory(), &["top", NAME, "--interval", "0.1"]), 100, 30);
    top.wait_for(&peer[..10], 0);
    let so_far = top.output().len();
    let (_, directory) = a.stop();
    // A word at a time: what the line had before is not drawn again.
    top.wait_for("running", so_far);
    top.press("q");
    assert!(top.wait().success());
    let gone = weft(directory.path(), &["top", NAME]);
    let mut top = Pty::spawn(gone, 80, 24);
    assert_eq!(top.wait().code(), Some(1));
    assert!(top.is_restored() && !top.output().contains("\x1b[?1049h"), "{}", top.output());
    b.stop();
}

#[test]
fn doctor_names_what_stands_in_the_way_of_a_configuration() {
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf, _) = Conf::pair(Family::V4);
    conf.mtu = Some(1440);
    let a = Running::up(&ends.a, &conf, &[]);
    // A second configuration, of another interface with the same port.
    let file = conf.write(a.directory(), "weft1");
    let directory = a.directory().to_owned();
    let doctor = |target: &str| {
        let mut command = ends.a.command(env!("CARGO_BIN_EXE_weft"));
        command.args(["doctor", target, "--json"]).env_remove("RUST_LOG");
        command.env("WEFT_RUNTIME_DIR", &directory);
        let output = ends.a.run(|| command.output().unwrap());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code(), report)
    };
    let (code, report) = doctor(file.to_str().unwrap());
    assert_eq!(code, Some(1), "{report}");
    let found = checks(&report["findings"]);
    for expected in [
        ("tun_device", "ok"),
        ("net_admin", "ok"),
        ("interface", "ok"),
        ("port", "problem"),
        ("route", "warning"),
    ] {
        assert!(found.contains(&expected), "{expected:?} in {report:#}");
    }
    for check in ["tun_offload", "udp_buffers", "udp_offload", "kernel", "wireguard_module", "clock"] {
        assert!(found.iter().any(|(name, _)| *name == check), "{check} in {report:#}");
    }
    // Its own interface and port are no conflict.
    let own = directory.join(format!("{NAME}.conf"));
    let (_, report) = doctor(own.to_str().unwrap());
    let found = checks(&report["findings"]);
    assert!(found.contains(&("interface", "ok")) && !found.contains(&("port", "problem")), "{report:#}");
    let _stopped = a.stop();

    // An interface of another program with that name, and an endpoint without a route.
    let _busy = ends.a.run(|| UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    conf.peers[0].endpoint = Some("203.0.113.1:51820".parse().unwrap());
    let file = conf.write(&directory, "eth0");
    let (code, report) = doctor(file.to_str().unwrap());
    assert_eq!(code, Some(1), "{report}");
    let found = checks(&report["findings"]);
    for expected in [("interface", "problem"), ("port", "problem"), ("route", "problem")] {
        assert!(found.contains(&expected), "{expected:?} in {report:#}");
    }
}
