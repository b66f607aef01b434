//! weft's own `up` beside Debian's wg-quick(8) with wireguard-go underneath: the same file in twin
//! namespaces, and what ip(8) and nft(8) tell then compared item by item.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use weft_lab::{Namespace, here};

use crate::support::{End, NAME, Network, ip_json, peer};

/// wg-quick's interface. It goes with this value, and wireguard-go with it.
struct WgQuick<'a>(&'a Namespace);

impl<'a> WgQuick<'a> {
    fn up(namespace: &'a Namespace, file: &Path) -> Self {
        // Its sockets are found by the interface's name, which is the same in both namespaces: each has
        // a separate directory.
        let script =
            "mkdir -p /run/wireguard && mount -t tmpfs none /run/wireguard && exec wg-quick up \"$1\"";
        let mut command: Command = namespace.command("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(file);
        let guard = Self(namespace);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        guard
    }
}

impl Drop for WgQuick<'_> {
    fn drop(&mut self) {
        let _ = self.0.command("ip").args(["link", "delete", "dev", NAME]).output();
    }
}

/// Without `key`s.
fn without(mut value: Value, keys: &[&str]) -> Value {
    if let Value::Object(map) = &mut value {
        map.retain(|key, _| !keys.contains(&key.as_str()));
    }
    value
}

/// Everything that ip(8) shows of the interface, without what differs from device to device.
fn told(namespace: &Namespace) -> Vec<(String, Value)> {
    let mut items = Vec::new();
    let link = ip_json(namespace, &["address", "show", "dev", NAME]).remove(0);
    items.push(("mtu".to_owned(), link["mtu"].clone()));
    let up = link["flags"].as_array().unwrap().contains(&json!("UP"));
    items.push(("up".to_owned(), json!(up)));
    for address in link["addr_info"].as_array().unwrap() {
        // The kernel makes the link-local one by chance.
        if address["scope"] != "link" {
            // weft's can be used at once: no other program can have them.
            items.push(("address".to_owned(), without(address.clone(), &["nodad", "tentative"])));
        }
    }
    for family in ["-4", "-6"] {
        for route in ip_json(namespace, &[family, "route", "show", "table", "all", "dev", NAME]) {
            let of_link_local = route["dst"].as_str().is_some_and(|dst| dst.starts_with("fe80:"));
            // weft says that an administrator made it (static), ip-route(8) without more that the boot did.
            if !of_link_local {
                items.push((format!("{family} route"), without(route, &["protocol", "flags"])));
            }
        }
        for rule in ip_json(namespace, &[family, "rule"]) {
            items.push((format!("{family} rule"), without(rule, &["protocol"])));
        }
    }
    let mark = namespace.sysctl("net/ipv4/conf/all/src_valid_mark").unwrap();
    items.push(("src_valid_mark".to_owned(), json!(mark)));
    items.extend(nft(namespace));
    items.sort_by_key(|(kind, value)| (kind.clone(), value.to_string()));
    items
}

/// The rules of the packet filter, without handles and without the names that their makers gave.
fn nft(namespace: &Namespace) -> Vec<(String, Value)> {
    let output = namespace.command("nft").args(["-j", "list", "ruleset"]).output().unwrap();
    let text = String::from_utf8(output.stdout)
        .unwrap()
        .replace("wg-quick-weft0", "TABLE")
        .replace("weft-weft0", "TABLE");
    let ruleset: Value = serde_json::from_str(&text).unwrap();
    let objects =
        ruleset["nftables"].as_array().unwrap().iter().filter(|object| object.get("metainfo").is_none());
    let mut items = Vec::new();
    for object in objects {
        // wg-quick guards the link-local address too, which the kernel makes by chance.
        for (kind, value) in
            object.as_object().unwrap().iter().filter(|(_, value)| !value.to_string().contains("fe80::"))
        {
            items.push((format!("nft {kind}"), without(value.clone(), &["handle", "comment"])));
        }
    }
    items
}

/// Brings the same file up by both, and compares.
#[track_caller]
fn compare(interface: &str, allowed_ips: &str) {
    if !here::installed(&["wg-quick", "wireguard-go", "wg", "nft", "unshare"]) {
        return;
    }
    let (Some(ours), Some(theirs)) = (Network::new(), Network::new()) else { return };
    let lines = format!("Endpoint = 203.0.113.1:51820\nAllowedIPs = {allowed_ips}");
    let text = End::new(1).interface(interface) + &peer(End::new(2).public(), &lines);
    let daemon = ours.up(&ours.file("weft0.conf", &text));
    let file = theirs.file("weft0.conf", &text);
    let wg_quick = WgQuick::up(&theirs.client, &file);
    let (is, expected) = (told(&ours.client), told(&theirs.client));
    let missing: Vec<_> = expected.iter().filter(|item| !is.contains(item)).collect();
    let more: Vec<_> = is.iter().filter(|item| !expected.contains(item)).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing: {missing:#?}\nmore: {more:#?}");
    assert!(is.len() > 8, "{is:#?}");
    drop(wg_quick);
    daemon.stop();
}

#[test]
fn addresses_and_routes_are_the_same() {
    compare("", "10.77.0.2, 10.88.0.0/16, 10.0.0.0/8, fd88::/48, fd77::2");
}

#[test]
fn mtu_and_mark_are_the_same() {
    compare("MTU = 1300\nFwMark = 77", "10.88.0.0/16");
}

#[test]
fn a_table_by_number_is_the_same() {
    compare("Table = 1234", "0.0.0.0/0, 10.77.0.2, ::/0");
}

#[test]
fn no_table_is_the_same() {
    compare("Table = off", "0.0.0.0/0, 10.77.0.2, ::/0");
}

#[test]
fn a_full_tunnel_is_the_same() {
    compare("", "0.0.0.0/0, ::/0, 10.88.0.0/16");
}

#[test]
fn a_full_tunnel_of_one_family_with_a_mark_is_the_same() {
    compare("FwMark = 0x1234", "::/0");
    compare("FwMark = 0x1234", "0.0.0.0/0");
}
