//! What does not go where the file means it to go is told: before the start, at the start, while the
//! interface is up, and after the network changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use weft_lab::mounts::Mounts;
use weft_lab::{Process, here, until};

use crate::support::{End, Ended, NAME, Network, peer};

/// The local network of the client, its server and its neighbour.
const IN_LAN: &str = "192.0.2.2";
const ALL: &str = "0.0.0.0/0, ::/0";

struct Machine {
    network: Network,
    /// With /etc of the test.
    mounts: Mounts,
}

impl Machine {
    /// A client with this name server; `None` where that is not permitted, which is said.
    fn new(server: &str) -> Option<Self> {
        let network = Network::new()?;
        if !here::installed(&["mount"]) {
            return None;
        }
        let machine =
            Self { network, mounts: Mounts::with_empty(&["/etc", "/var/lib", "/var/run"]).unwrap() };
        machine.run(&format!("echo nameserver {server} > /etc/resolv.conf"));
        Some(machine)
    }

    /// A command of weft that sees neither the system bus nor resolvconf(8).
    fn weft(&self, arguments: &[&str]) -> Command {
        let mut command = self.network.weft(arguments);
        command.env("PATH", "/usr/bin:/bin").env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent");
        self.mounts.apply(&mut command).unwrap();
        command
    }

    fn said(&self, arguments: &[&str]) -> Ended {
        self.weft(arguments).output().unwrap().into()
    }

    fn run(&self, script: &str) {
        let mut command = self.network.client.command("sh");
        self.mounts.apply(&mut command).unwrap();
        let status = command.args(["-ec", script]).status().unwrap();
        assert!(status.success(), "{script}");
    }

    /// A file with these lines, for a peer at 203.0.113.1 that has these addresses.
    fn file(&self, lines: &str, allowed_ips: &str) -> PathBuf {
        let lines = lines.replace(';', "\n");
        let peer_lines = format!("Endpoint = 203.0.113.1:51820\nAllowedIPs = {allowed_ips}");
        let text = End::new(1).interface(&lines) + &peer(End::new(2).public(), &peer_lines);
        self.network.file("weft0.conf", &text)
    }

    fn up(&self, file: &Path) -> Process {
        let daemon =
            Process::start(&self.network.client, self.weft(&["up", file.to_str().unwrap()])).unwrap();
        daemon.wait_for_line(" is up: port ");
        daemon
    }

    /// What weft says of a file before the start and of the interface once it is up.
    fn tells(&self, file: &Path) -> [(&'static str, String); 4] {
        let path = file.to_str().unwrap();
        let check = self.said(&["check", path]);
        let before = self.said(&["doctor", path]).stdout;
        let daemon = self.up(file);
        // It answers once it has looked for the first time.
        let status = until_some(|| Some(self.said(&["status", NAME])).filter(|ended| ended.code == Some(0)));
        let doctor = self.said(&["doctor", path]).stdout;
        daemon.stop();
        // A tunnel that cannot work is a problem to each of them.
        let goes_round = |line: &str| line.contains("goes round in circles");
        let is_error = check.stderr.lines().any(|line| line.starts_with("error: ") && goes_round(line));
        assert_eq!(check.code, Some(is_error.into()), "{check:?}");
        for told in [&before, &status.stdout, &doctor] {
            let is_problem = |line: &str| line.starts_with("problem") && goes_round(line);
            assert_eq!(told.lines().any(is_problem), is_error, "{check:?} {told}");
        }
        [("check", check.stderr), ("doctor before", before), ("status", status.stdout), ("doctor", doctor)]
    }
}

fn until_some<T>(work: impl FnMut() -> Option<T>) -> T {
    weft_lab::wait_until("an answer", work)
}

/// The parts of sentences that tell of misrouted packets.
const SIGNS: [&str; 4] =
    ["not through the tunnel", "goes past it through", "goes round in circles", "no route leads to the name"];

#[test]
fn packets_that_go_past_the_tunnel_are_told_before_and_while_it_is_up() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    let another_vpn = "ip tuntap add tun9 mode tun; ip link set tun9 up; ip route add 0.0.0.0/1 dev tun9; \
                       ip route add 128.0.0.0/1 dev tun9";
    #[rustfmt::skip]
    let cases = [
        // a command before, lines of [Interface], AllowedIPs, what is said (none: nothing)
        ("", "DNS = 10.77.0.53", ALL, ""),
        ("", "DNS = 9.9.9.9, 2620:fe::fe", ALL, ""),
        ("", "", "10.88.0.0/16", ""),
        ("", "DNS = 192.0.2.2", ALL, "192.0.2.2 is reached through eth0, not through the tunnel"),
        ("", "DNS = 2001:db8::2", ALL, "2001:db8::2 is reached through eth0, not through the tunnel"),
        ("", "DNS = 10.99.0.53", "10.88.0.0/16", "10.99.0.53 is reached through eth0, not through the tunnel"),
        ("", "", "0.0.0.0/0", "all of IPv6 goes past it through eth0"),
        ("", "", "::/0", "all of IPv4 goes past it through eth0"),
        ("", "Table = off;DNS = 192.0.2.2", ALL, ""),
        ("", "Table = 77;DNS = 192.0.2.2", ALL, ""),
        ("", "", "203.0.113.0/24", "goes round in circles"),
        ("", "", "0.0.0.0/1, 128.0.0.0/1, ::/0", "goes round in circles"),
        ("ip route add 203.0.113.1 via 192.0.2.2", "", "0.0.0.0/1, 128.0.0.0/1, ::/0", ""),
        ("", "", "203.0.113.0/24", ""),
        ("ip addr add 10.77.0.99/24 dev eth0", "", "10.77.0.0/24", "10.77.0.0/24 is the network of eth0 too: traffic to it goes through eth0, not through the tunnel"),
        ("", "", ALL, "10.77.0.0/24 is the network of eth0 too: traffic to it goes through eth0"),
        ("", "", "10.77.0.2/32", "10.77.0.0/24 is the network of eth0 too: traffic to it goes through eth0"),
        ("ip route del 10.77.0.0/24; ip route add 10.77.0.0/24 dev eth0 metric 100", "", ALL, "10.77.0.0/24 is the network of eth0 too: traffic to it goes through the tunnel, and"),
        ("ip addr del 10.77.0.99/24 dev eth0", "", ALL, ""),
        (another_vpn, "", ALL, "traffic of IPv4, such as that to 1.1.1.1, goes through tun9, not through the tunnel"),
    ];
    for (before, lines, allowed_ips, expected) in cases {
        machine.run(before);
        for (what, told) in machine.tells(&machine.file(lines, allowed_ips)) {
            if what == "check" && allowed_ips == "10.77.0.0/24" {
                // Address has the network too, and is the first of the two.
                assert!(told.contains(".conf:3: Address: 10.77.0.0/24 is"), "{told}");
            }
            if expected.is_empty() {
                let sign = SIGNS.into_iter().find(|sign| told.contains(sign));
                assert_eq!(sign, None, "{what}: {lines} {allowed_ips}: {told}");
            } else {
                assert!(told.contains(expected), "{what}: {lines} {allowed_ips}: {told}");
            }
        }
    }
}

#[test]
fn the_log_warns_at_the_start_and_the_advice_helps() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    let lines = format!("DNS = {IN_LAN}");
    let file = machine.file(&lines, ALL);
    let daemon = machine.up(&file);
    daemon.wait_for_line(
        "192.0.2.2 is reached through eth0, not through the tunnel; add 192.0.2.2/32 to AllowedIPs",
    );
    let way = || {
        let output = machine.network.client.command("ip").args(["route", "get", IN_LAN]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(way().contains("dev eth0"), "{}", way());
    let text = std::fs::read_to_string(&file).unwrap().replace(ALL, &format!("{ALL}, {IN_LAN}/32"));
    std::fs::write(&file, text).unwrap();
    let reload = machine.said(&["reload", file.to_str().unwrap()]);
    assert_eq!(reload.code, Some(0), "{reload:?}");
    assert!(way().contains("dev weft0"), "{}", way());
    daemon.wait_for_line("no longer: 192.0.2.2 is reached through eth0");
    let status = machine.said(&["status", NAME]).stdout;
    assert!(!status.contains("is reached through"), "{status}");
    daemon.stop();
}

#[test]
fn a_rule_that_leads_packets_past_the_tunnel_or_blocks_them_is_told_and_one_that_does_not_is_not() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    // Rules for a device or a mark, what comes later, a table without such a route, and specific routes.
    machine.run(
        "ip rule add pref 90 fwmark 1 lookup main; ip rule add pref 91 iif eth0 lookup main; \
         ip rule add pref 92 ipproto 17 unreachable; ip rule add pref 93 ipproto 17 lookup 99; \
         ip rule add pref 94 ipproto 17 lookup main suppress_prefixlength 0; ip rule add pref 32000 dport 9 \
         lookup main; ip route add 1.0.0.0/8 via 192.0.2.2 table 98",
    );
    let daemon = machine.up(&machine.file("", ALL));
    machine.run("ip rule add pref 2 fwmark 1 lookup main; ip rule add pref 3 iif eth0 lookup main");
    machine.run("ip rule add pref 4 iif eth0 prohibit; ip rule add pref 5 ipproto 17 lookup 99");
    machine.run("ip rule add pref 6 ipproto 17 lookup main suppress_prefixlength 0");
    for (rule, told) in [
        (
            "pref 10 ipproto 6 dport 443 lookup main",
            "IPv4 past the tunnel: 10: from all dport 443 ipproto tcp lookup main",
        ),
        ("pref 10 uidrange 1000-1000 lookup main", "10: from all uidrange 1000-1000 lookup main"),
        ("pref 10 sport 22 goto 32766", "10: from all sport 22 goto 32766"),
        ("pref 10 to 203.0.113.64/26 lookup main", "10: from all to 203.0.113.64/26 lookup main"),
        ("pref 10 from 192.0.2.1 lookup main", "10: from 192.0.2.1/32 lookup main"),
        ("pref 10 not dport 443 lookup main", "10: not from all dport 443 lookup main"),
        ("pref 10 iif lo ipproto 50 lookup main", "10: from all iif lo ipproto 50 lookup main"),
        (
            "pref 10 sport 22-23 lookup 98 suppress_prefixlength 0",
            "10: from all sport 22-23 lookup 98 suppress_prefixlength 0",
        ),
        ("pref 10 ipproto 6 prohibit", "a rule blocks a part of IPv4: 10: from all ipproto tcp prohibit"),
        ("pref 10 unreachable", "a rule blocks all of IPv4: 10: from all unreachable"),
        ("pref 10 not iif eth0 blackhole", "a rule blocks all of IPv4: 10: not from all iif eth0 blackhole"),
        (
            "pref 10 not fwmark 0x55 lookup main",
            "goes through eth0, not through the tunnel, by a rule of another program: 10: not from all fwmark 0x55 \
             lookup main",
        ),
        ("pref 10 fwmark 0/0x55 lookup main", "program: 10: from all fwmark 0x0/0x55 lookup main"),
        ("pref 10 goto 32766", "program: 10: from all goto 32766"),
    ] {
        // Beside one that the advice does not name.
        machine.run(&format!("ip rule add pref 10 fwmark 1 dport 9 lookup main; ip rule add {rule}"));
        let status = || machine.said(&["status", NAME]).stdout;
        until(told, || status().contains(told));
        assert_eq!(status().matches("ip rule del").count(), 1, "{}", status());
        for wrong in ["within this tunnel", "round in circles"] {
            assert!(!status().contains(wrong), "{rule}: {}", status());
        }
        let doctor = machine.said(&["doctor", NAME]).stdout;
        let command = doctor.split('`').find(|words| words.starts_with("ip rule del ")).unwrap();
        assert!(doctor.contains(told), "{doctor}");
        // By the protocols' names, which are in /etc.
        let deleted = machine.network.client.command("sh").args(["-c", command]).status().unwrap();
        assert!(deleted.success(), "{command}");
        until("it is told no more", || !status().contains("ip rule del"));
        machine.run("ip rule del pref 10 fwmark 1 dport 9 lookup main");
    }
    // Also beside a mark that the rules do not have.
    assert_eq!(machine.said(&["set", NAME, "fwmark", "0x55"]).code, Some(0));
    machine.run("ip -6 rule add pref 10 ipproto 6 lookup main");
    daemon.wait_for_line("a rule leads a part of IPv6 past the tunnel: 10: from all ipproto tcp lookup main");
    daemon.stop();
}

/// A DHCP server can give routes (RFC 3442), also one that wants to see the traffic.
#[test]
fn public_networks_that_a_gateway_takes_past_a_full_tunnel_are_told() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    // The way to the peer, private networks, and networks without a gateway.
    machine.run(
        "ip route add 203.0.113.1 via 192.0.2.2 proto dhcp; ip route add 10.5.0.0/16 via 192.0.2.2 proto dhcp; \
         ip route add 198.51.100.0/25 dev eth0; ip -6 route add fd05::/64 via 2001:db8::2",
    );
    let daemon = machine.up(&machine.file("", ALL));
    let told = || machine.said(&["status", NAME]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!told().contains("not through the tunnel"), "{}", told());
    for (routes, expected) in [
        (
            "8.8.8.8 via 192.0.2.2 proto dhcp",
            "warning traffic to 8.8.8.8/32 goes through eth0, not through the tunnel, by routes",
        ),
        ("1.2.0.0/16 via 192.0.2.2", "note traffic to 1.2.0.0/16 goes through eth0, not through the tunnel"),
        ("2001:db8:9::/48 via 2001:db8::2", "note traffic to 2001:db8:9::/48 goes through eth0"),
    ] {
        machine.run(&format!("ip route add {routes}"));
        until(expected, || told().contains(expected));
        assert!(!told().contains("another VPN"), "{}", told());
        machine.run(&format!("ip route del {routes}"));
        until("it is told no more", || !told().contains("not through the tunnel"));
    }
    daemon.stop();
}

/// `ip rule flush` leaves that of the table local only.
#[test]
fn a_missing_rule_for_the_main_table_is_told() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    for (allowed_ips, lines) in [(ALL, ""), ("10.88.0.0/16", ""), (ALL, "# weft: KillSwitch = on")] {
        let daemon = machine.up(&machine.file(lines, allowed_ips));
        let status = || machine.said(&["status", NAME]).stdout;
        machine.run("ip rule flush");
        let told = "no rule leads IPv4 to the table main, which has the way to 203.0.113.1:51820";
        until(told, || status().contains(told));
        let doctor = machine.said(&["doctor", NAME]).stdout;
        assert!(doctor.contains(told), "{doctor}");
        machine.run(doctor.split('`').find(|words| words.starts_with("ip rule add ")).unwrap());
        until("it is told no more", || !status().contains(told));
        daemon.stop();
    }
}

/// While the mark is another one, the peer may answer at an address within the tunnel.
#[test]
fn a_reload_sets_the_endpoint_of_the_file_where_another_was_set() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    let file = machine.file("", ALL);
    let daemon = machine.up(&file);
    let status = || machine.said(&["status", NAME]).stdout;
    let advice = "`weft reload weft0` sets the endpoint of the file again";
    let text = std::fs::read_to_string(&file).unwrap();
    let key = text.lines().find_map(|line| line.strip_prefix("PublicKey = ")).unwrap();
    for (endpoint, is_within) in
        [("10.77.0.9:51820", true), ("192.0.2.9:51820", false), ("[fd77::9]:1", true)]
    {
        let set = machine.said(&["set", NAME, "peer", key, "endpoint", endpoint]);
        assert_eq!(set.code, Some(0), "{set:?}");
        until("it is set", || status().contains(endpoint));
        if is_within {
            until(advice, || status().contains(advice));
            let doctor = machine.said(&["doctor", NAME]).stdout;
            assert!(doctor.contains(advice), "{doctor}");
        }
        let reload = machine.said(&["reload", file.to_str().unwrap()]);
        let changes = format!("change endpoint of peer {key}\n");
        assert!(reload.code == Some(0) && reload.stdout.starts_with(&changes), "{reload:?}");
        let is_right = || status().contains("203.0.113.1:51820") && !status().contains(advice);
        until("the endpoint is right", is_right);
        let again = machine.said(&["reload", NAME]);
        assert_eq!(again.stdout, "nothing to change\n", "{again:?}");
    }
    daemon.stop();
}

#[test]
fn a_network_that_is_joined_later_is_told_and_one_that_was_left_is_not() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    machine.run("ip link add wlan0 type veth peer name wlan1; ip link set wlan0 up; ip link set wlan1 up");
    let daemon = machine.up(&machine.file("DNS = 192.168.7.1", ALL));
    let told = || machine.said(&["status", NAME]).stdout.contains("192.168.7.1 is reached through wlan0");
    assert!(!told());
    machine.run("ip addr add 192.168.7.5/24 dev wlan0");
    until("it is told", told);
    machine.run("ip addr del 192.168.7.5/24 dev wlan0");
    until("it is no longer told", || !told());
    daemon.stop();
}

#[test]
fn what_a_device_that_is_down_does_not_carry_is_not_laid_to_the_file() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    // The kernel adds no route to a network that begins with 0.
    let file = machine.file("Address = 0.0.0.1/8;DNS = 10.88.0.2", "10.88.0.0/16");
    let daemon = machine.up(&file);
    let says = |part: &str| {
        let told = ["status", "doctor"].map(|command| machine.said(&[command, NAME]).stdout);
        told.iter().all(|told| told.contains(part)) && !told.iter().any(|told| told.contains("AllowedIPs"))
    };
    machine.run("ip link set weft0 down");
    until("it is told that the interface is down", || says("set down"));
    machine.run("ip link set weft0 up");
    daemon.wait_for_line("no longer: the interface was set down");
    let status = machine.said(&["status", NAME]).stdout;
    assert!(!status.contains("another program"), "{status}");
    daemon.stop();
}

#[test]
fn a_tunnel_within_another_is_no_leak_and_a_circle_of_two_is_told() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    let outer = machine.up(&machine.file("", ALL));
    let peer_lines = format!("Endpoint = 198.51.100.1:51820\nAllowedIPs = {ALL}");
    let text = End::new(3).interface("") + &peer(End::new(2).public(), &peer_lines);
    let text = text.replace("10.77.0.3/24, fd77::3/64", "10.78.0.3/24, fd78::3/64");
    let inner_file = machine.network.file("weft1.conf", &text);
    let check = |file: &Path| machine.said(&["check", file.to_str().unwrap()]);
    let circle = "198.51.100.1:51820 is reached through weft0, whose packets go through this tunnel";
    let before = check(&inner_file);
    assert!(before.code == Some(1) && before.stderr.contains(&format!("Endpoint: {circle}")), "{before:?}");
    let way = "ip route add 203.0.113.1 via 192.0.2.2";
    let mended = text.replace("[Interface]\n", &format!("[Interface]\nPostUp = {way}\n"));
    let mended = check(&machine.network.file("weft2.conf", &mended));
    assert!(mended.code == Some(0) && mended.stderr.contains("warning: "), "{mended:?}");
    assert!(mended.stderr.contains(circle), "{mended:?}");
    machine.run(way);
    let nested = check(&inner_file);
    assert!(nested.code == Some(0) && !nested.stderr.contains("goes round"), "{nested:?}");
    assert!(!nested.stderr.contains("carries all of"), "{nested:?}");
    machine.run("ip route del 203.0.113.1 via 192.0.2.2");
    let inner = machine.up(&inner_file);
    let told = |command: &str| machine.said(&[command, NAME]).stdout;
    let goes_round = |name| machine.said(&["status", name]).stdout.contains("goes round in circles");
    // The rules of the inner tunnel come first, also for the packets of the outer one.
    outer.wait_for_line("203.0.113.1:51820 is reached through weft1, whose packets go through this tunnel");
    machine.run(way);
    outer.wait_for_line("no longer: 203.0.113.1:51820 is reached through weft1");
    // What goes to the peer of the inner tunnel leaves the outer one by that route.
    until("the inner tunnel works", || !goes_round("weft1"));
    for command in ["status", "doctor"] {
        let told = told(command);
        let note = told.lines().find(|line| line.contains("goes through weft1, which is within this tunnel"));
        assert!(note.is_some_and(|note| note.trim_start().starts_with("note")), "{command}: {told}");
        assert!(!told.contains("not through the tunnel"), "{command}: {told}");
    }
    // One that goes past it is a leak.
    machine.run("ip route add 198.51.100.1 via 192.0.2.2");
    outer.wait_for_line("goes through weft1, not through the tunnel");
    // The outer tunnel itself is within that one, which works.
    machine.run("ip route del 203.0.113.1 via 192.0.2.2");
    for name in [NAME, "weft1"] {
        let doctor = machine.said(&["doctor", name]).stdout;
        assert!(!doctor.contains("goes round in circles"), "{name}: {doctor}");
    }
    inner.stop();
    outer.stop();
}

#[test]
fn a_second_full_tunnel_is_told_with_the_name_of_the_first_and_of_no_rule_of_weft() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    let first = machine.up(&machine.file("", ALL));
    let second = |endpoint: &str| {
        let peer_lines = format!("Endpoint = {endpoint}\nAllowedIPs = {ALL}");
        let text = End::new(3).interface("") + &peer(End::new(2).public(), &peer_lines);
        let text = text.replace("10.77.0.3/24, fd77::3/64", "10.78.0.3/24, fd78::3/64");
        machine.network.file("weft1.conf", &text)
    };
    let in_lan = second("192.0.2.9:51820");
    let path = in_lan.to_str().unwrap();
    let [check, dry_run] =
        [&["check", path][..], &["up", "--dry-run", path]].map(|words| machine.said(words));
    let doctor = machine.said(&["doctor", path]).stdout;
    for told in [&check.stderr, &dry_run.stderr, &doctor] {
        for family in ["IPv4", "IPv6"] {
            let says = format!("weft0 carries all of {family} now, and none of it once this tunnel is up");
            assert!(told.contains(&says) && told.contains("`weft down weft0`"), "{told}");
        }
    }
    assert_eq!((check.code, dry_run.code), (Some(0), Some(0)), "{check:?}");
    // A name that is not looked up: the packets of each tunnel would go through the other.
    let named = machine.said(&["check", second("vpn.example:1").to_str().unwrap()]).stderr;
    assert!(named.contains("weft0 carries all of IPv4 now"), "{named}");

    let daemon = machine.up(&second("192.0.2.9:51820"));
    first.wait_for_line("goes through weft1, not through the tunnel");
    let told = ["status", "doctor"].map(|command| machine.said(&[command, NAME]).stdout);
    for told in &told {
        let advice = "take weft1 down (`weft down weft1`), or give one of the two narrower AllowedIPs";
        assert!(told.split_whitespace().collect::<Vec<_>>().join(" ").contains(advice), "{told}");
        assert!(!told.contains("ip rule") && !told.contains("another program"), "{told}");
    }
    assert_eq!(machine.said(&["down", "weft1"]).code, Some(0));
    until("it is told no more", || !machine.said(&["status", NAME]).stdout.contains("weft1"));
    drop(daemon);
    first.stop();
}

#[test]
fn a_name_server_of_the_local_network_is_noted_where_the_file_has_none() {
    let Some(machine) = Machine::new(IN_LAN) else { return };
    for (what, told) in machine.tells(&machine.file("", ALL)) {
        let note = "system's name server 192.0.2.2 is reached through eth0, not through the tunnel";
        assert!(told.contains(note), "{what}: {told}");
        assert!(!told.contains("warning: "), "{what}: {told}");
    }
    for (what, told) in machine.tells(&machine.file("", "10.88.0.0/16")) {
        assert!(!told.contains("name server"), "{what}: {told}");
    }
}

#[test]
fn ipv6_that_is_switched_off_for_new_interfaces_is_told_with_settings_that_exist() {
    let Some(machine) = Machine::new("127.0.0.1") else { return };
    machine.run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
    let text = machine.file("", ALL);
    let text = std::fs::read_to_string(text).unwrap().replace(", fd77::1/64", "");
    let file = machine.network.file("weft0.conf", &text);
    let path = file.to_str().unwrap();
    let before = machine.network.picture();
    let start = machine.said(&["up", path]);
    assert_eq!(start.code, Some(78), "{start:?}");
    let doctor = machine.said(&["doctor", path]);
    for (told, key) in [(start.stderr, "AllowedIPs"), (doctor.stdout, "AllowedIPs")] {
        assert!(told.contains("net.ipv6.conf.default.disable_ipv6") && told.contains(key), "{told}");
    }
    machine.network.assert_as(&before);
}

/// wg(8) changes the mark of the tunnel's packets alone.
#[test]
fn a_mark_that_the_rules_do_not_have_is_told() {
    let Some(machine) = Machine::new(IN_LAN) else { return };
    // Without an answer the way to the peer is looked at.
    let file = machine.file("", &format!("{ALL}\nPersistentKeepalive = 1"));
    let daemon = machine.up(&file);
    let set = machine.said(&["set", NAME, "fwmark", "0x55"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    let is_told = || machine.said(&["status", NAME]).stdout.contains("the rules are for 0xca6c");
    until("the mark is told", is_told);
    let doctor = machine.said(&["doctor", NAME]).stdout;
    assert!(doctor.contains("the rules are for 0xca6c"), "{doctor}");
    let reloaded = machine.said(&["reload", file.to_str().unwrap()]);
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    until("it is told no more", || !is_told());
    daemon.stop();
}
