//! A default route through the tunnel: everything goes through it but the tunnel's own packets.

use std::path::PathBuf;
use std::process::Command;

use weft::up::{Beginning, Daemon, Options};
use weft_config::parse;
use weft_host::{Host, Recording, Step};
use weft_lab::Process;

use crate::support::{End, NAME, Network, PORT, ip, ip_json, peer, seen_from};

pub(crate) const V4: &str = "203.0.113.1";
const V6: &str = "[2001:db8:ff::1]";

/// The server's end, up, and the client's file with everything routed through the tunnel.
fn ends(network: &Network, endpoint: &str, allowed_ips: &str, interface: &str) -> (Process, PathBuf) {
    let (client, server) = (End::new(1), End::new(2));
    let text = server.interface(&format!("ListenPort = {PORT}"))
        + &peer(client.public(), "AllowedIPs = 10.77.0.1, fd77::1");
    let server_up = network.up_on(&network.server, &network.file("weft0.conf", &text));
    let lines = format!("Endpoint = {endpoint}:{PORT}\nAllowedIPs = {allowed_ips}");
    std::fs::create_dir_all(network.directory.path().join("client")).unwrap();
    let file =
        network.file("client/weft0.conf", &(client.interface(interface) + &peer(server.public(), &lines)));
    (server_up, file)
}

/// Does `work` with everything that `allowed_ips` names routed through the tunnel. The client is as before at
/// the end.
pub(crate) fn with_tunnel(endpoint: &str, allowed_ips: &str, interface: &str, work: impl FnOnce(&Network)) {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let (server, file) = ends(&network, endpoint, allowed_ips, interface);
    let client = network.up(&file);
    work(&network);
    client.stop();
    network.assert_as(&before);
    server.stop();
}

fn sent_packets(network: &Network) -> u64 {
    let links = ip_json(&network.client, &["-s", "link", "show", "dev", NAME]);
    links[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

#[test]
fn everything_goes_through_the_tunnel_but_the_tunnels_own_packets() {
    if let Some(network) = Network::new() {
        assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("192.0.2.1"), "without a tunnel");
    }
    for endpoint in [V4, V6] {
        with_tunnel(endpoint, "0.0.0.0/0, ::/0", "", |network| {
            assert_eq!(seen_from(network, ip("198.51.100.1")), ip("10.77.0.1"));
            assert_eq!(seen_from(network, ip("2001:db8:aa::1")), ip("fd77::1"));
            // The local network is reached directly.
            assert_eq!(seen_from(network, ip("192.0.2.2")), ip("192.0.2.1"));
            assert_eq!(seen_from(network, ip("2001:db8::2")), ip("2001:db8::1"));
            // Packets that went round in circles would be without number.
            let sent = sent_packets(network);
            assert!((2..200).contains(&sent), "{sent} packets");
        });
    }
}

#[test]
fn one_family_alone_leaves_the_other_where_it_was() {
    with_tunnel(V4, "::/0", "", |network| {
        assert_eq!(seen_from(network, ip("198.51.100.1")), ip("192.0.2.1"));
        assert_eq!(seen_from(network, ip("2001:db8:aa::1")), ip("fd77::1"));
    });
}

#[test]
fn the_mark_of_the_file_is_the_number_of_the_table() {
    with_tunnel(V4, "0.0.0.0/0", "FwMark = 0x1234", |network| {
        let now = network.picture();
        assert!(now.has("\"fwmark\":\"0x1234\"") && now.has("\"table\":\"4660\""), "{now:#?}");
        assert_eq!(seen_from(network, ip("198.51.100.1")), ip("10.77.0.1"));
    });
}

#[test]
fn a_second_full_tunnel_takes_the_next_table_and_each_keeps_its_own() {
    with_tunnel(V4, "0.0.0.0/0", "", |network| {
        let with_first = network.picture();
        assert!(with_first.has("\"table\":\"51820\""), "{with_first:#?}");
        let other = End::new(9);
        let text = other.interface("") + &peer(End::new(8).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
        let second = network.up(&network.file("other.conf", &text));
        assert!(network.picture().has("\"table\":\"51821\""));
        second.stop();
        with_first.assert_restored(&network.client);
        assert_eq!(seen_from(network, ip("198.51.100.1")), ip("10.77.0.1"), "the first one goes on");
    });
}

#[test]
fn a_read_only_sysctl_is_a_warning_with_what_it_means() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let (server, file) = ends(&network, V4, "0.0.0.0/0", "");
    let mut command = network.weft_up(&file);
    crate::support::make_proc_sys_read_only(&mut command);
    let client = network.start(command);
    assert_eq!(network.client.sysctl("net/ipv4/conf/all/src_valid_mark").unwrap(), "0");
    assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("10.77.0.1"));
    let said = client.stop();
    assert!(said.contains("src_valid_mark") && said.contains("rp_filter"), "{said}");
    network.assert_as(&before);
    server.stop();
}

#[test]
fn a_strict_reverse_path_filter_lets_the_peers_answers_in() {
    for mode in ["1", "2"] {
        let Some(network) = Network::new() else { return };
        network.client.set_sysctl("net/ipv4/conf/all/rp_filter", mode).unwrap();
        let before = network.picture();
        let (server, file) = ends(&network, V4, "0.0.0.0/0", "");
        let client = network.up(&file);
        assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("10.77.0.1"), "rp_filter={mode}");
        client.stop();
        network.assert_as(&before);
        server.stop();
    }
}

#[test]
fn two_full_tunnels_that_start_at_once_have_rules_of_their_own() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let recording = Recording::In(network.records());
    let configs = ["weft0", "weft1"].map(|name| {
        let text = End::new(1).interface("") + &peer(End::new(2).public(), "AllowedIPs = 0.0.0.0/0, ::/0");
        // The other interface has the addresses of its network.
        let text =
            if name == "weft1" { text.replace("10.77.", "10.78.").replace("fd77:", "fd78:") } else { text };
        parse(&text, "weft.conf".as_ref(), name.parse().unwrap()).unwrap().config
    });
    let rules = |host: &Host| -> Vec<String> {
        let steps = host.plan().steps.iter().filter(|step| matches!(step, Step::Rule(_)));
        steps.map(|step| step.doing(&NAME.parse().unwrap()).to_string()).collect()
    };
    let suppressing = || {
        let rules = network.picture().0;
        rules.iter().filter(|item| item.contains("suppress_prefixlen")).count()
    };
    network.client.run(|| {
        // Both have decided before either has made a rule.
        let hosts = configs.each_ref().map(|config| Host::prepare(config, None, &[], &recording).unwrap());
        let (first, second) = (rules(&hosts[0]), rules(&hosts[1]));
        assert!(first.iter().all(|rule| !second.contains(rule)), "{first:#?} {second:#?}");
        let mut daemons = Vec::new();
        for (host, config) in hosts.into_iter().zip(&configs) {
            let (beginning, options) = (Beginning::default(), Options::default());
            let started = Daemon::start_on(host, config, beginning, &options, None, |_| Ok(()), || {});
            daemons.push(started.unwrap().0);
        }
        assert_eq!(suppressing(), 4);
        daemons.remove(0).stop().unwrap();
        assert_eq!(suppressing(), 2, "local networks stay beside the other one");
        daemons.remove(0).stop().unwrap();
    });
    network.assert_as(&before);
}

#[test]
fn a_kernel_that_lacks_a_part_of_nftables_has_a_full_tunnel_but_no_kill_switch() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let script = "#!/bin/sh\ncase \"$*\" in *list*) echo '{\"nftables\": []}'; exit;; esac\ncat >/dev/null\n\
                  echo 'internal:0:0-0: Error: Could not process rule: No such file or directory' >&2\nexit 1\n";
    // By a process without other threads: were the file open in a child that another test just forked, it
    // could not run.
    let make = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let made =
        Command::new("sh").arg("-c").arg(make).arg(network.directory.path().join("nft")).arg(script).status();
    assert!(made.unwrap().success());
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", network.directory.path().display());
    let (_server, file) = ends(&network, V4, "0.0.0.0/0, ::/0", "");
    let weft = |arguments: &[&str]| {
        let mut command = network.weft(&[&["up", file.to_str().unwrap()], arguments].concat());
        command.env("PATH", &path);
        command
    };
    let daemon = Process::start(&network.client, weft(&[])).unwrap();
    daemon.wait_for_line("interface is up");
    assert!(daemon.log().contains("the kernel lacks a part of nftables"), "{}", daemon.log());
    assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("10.77.0.1"));
    daemon.stop();
    network.assert_as(&before);

    let output = weft(&["--kill-switch=on"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("modprobe -a nf_tables nft_ct nft_fib_ipv4"), "{said}");
    network.assert_as(&before);
}
