//! What other programs undo while an interface is up, and weft restores or tells.

use std::os::fd::AsRawFd as _;

use nix::sys::signal::Signal;
use serde_json::Value;
use weft_lab::{Namespace, Process, here, until};

use crate::full_tunnel::{V4, with_tunnel};
use crate::support::{End, NAME, Network, ip, ip_json, peer, seen_from, separate_mounts};

const SAFE: &str = "# weft: KillSwitch = on\n# weft: MssClamp = on";

/// Names the first rule of a chain that has a comment like this, as nft does it.
const HANDLE: &str =
    r#"handle() { nft -a list chain $1 $2 $3 | grep 'comment "'"$4" | sed -n '1s/.*# //p'; }"#;

const SRC_VALID_MARK: &str = "net/ipv4/conf/all/src_valid_mark";

fn run(namespace: &Namespace, command: &str) {
    let script = format!("{HANDLE}\n{command}");
    let status = namespace.command("sh").args(["-c", &script]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Undoes something of a full tunnel with these commands at the client, and waits until everything is as it
/// was.
fn restored_after(commands: &[&str]) {
    with_tunnel(V4, "0.0.0.0/0, ::/0, 203.0.113.9", SAFE, |network| {
        let up = network.picture();
        for command in commands {
            run(&network.client, command);
        }
        up.assert_restored(&network.client);
        goes_through_the_tunnel(network);
    });
}

fn goes_through_the_tunnel(network: &Network) {
    assert_eq!(seen_from(network, ip("198.51.100.1")), ip("10.77.0.1"));
    assert_eq!(seen_from(network, ip("2001:db8:aa::1")), ip("fd77::1"));
}

#[test]
fn a_firewall_that_starts_again_does_not_end_the_kill_switch() {
    if here::installed(&["nft"]) {
        for commands in [
            &["nft flush ruleset"][..],
            &["nft delete table inet weft-weft0", "nft delete table ip wg-quick-weft0"],
            &["nft flush table inet weft-weft0"],
            &["nft flush chain inet weft-weft0 sent"],
            &["nft flush chain ip wg-quick-weft0 preraw"],
            &["nft 'chain inet weft-weft0 output { policy accept; }'"],
            &["nft 'add table inet weft-weft0 { flags dormant; }'"],
            &["nft add rule inet weft-weft0 output accept", "nft flush chain inet weft-weft0 output"],
            // As many rules as before, but others: by one change, by two, and by the number of another rule.
            &[r#"nft add rule inet weft-weft0 sent tcp dport 9 accept \; \
                 delete rule inet weft-weft0 sent $(handle inet weft-weft0 sent)"#],
            &[
                "nft insert rule inet weft-weft0 output tcp dport 9 accept",
                "nft delete rule inet weft-weft0 output $(handle inet weft-weft0 output blocked)",
            ],
            &["nft replace rule inet weft-weft0 output $(handle inet weft-weft0 output blocked) accept"],
            &["nft replace rule ip wg-quick-weft0 preraw $(handle ip wg-quick-weft0 preraw) accept"],
            &["nft replace rule inet weft-weft0 mss $(handle inet weft-weft0 mss) accept"],
        ] {
            println!("{commands:?}");
            restored_after(commands);
        }
    }
}

#[test]
fn a_rule_that_is_added_to_the_kill_switch_stays_and_is_told() {
    if !here::installed(&["nft"]) {
        return;
    }
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("# weft: KillSwitch = on")
        + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0");
    let client = network.up(&network.file("weft0.conf", &text));
    assert_eq!(findings(&network), []);
    run(&network.client, "nft insert rule inet weft-weft0 sent tcp dport 9 accept comment mine");
    told(&network, &client, "rules_added", "(rules: 1): they may let packets past the kill switch");
    run(&network.client, "nft delete rule inet weft-weft0 sent $(handle inet weft-weft0 sent mine)");
    until("it is told no more", || findings(&network).is_empty());
    let rule = "inet weft-weft0 sent tcp dport 9 accept comment \"mine\"";
    run(&network.client, &format!("nft 'add rule {rule}'; nft flush chain inet weft-weft0 output"));
    until("the log has what went", || client.log().contains(&format!("`nft add rule {rule}`")));
    client.stop();
}

/// The findings of the client about what another program has undone.
fn findings(network: &Network) -> Vec<(String, String)> {
    let ended = network.run(&["status", NAME, "--json", "--sample", "0"]);
    let status: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    let findings = status["interfaces"][0]["findings"].as_array().unwrap().iter();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let all = findings.map(|finding| (text(finding, "check"), text(finding, "says")));
    let is_undone = |check: &str| ["undone", "rules_added"].contains(&check) || check.starts_with("device_");
    all.filter(|(check, _)| is_undone(check)).collect()
}

/// Waits until there is exactly one such finding, with these words, and it is in the log.
#[track_caller]
fn told(network: &Network, client: &Process, check: &str, words: &str) {
    until(
        words,
        || matches!(&findings(network)[..], [(found, says)] if found == check && says.contains(words)),
    );
    until("it is in the log", || client.log().contains(words));
}

#[test]
fn what_may_be_meant_stays_and_is_told_until_it_is_there_again() {
    let Some(network) = Network::new() else { return };
    let more = "Address = 10.78.0.1/24";
    let text = End::new(1).interface(more)
        + &peer(End::new(2).public(), "AllowedIPs = 10.77.0.0/24, 203.0.113.9, 2001:db8:5::/48");
    let file = network.file("weft0.conf", &text);
    let client = network.up(&file);
    let up = network.picture();
    for (undo, again, check, words) in [
        (
            "ip route del 203.0.113.9 dev weft0",
            "ip route add 203.0.113.9 dev weft0 proto static scope link",
            "undone",
            "add route 203.0.113.9/32",
        ),
        ("ip -6 route del 2001:db8:5::/48 dev weft0", "", "undone", "add route 2001:db8:5::/48"),
        (
            "ip route del 10.77.0.0/24 dev weft0",
            "ip route add 10.77.0.0/24 dev weft0 proto kernel scope link src 10.77.0.1",
            "undone",
            "add route 10.77.0.0/24",
        ),
        ("ip address del 10.78.0.1/24 dev weft0", "", "undone", "add address 10.78.0.1/24"),
        ("ip link set weft0 down", "ip link set weft0 up", "device_down", "nothing goes through the tunnel"),
    ] {
        println!("{undo}");
        run(&network.client, undo);
        told(&network, &client, check, words);
        if again.is_empty() {
            let reloaded = network.run(&["reload", file.to_str().unwrap()]);
            assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        } else {
            run(&network.client, again);
        }
        until("it is told no more", || findings(&network).is_empty());
        up.assert_restored(&network.client);
    }
    client.stop();
}

#[test]
fn a_reload_does_again_what_is_told_and_says_so() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 203.0.113.9");
    let file = network.file("weft0.conf", &text);
    let client = network.up(&file);
    for route in ["10.77.0.0/24", "203.0.113.9/32"] {
        run(&network.client, &format!("ip route del {route} dev weft0"));
        told(&network, &client, "undone", &format!("add route {route}"));
        let reloaded = network.run(&["reload", file.to_str().unwrap()]);
        assert!(reloaded.stdout.contains(&format!("add route {route}")), "{reloaded:?}");
        until("it is told no more", || findings(&network).is_empty());
        let output = network.client.command("ip").args(["route", "show", route]).output().unwrap();
        assert!(!output.stdout.is_empty());
    }
    client.stop();
}

#[test]
fn a_full_tunnel_that_is_undone_and_cannot_be_restored_is_told_as_a_leak() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
    let client = network.up(&network.file("weft0.conf", &text));
    let up = network.picture();
    run(&network.client, "ip link set weft0 down");
    told(&network, &client, "device_down", "leaves past it");
    run(&network.client, "ip link set weft0 up");
    up.assert_restored(&network.client);
    until("it is told no more", || findings(&network).is_empty());

    network.client.set_sysctl("net/ipv6/conf/weft0/disable_ipv6", "1").unwrap();
    let ipv6_is_off = || findings(&network).iter().any(|(_, says)| says.contains("IPv6 is switched off"));
    until("that IPv6 goes past the tunnel is told", ipv6_is_off);
    network.client.set_sysctl("net/ipv6/conf/weft0/disable_ipv6", "0").unwrap();
    up.assert_restored(&network.client);
    until("it is told no more", || findings(&network).is_empty());

    let elsewhere = format!("/proc/{}/fd/{}", std::process::id(), network.server.as_raw_fd());
    run(&network.client, &format!("ip link set {NAME} netns {elsewhere}"));
    told(&network, &client, "device_elsewhere", "leaves past it");
    client.stop();
}

#[test]
fn a_device_that_lost_its_name_to_another_is_told_until_it_has_it_again() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
    let file = network.file("weft0.conf", &text);
    let client = network.up(&file);
    for again in ["ip link del weft0", "ip link set weft0 name rival && ip link del rival"] {
        let up = network.picture();
        run(&network.client, "ip link add rival mtu 1300 type veth peer name end && ip link set rival up");
        // weft may be faster, and give the device its name again.
        run(
            &network.client,
            "until ip link set weft0 name vpn0 && ip link set rival name weft0; do :; done 2>/dev/null",
        );
        told(&network, &client, "device_renamed", "renamed the interface to vpn0");
        let reloaded = network.run(&["reload", file.to_str().unwrap()]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        told(&network, &client, "device_renamed", "renamed the interface to vpn0");
        run(&network.client, again);
        up.assert_restored(&network.client);
        until("it is told no more", || findings(&network).is_empty());
    }
    // The other device is not taken for the own one.
    for wrong in ["set by hand", "goes through vpn0"] {
        assert!(!client.log().contains(wrong), "{}", client.log());
    }
    client.stop();
}

/// The exact rules of a firewall are its own affair, and those that a user adds to weft's tables.
#[test]
fn a_firewall_beside_the_kill_switch_is_left_alone() {
    if !here::installed(&["nft"]) {
        return;
    }
    with_tunnel(V4, "0.0.0.0/0, ::/0", SAFE, |network| {
        for command in [
            "nft add table inet firewalld",
            "nft flush table inet firewalld",
            "nft delete table inet firewalld",
            "nft insert rule inet weft-weft0 sent tcp dport 9 accept",
        ] {
            run(&network.client, command);
        }
        // What is restored by the same look shows that weft has looked.
        run(&network.client, "sysctl -qw net.ipv4.conf.all.src_valid_mark=0");
        until("weft has looked", || network.picture().has("src_valid_mark: 1"));
        assert!(network.picture().has("dport 9"));
    });
}

/// Without it a strict reverse-path filter drops what the peers send.
#[test]
fn src_valid_mark_that_was_set_before_the_start_is_kept() {
    let Some(network) = Network::new() else { return };
    network.client.set_sysctl(SRC_VALID_MARK, "1").unwrap();
    let before = network.picture();
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0");
    let client = network.up(&network.file("weft0.conf", &text));
    let up = network.picture();
    network.client.set_sysctl(SRC_VALID_MARK, "0").unwrap();
    up.assert_restored(&network.client);
    client.stop();
    network.assert_as(&before);
}

/// Whichever is the last, and however they end; also beside a rule by mark that leads into no tunnel.
#[test]
fn the_last_full_tunnel_to_end_restores_src_valid_mark() {
    let Some(network) = Network::new() else { return };
    run(
        &network.client,
        "ip rule add pref 900 not fwmark 9 table 77; ip route add default dev lo metric 9 table 77",
    );
    let before = network.picture();
    let files = ["weft0", "weft1"].map(|name| {
        let own = End::new(1).interface("").replace("Address = 10.77.0.1/24, fd77::1/64\n", "");
        let text = own + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0");
        network.file(&format!("{name}.conf"), &text)
    });
    for order in [[0, 1], [1, 0]] {
        for is_crash in [false, true] {
            let mut daemons = files.each_ref().map(|file| Some(network.up(file)));
            for daemon in daemons.iter_mut().filter(|_| is_crash) {
                let Some(mut daemon) = daemon.take() else { continue };
                daemon.signal(Signal::SIGKILL);
                daemon.wait();
            }
            for (place, last) in order.into_iter().zip([false, true]) {
                match daemons[place].take() {
                    Some(daemon) => drop(daemon.stop()),
                    None => drop(network.run(&["down", files[place].to_str().unwrap()])),
                }
                let value = network.client.sysctl(SRC_VALID_MARK).unwrap();
                assert!(is_crash || value == if last { "0" } else { "1" }, "{order:?} {last}: {value}");
            }
            network.assert_as(&before);
        }
    }
}

#[test]
fn src_valid_mark_stays_for_a_tunnel_of_another_program() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0");
    let client = network.up(&network.file("weft0.conf", &text));
    run(
        &network.client,
        "ip tuntap add tun9 mode tun; ip link set tun9 up; ip rule add not fwmark 9 table 9; \
         ip route add default dev tun9 table 9",
    );
    client.stop();
    assert_eq!(network.client.sysctl(SRC_VALID_MARK).unwrap(), "1");
}

#[test]
fn a_kill_switch_outlives_a_command_that_loads_a_firewall() {
    if !here::installed(&["nft"]) {
        return;
    }
    with_tunnel(V4, "0.0.0.0/0", "# weft: KillSwitch = on\nPostUp = nft flush ruleset", |network| {
        until("the kill switch is there again", || network.picture().has("weft-weft0"));
    });
}

#[test]
fn rules_that_another_program_removes_come_back() {
    restored_after(&[
        "ip -4 rule del not fwmark 51820 table 51820",
        "ip -6 rule del table main suppress_prefixlength 0",
    ]);
    for commands in [
        &["ip -4 route flush table 51820", "ip -6 route flush table 51820"][..],
        &["ip route replace default via 192.0.2.2 dev eth0 table 51820"],
        &["ip route replace blackhole default table 51820"],
        &["ip route replace table 51820 default nexthop dev weft0 nexthop via 192.0.2.2 dev eth0"],
        &["ip -6 route replace default via 2001:db8::2 dev eth0 metric 1024 table 51820"],
    ] {
        println!("{commands:?}");
        restored_after(commands);
    }
}

#[test]
fn a_route_that_another_program_replaces_is_told() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 203.0.113.9");
    let client = network.up(&network.file("weft0.conf", &text));
    run(&network.client, "ip route replace 203.0.113.9 via 192.0.2.2 dev eth0");
    told(&network, &client, "undone", "add route 203.0.113.9/32");
    run(&network.client, "ip route replace 203.0.113.9 dev weft0");
    until("it is told no more", || findings(&network).is_empty());
    client.stop();
}

/// As NetworkManager, dhclient, ifupdown and udev do it.
#[test]
fn what_a_program_takes_from_the_device_comes_back() {
    for commands in [
        &["ip address flush dev weft0"][..],
        &["ip -4 address flush dev weft0"],
        &["ip -6 address flush dev weft0 scope global"],
        &["ip address del 10.77.0.1/24 dev weft0"],
        &["ip link set weft0 name vpn0"],
        &["ip link set weft0 mtu 1000"],
        &["ip link set weft0 mtu 1000", "ip link set weft0 mtu 1420"],
        &[
            "ip -4 rule flush",
            "ip -4 rule add priority 32766 table main",
            "ip -4 rule add priority 32767 table default",
        ],
        &["sysctl -qw net.ipv4.conf.all.src_valid_mark=0"],
    ] {
        println!("{commands:?}");
        restored_after(commands);
    }
}

/// The kernel takes IPv6 from a device with a small MTU, and its routes, which lead past the tunnel then.
#[test]
fn a_small_mtu_takes_no_ipv6_from_a_tunnel_without_an_address_of_it() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
    let without = text.replace(", fd77::1/64", "");
    assert_ne!(text, without);
    let client = network.up(&network.file("weft0.conf", &without));
    let up = network.picture();
    run(&network.client, "ip link set weft0 mtu 1200");
    up.assert_restored(&network.client);
    client.stop();
}

#[test]
fn a_device_that_was_set_down_has_its_addresses_and_routes_again_when_it_is_up() {
    restored_after(&["ip link set weft0 down", "ip link set weft0 up"]);
}

#[test]
fn a_route_that_was_removed_by_hand_stays_away() {
    with_tunnel(V4, "0.0.0.0/0, ::/0, 203.0.113.9", SAFE, |network| {
        let up = network.picture();
        run(&network.client, &format!("ip route del 203.0.113.9 dev {NAME}"));
        let changed = network.picture();
        assert_ne!(up, changed);
        run(&network.client, "ip -4 rule del not fwmark 51820 table 51820");
        changed.assert_restored(&network.client);
    });
}

#[test]
fn a_device_with_the_index_of_one_that_has_left_gets_no_routes() {
    let Some(network) = Network::new() else { return };
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0");
    let file = network.file("weft0.conf", &text);
    let client = network.start(network.weft(&["--log", "debug", "up", file.to_str().unwrap()]));
    let index = ip_json(&network.client, &["link", "show", "dev", NAME])[0]["ifindex"].to_string();
    let elsewhere = format!("/proc/{}/fd/{}", std::process::id(), network.server.as_raw_fd());
    run(&network.client, &format!("ip link set {NAME} netns {elsewhere}"));
    run(&network.client, &format!("ip link add other index {index} type veth peer name end"));
    run(&network.client, "ip link set other up");
    run(&network.client, "ip -4 rule del not fwmark 51820 table 51820");
    client.wait_for_line("rules_removed: true");
    // The control thread answers when it has handled that.
    let _refused = network.run(&["reload", "--dry-run", file.to_str().unwrap()]);
    let now = network.picture();
    assert!(!now.has("\"table\":\"51820\""), "{now:#?}");
    client.stop();
}

#[test]
fn the_files_by_which_a_daemon_is_found_come_back() {
    let Some(network) = Network::new() else { return };
    if !here::installed(&["nsenter", "mount"]) {
        return;
    }
    let before = network.picture();
    let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
    let file = network.file("weft0.conf", &text);
    let of_records = |script: &str| {
        let status =
            std::process::Command::new("sh").args(["-ec", script]).current_dir(network.records()).status();
        assert!(status.unwrap().success(), "{script}");
    };
    let files = || {
        let mut files = network.left();
        files.sort();
        files
    };
    for removal in [
        "rm weft0/record.json",
        "rm weft0/lock",
        "rm weft0/control.sock",
        "mv weft0/record.json .",
        "rm -r weft0 || rm -r weft0",
        "mv weft0 away",
        "rm -r ../run-client || rm -r ../run-client",
    ] {
        println!("{removal}");
        let client = network.up(&file);
        let up = files();
        of_records(removal);
        until("they are there again", || {
            let _gone = std::fs::remove_dir_all(network.records().join("away"));
            let _gone = std::fs::remove_file(network.records().join("record.json"));
            files() == up
        });
        until("it answers", || network.run(&["status", NAME]).code == Some(0));
        let second = network.run(&["up", file.to_str().unwrap()]);
        assert!(second.stderr.contains(&format!("weft runs as process {}", client.pid())), "{second:?}");
        assert!(client.log().contains("another program had removed"), "{}", client.log());
        network.down();
        network.assert_as(&before);
    }
    // Where they cannot be made, the process is named.
    let mut command = network.weft_up(&file);
    separate_mounts(&mut command);
    let mut client = network.start(command);
    let seal = "mount --bind $0 $0 && mount -o remount,bind,ro $0";
    let mut enter = std::process::Command::new("nsenter");
    enter.args(["-m", "-t", &client.pid().to_string(), "sh", "-c", seal]).arg(network.records());
    assert!(enter.status().unwrap().success());
    of_records("rm -r weft0");
    client.wait_for_line("may not find this interface");
    let process = format!("`kill {}`", client.pid());
    for command in [&["down", NAME][..], &["status", NAME], &["reload", file.to_str().unwrap()]] {
        let told = network.run(command);
        assert!(told.code == Some(1) && told.stderr.contains(&process), "{command:?}: {told:?}");
    }
    client.signal(nix::sys::signal::Signal::SIGTERM);
    client.wait();
    network.assert_as(&before);
}
