//! Several interfaces between two sites, as docs/GATEWAY.md says: a connection stays with one of them, and
//! many use all.

use weft::up::Daemon;
use weft_lab::link::{self, LinkOptions};
use weft_lab::traffic::Amount;
use weft_lab::transfer::Transfer;
use weft_lab::{Namespace, here};
use weft_tunnel::PrivateKey;

use crate::ip::ip_json;
use crate::scene::start;

const INTERFACES: [&str; 3] = ["site0", "site1", "site2"];
/// The address of each site, on its loopback interface, in IPv4 and in IPv6.
const SITES: [[&str; 2]; 2] = [["10.30.0.1", "fd30::1"], ["10.30.1.1", "fd30:0:0:1::1"]];
const CONNECTIONS: u32 = 48;
const BYTES: u64 = 64 * 1024;

#[test]
fn connections_to_one_site_use_all_interfaces_to_it() {
    let _shared = crate::machine::shared();
    if !here::tun_permitted() {
        return;
    }
    let sites = ["near", "far"].map(|name| Namespace::new(name).unwrap());
    let outer = LinkOptions {
        addresses_a: vec!["192.0.2.1/24".parse().unwrap()],
        addresses_b: vec!["192.0.2.2/24".parse().unwrap()],
        ..LinkOptions::default()
    };
    link::join_in_order(&sites[0], &sites[1], &outer).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let keys = INTERFACES.map(|_| [0, 1].map(|_| PrivateKey::generate().unwrap()));
    let mut daemons: Vec<Daemon> = Vec::new();
    for site in [0, 1] {
        for (number, name) in INTERFACES.iter().enumerate() {
            let [own, other] = [&keys[number][site], &keys[number][1 - site]];
            let text = format!(
                "[Interface]\nPrivateKey = {}\nListenPort = {}\nTable = off\n[Peer]\nPublicKey = {}\n\
                 AllowedIPs = 10.30.0.0/16, fd30::/16\nEndpoint = 192.0.2.{}:{}\n",
                own.to_base64().as_str(),
                51820 + number,
                other.public_key(),
                2 - site,
                51820 + number,
            );
            daemons.push(start(&sites[site], name, &text, directory.path()));
        }
    }
    for (site, other) in [(0, 1), (1, 0)] {
        let [to_v4, to_v6] = SITES[other];
        let [own_v4, own_v6] = SITES[site];
        for address in SITES[site] {
            run_ip(&sites[site], &["address", "add", address, "dev", "lo"]);
        }
        for (family, to, own) in [("-4", to_v4, own_v4), ("-6", to_v6, own_v6)] {
            let base = if family == "-4" { 40 } else { 60 };
            let hops: Vec<String> =
                (base + 1..).take(INTERFACES.len()).map(|hop: u32| hop.to_string()).collect();
            for (hop, name) in hops.iter().zip(INTERFACES) {
                run_ip(&sites[site], &[family, "nexthop", "add", "id", hop, "dev", name]);
            }
            let all = base.to_string();
            run_ip(&sites[site], &["nexthop", "add", "id", &all, "group", &hops.join("/")]);
            run_ip(&sites[site], &[family, "route", "add", to, "src", own, "nhid", &all]);
        }
        for family in ["ipv4", "ipv6"] {
            sites[site].set_sysctl(&format!("net/{family}/fib_multipath_hash_policy"), "1").unwrap();
        }
    }
    for address in SITES[1] {
        let before = INTERFACES.map(|name| sent(&sites[0], name));
        let address = address.parse().unwrap();
        let transfer =
            Transfer::start(&sites[0], &sites[1], address, CONNECTIONS, Amount::Count(BYTES)).unwrap();
        assert_eq!(transfer.finish(), u64::from(CONNECTIONS) * BYTES);
        for (name, before) in INTERFACES.into_iter().zip(before) {
            // A third of the connections, give or take: a hash chooses.
            let bytes = sent(&sites[0], name) - before;
            assert!(bytes > u64::from(CONNECTIONS) * BYTES / 12, "{name} carried {bytes} bytes to {address}");
        }
    }
}

#[track_caller]
fn run_ip(namespace: &Namespace, arguments: &[&str]) {
    let output = namespace.command("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Bytes that the kernel has routed into an interface.
#[track_caller]
fn sent(namespace: &Namespace, interface: &str) -> u64 {
    let [link] = &ip_json(namespace, &["-s", "link", "show", "dev", interface])[..] else {
        panic!("{interface}")
    };
    link["stats64"]["tx"]["bytes"].as_u64().unwrap()
}
