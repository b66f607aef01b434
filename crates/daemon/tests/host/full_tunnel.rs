//! A default route through the tunnel: everything goes through it but the tunnel's own packets.

use std::path::PathBuf;
use std::process::Command;

use weft::up::{Beginning, Daemon, Options};
use weft_config::parse;
use weft_host::{Host, Recording, Step};
use weft_lab::refusal::{Argument, Refusal};
use weft_lab::{Process, here};

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

/// Puts an nft that is this script before the others in the path, which is returned.
fn instead_of_nft(network: &Network, script: &str) -> String {
    // By a process without other threads: were the file open in a child that another test just forked, it
    // could not run.
    let make = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let made =
        Command::new("sh").arg("-c").arg(make).arg(network.directory.path().join("nft")).arg(script).status();
    assert!(made.unwrap().success());
    format!("{}:{}", network.directory.path().display(), std::env::var("PATH").unwrap())
}

#[test]
fn without_an_nft_that_sets_the_rules_there_is_a_full_tunnel_but_no_kill_switch() {
    let Some(network) = Network::new() else { return };
    let before = network.picture();
    let (_server, file) = ends(&network, V4, "0.0.0.0/0, ::/0", "");
    for (script, said) in [
        (
            "#!/bin/sh\ncat >/dev/null\necho 'Error: Could not process rule: No such file or directory' >&2\nexit 1\n",
            "load its modules (`modprobe -a nf_tables nft_ct nft_fib_ipv4",
        ),
        (
            "#!/bin/sh\necho 'nft: error while loading shared libraries: libnftables.so.1: no such file' >&2\nexit 127\n",
            "nft says: nft: error while loading shared libraries: libnftables.so.1",
        ),
    ] {
        let path = instead_of_nft(&network, script);
        let weft = |arguments: &[&str]| {
            let mut command = network.weft(&[&["up", file.to_str().unwrap()], arguments].concat());
            command.env("PATH", &path);
            command
        };
        let daemon = Process::start(&network.client, weft(&[])).unwrap();
        daemon.wait_for_line(" is up: port ");
        // The log of the start is all that `weft up -d` shows.
        assert_eq!(daemon.log().matches(said).count(), 1, "{}", daemon.log());
        for command in ["status", "doctor"] {
            let told = network.weft(&[command, NAME]).env("PATH", &path).output().unwrap();
            let told = String::from_utf8(told.stdout).unwrap();
            assert!(told.contains(said) && told.contains("hosts of the local network can send"), "{told}");
        }
        let reload = network.weft(&["reload", file.to_str().unwrap()]).output().unwrap();
        let told = String::from_utf8(reload.stderr).unwrap();
        assert!(reload.status.success() && told.contains(said), "{told}");
        assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("10.77.0.1"));
        daemon.stop();
        network.assert_as(&before);

        let output = weft(&["--kill-switch=on"]).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains(said), "{log}");
        network.assert_as(&before);
    }
}

#[test]
fn without_nftables_in_the_kernel_there_is_a_full_tunnel() {
    let Some(network) = Network::new() else { return };
    let (_server, file) = ends(&network, V4, "0.0.0.0/0, ::/0", "");
    let mut command = network.weft(&["up", file.to_str().unwrap()]);
    let netlink = [(0, Argument::Is(libc::AF_NETLINK)), (2, Argument::Is(libc::NETLINK_NETFILTER))];
    Refusal::new(libc::SYS_socket, &netlink, libc::EPROTONOSUPPORT).apply_to(&mut command);
    let daemon = network.start(command);
    assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("10.77.0.1"));
    daemon.stop();
}

#[test]
fn an_nft_that_was_built_without_json_sets_all_rules() {
    let Some(network) = Network::new() else { return };
    let Some(nft) = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|directory| directory.join("nft"))
        .find(|nft| nft.exists())
    else {
        return here::not_run("there is no nft");
    };
    let before = network.picture();
    let script = format!(
        "#!/bin/sh\nfor a; do case $a in -*j*) echo 'Error: JSON support not compiled-in' >&2; exit 1;; esac; done\n\
         exec {} \"$@\"\n",
        nft.display()
    );
    let path = instead_of_nft(&network, &script);
    let (_server, file) =
        ends(&network, V4, "0.0.0.0/0, ::/0", "# weft: KillSwitch = on\n# weft: MssClamp = on");
    let mut command = network.weft(&["up", file.to_str().unwrap()]);
    command.env("PATH", &path);
    let daemon = Process::start(&network.client, command).unwrap();
    daemon.wait_for_line(" is up: port ");
    let listed = network.client.command("nft").args(["list", "tables"]).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 3, "{}", daemon.log());
    let doctor = network.weft(&["doctor", file.to_str().unwrap()]).env("PATH", &path).output().unwrap();
    let found = String::from_utf8(doctor.stdout).unwrap();
    assert!(found.contains("nft is installed, and sets the rules"), "{found}");
    assert_eq!(seen_from(&network, ip("198.51.100.1")), ip("10.77.0.1"));
    daemon.stop();
    network.assert_as(&before);
}
