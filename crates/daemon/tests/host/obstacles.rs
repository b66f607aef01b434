//! Obstacles to a start on this machine: `check`, `doctor` and `up --dry-run` know them before, and say what
//! the start says, which sends nothing then.

use std::path::PathBuf;

use crate::support::{End, Ended, NAME, Network, peer};

struct Machine {
    network: Network,
    ends: [End; 2],
}

impl Machine {
    fn new() -> Option<Self> {
        Some(Self { network: Network::new()?, ends: [End::new(1), End::new(2)] })
    }

    fn file(&self, name: &str, lines: &str, peer_lines: &str) -> PathBuf {
        let [lines, peer_lines] = [lines, peer_lines].map(|lines| lines.replace(';', "\n"));
        let text = self.ends[0].interface(&lines) + &peer(self.ends[1].public(), &peer_lines);
        self.network.file(&format!("{name}.conf"), &text)
    }

    fn run(&self, script: &str) {
        let status = self.network.client.command("sh").args(["-ec", script]).status().unwrap();
        assert!(status.success(), "{script}");
    }

    /// Compares what `check`, `doctor` and `up --dry-run` say with how the start ends.
    #[track_caller]
    fn compare(&self, case: (&str, &str, &str, &str)) {
        self.compare_where("true", case);
    }

    /// The same where a script has changed the files that are there.
    #[track_caller]
    fn compare_where(&self, script: &str, (name, lines, peer_lines, expected): (&str, &str, &str, &str)) {
        let file = self.file(name, lines, peer_lines);
        let path = file.to_str().unwrap();
        let case = format!("{name}: {lines} {peer_lines} {script}");
        let weft = |arguments: &[&str]| {
            let mut command = self.network.command("unshare");
            let script = format!("{script}; exec \"$0\" \"$@\"");
            command.args(["--mount", "sh", "-ec", &script]).arg(env!("CARGO_BIN_EXE_weft")).args(arguments);
            command
        };
        let run = |arguments: &[&str]| Ended::from(weft(arguments).output().unwrap());
        let (check, doctor) = (run(&["check", path]), run(&["doctor", path]));
        let (json, dry) = (run(&["check", path, "--json"]), run(&["up", "--dry-run", path]));
        let mut up = weft(&["up", path]);
        up.env("WG_ENDPOINT_RESOLUTION_RETRIES", "0");
        if let Some(warned) = expected.strip_prefix("warns: ") {
            let daemon = self.network.start(up);
            assert!(daemon.log().contains(warned), "{case}: {}", daemon.log());
            daemon.stop();
            for before in [&check, &dry] {
                assert!(before.code == Some(0) && before.stderr.contains(warned), "{case}: {before:?}");
            }
            let doctor = doctor.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(doctor.contains(warned) && !doctor.contains("problem nft"), "{case}: {doctor}");
            let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
            assert!(json["warnings"].to_string().contains(warned), "{case}: {json}");
            return;
        }
        if expected.is_empty() {
            assert_eq!(check.code, Some(0), "{case}: {check:?}");
            assert_eq!((json.code, dry.code), (Some(0), Some(0)), "{case}: {json:?} {dry:?}");
            self.network.start(up).stop();
        } else {
            let up = up.output().unwrap();
            let start = String::from_utf8(up.stderr).unwrap();
            assert!(
                matches!(up.status.code(), Some(1 | 77 | 78)) && start.contains(expected),
                "{case}: {start}"
            );
            for before in [&check, &dry] {
                assert_eq!(before.code, up.status.code(), "{case}: {before:?}");
                assert!(before.stderr.contains(expected), "{case}: {before:?}");
            }
            assert!(doctor.stdout.contains(expected) && doctor.code == Some(1), "{case}: {doctor:?}");
            let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
            assert_eq!(
                (&json["ok"], json["errors"].as_array().unwrap().len()),
                (&false.into(), 1),
                "{case}: {json}"
            );
        }
        std::fs::remove_file(&file).unwrap();
    }
}

/// A program that has port 7777 of UDP and port 7778 of TCP in the client.
fn in_the_way(machine: &Machine) -> (std::net::UdpSocket, std::net::TcpListener) {
    machine.network.client.run(|| {
        let udp = std::net::UdpSocket::bind("0.0.0.0:7777").unwrap();
        (udp, std::net::TcpListener::bind("127.0.0.1:7778").unwrap())
    })
}

#[test]
fn what_a_start_fails_of_is_known_to_check_and_doctor() {
    let Some(machine) = Machine::new() else { return };
    let _program = in_the_way(&machine);
    machine.run(
        "ip tuntap add tun9 mode tun; ip route add 10.40.0.0/16 dev eth0; ip route add 10.41.0.0/16 dev eth0 metric 7; \
         ip route add blackhole 10.42.0.0/16; ip route add fd40::/64 dev eth0; ip route add fd41::/64 dev eth0 metric 7; \
         ip route add default dev eth0 table 77; ip route add 10.43.0.0/16 dev eth0 table 78; \
         ip route add 10.44.0.0/16 nexthop via 192.0.2.2 nexthop via 192.0.2.3",
    );
    #[rustfmt::skip]
    let cases = [
        // the name, lines of [Interface], lines of [Peer], what is in the way (none: it comes up)
        (NAME, "", "AllowedIPs = 10.88.0.0/16", ""),
        // Routes.
        (NAME, "", "AllowedIPs = 192.0.2.0/24", "192.0.2.0/24 is already routed through eth0; remove"),
        (NAME, "", "AllowedIPs = 10.40.0.0/16", "10.40.0.0/16 is already routed through eth0"),
        (NAME, "", "AllowedIPs = 10.40.0.0/17", ""),
        (NAME, "", "AllowedIPs = 10.41.0.0/16", ""),
        (NAME, "", "AllowedIPs = 10.42.0.0/16", "10.42.0.0/16 is already routed to nowhere (blackhole)"),
        (NAME, "", "AllowedIPs = 10.44.0.0/16", "10.44.0.0/16 is already routed through eth0"),
        (NAME, "", "AllowedIPs = 2001:db8::/64", ""),
        (NAME, "", "AllowedIPs = fd40::/64", "fd40::/64 is already routed through eth0"),
        (NAME, "", "AllowedIPs = fd41::/64", ""),
        (NAME, "", "AllowedIPs = 0.0.0.0/0", ""),
        (NAME, "FwMark = 77", "AllowedIPs = 0.0.0.0/0", "dev weft0 table 77: 0.0.0.0/0 is already routed through eth0"),
        (NAME, "Table = 77", "AllowedIPs = 0.0.0.0/0", "dev weft0 table 77: 0.0.0.0/0 is already routed through eth0"),
        (NAME, "Table = main", "AllowedIPs = 0.0.0.0/0", "0.0.0.0/0 is already routed through eth0"),
        (NAME, "Table = 78", "AllowedIPs = 10.43.0.0/16", "10.43.0.0/16 is already routed through eth0"),
        (NAME, "Table = 79", "AllowedIPs = 192.0.2.0/24", ""),
        (NAME, "Table = off", "AllowedIPs = 192.0.2.0/24", ""),
        (NAME, "PreUp = ip route del 10.40.0.0/16;PostDown = ip route add 10.40.0.0/16 dev eth0", "AllowedIPs = 10.40.0.0/16", ""),
        // Names and numbers that others have.
        ("eth0", "", "AllowedIPs = 10.88.0.0/16", "eth0"),
        ("tun9", "", "AllowedIPs = 10.88.0.0/16", "tun9"),
        (NAME, "ListenPort = 7777", "AllowedIPs = 10.88.0.0/16", "7777"),
        (NAME, "ListenPort = 7778", "AllowedIPs = 10.88.0.0/16", ""),
        (NAME, "# weft: Metrics = 127.0.0.1:7778", "AllowedIPs = 10.88.0.0/16", "127.0.0.1:7778"),
        (NAME, "# weft: Metrics = 127.0.0.1:7777", "AllowedIPs = 10.88.0.0/16", ""),
        // The zone of an endpoint.
        (NAME, "", "AllowedIPs = 10.88.0.0/16;Endpoint = [fe80::1%nope]:51820", "there is no interface nope"),
        (NAME, "", "AllowedIPs = 10.88.0.0/16;Endpoint = [fe80::1%eth0]:51820", ""),
    ];
    for case in cases {
        machine.compare(case);
    }
    // What an interface has itself is not in its way.
    for mark in ["FwMark = 80", ""] {
        let lines = format!("ListenPort = 7779;{mark};# weft: Metrics = 127.0.0.1:7780");
        let peer_lines = "AllowedIPs = 0.0.0.0/0, 10.88.0.0/16;Endpoint = 203.0.113.1:51820";
        let daemon = machine.network.up(&machine.file(NAME, &lines, peer_lines));
        let check = machine.network.run(&["check", NAME]);
        assert_eq!(check.code, Some(0), "{check:?}");
        daemon.stop();
    }
    machine.run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
    machine.compare((NAME, "", "AllowedIPs = 10.88.0.0/16", "net.ipv6.conf.default.disable_ipv6"));
}

#[test]
fn what_a_start_lacks_of_the_machine_is_known_to_check_and_doctor() {
    let Some(machine) = Machine::new() else { return };
    if !weft_lab::here::installed(&["unshare", "mount", "nft"]) {
        return;
    }
    // Each has mounts of its process alone.
    let gone = "mount -t tmpfs none /dev/net";
    let without_nft = "for place in /sbin /usr/sbin; do mount -t tmpfs none $place; done";
    let some = "AllowedIPs = 10.88.0.0/16";
    let clamp = "TCP through the tunnel may stall (MssClamp)";
    #[rustfmt::skip]
    let cases = [
        (gone.to_owned(), "", some, "/dev/net/tun is missing"),
        (format!("{gone}; mknod /dev/net/tun c 10 199"), "", some, "/dev/net/tun is missing"),
        (format!("{gone}; echo > /dev/net/tun"), "", some, "/dev/net/tun is not the TUN driver"),
        (format!("{gone}; mkdir /dev/net/tun"), "", some, "/dev/net/tun is not the TUN driver"),
        (format!("{gone}; mkfifo /dev/net/tun"), "", some, "/dev/net/tun is not the TUN driver"),
        (format!("{gone}; mknod /dev/net/tun c 1 3"), "", some, "/dev/net/tun is not the TUN driver"),
        (format!("{gone} -o nodev; mknod /dev/net/tun c 10 200"), "", some, "not allowed to open /dev/net/tun"),
        (without_nft.to_owned(), "", some, ""),
        (without_nft.to_owned(), "# weft: MssClamp = on", some, &format!("warns: {clamp}")),
        (without_nft.to_owned(), "", "AllowedIPs = 0.0.0.0/0", "warns: can send to the tunnel's addresses"),
        (without_nft.to_owned(), "# weft: MssClamp = on", "AllowedIPs = ::/0", &format!("warns: is dropped, and connections of {clamp}")),
    ];
    let elsewhere = "warns: this machine has no address 203.0.113.77: metrics are not reached there";
    machine.compare((NAME, "# weft: Metrics = 203.0.113.77:9586", some, elsewhere));
    let open =
        "warns: metrics on 0.0.0.0:9586: every client that reaches this machine reads who the peers are";
    machine.compare((NAME, "# weft: Metrics = 0.0.0.0:9586", some, open));
    // That of the interface comes with it.
    let own = machine.file(NAME, "# weft: Metrics = 10.77.0.1:9586", some);
    let (check, daemon) = (machine.network.run(&["check", own.to_str().unwrap()]), machine.network.up(&own));
    let said = check.stderr + &daemon.log();
    assert!(!said.contains("has no address"), "{said}");
    daemon.stop();
    for (script, lines, peer_lines, expected) in cases {
        machine.compare_where(&script, (NAME, lines, peer_lines, expected));
    }
}

#[test]
fn a_reload_that_needs_a_port_of_another_program_is_foreseen_and_warns_of_who_can_change_the_file() {
    let Some(machine) = Machine::new() else { return };
    let _in_the_way = in_the_way(&machine);
    let some = "AllowedIPs = 10.88.0.0/16";
    let file = machine.file(NAME, "ListenPort = 7776", some);
    let daemon = machine.network.up(&file);
    machine.file(NAME, "ListenPort = 7777", some);
    machine.run(&format!("chmod 0666 {}", file.display()));
    let dry = machine.network.run(&["reload", "--dry-run", NAME]);
    assert!(dry.code == Some(1) && dry.stderr.contains("another program has that UDP port"), "{dry:?}");
    assert!(dry.stderr.contains("others can change this file"), "{dry:?}");
    daemon.stop();
}

/// A peer that sees a handshake believes that the interface is up.
#[test]
fn a_start_that_is_refused_sends_nothing() {
    let Some(machine) = Machine::new() else { return };
    machine.run("ip route add 10.40.0.0/16 dev eth0");
    let heard = machine.network.server.run(|| std::net::UdpSocket::bind("192.0.2.2:0")).unwrap();
    heard.set_nonblocking(true).unwrap();
    let port = heard.local_addr().unwrap().port();
    let start = |lines: &str, allowed_ips: &str| {
        let peer = format!("Endpoint = 192.0.2.2:{port};PersistentKeepalive = 25;AllowedIPs = {allowed_ips}");
        machine.network.weft_up(&machine.file(NAME, lines, &peer))
    };
    let hears = || heard.recv(&mut [0; 2000]).is_ok();
    let refused = |lines: &str, allowed_ips: &str, why: &str| {
        let ended = Ended::from(start(lines, allowed_ips).output().unwrap());
        assert!(ended.code != Some(0) && ended.stderr.contains(why), "{ended:?}");
        assert!(!hears(), "a handshake was begun: {why}");
    };
    refused("", "10.40.0.0/16", "is already routed");
    machine.run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
    refused("", "10.88.0.0/16", "IPv6 is switched off");
    machine.run("echo 0 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
    let told = machine.network.directory.path().join("told");
    let weft = env!("CARGO_BIN_EXE_weft");
    let post_up = format!("PostUp = {weft} show %i persistent-keepalive > {}", told.display());
    let daemon = machine.network.start(start(&post_up, "10.88.0.0/16"));
    weft_lab::wait_until("its handshake", || hears().then_some(()));
    let told = std::fs::read_to_string(&told).unwrap();
    assert!(told.ends_with("\t25\n"), "PostUp sees another peer: {told:?}");
    daemon.stop();
}
