use std::num::NonZeroU32;

use serde_json::{Value, json};
use weft_lab::{Namespace, here};

use super::super::{FullTunnel, KillSwitch, Local, OwnPackets};
use super::*;

fn full() -> Rules {
    let mark = NonZeroU32::new(0xca6c).unwrap();
    Rules {
        full_tunnel: Some(FullTunnel {
            mark,
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ipv4: true,
            ipv6: true,
        }),
        kill_switch: Some(KillSwitch { own: OwnPackets::Marked(mark), local: Local::Blocked }),
        mss_clamp: true,
        ..Rules::none("wg0".parse().unwrap())
    }
}

/// Returns the commands of a transaction, each with its verb and its object.
fn commands(batch: &Nftables<'_>) -> Vec<Value> {
    let mut document = serde_json::to_value(batch).unwrap();
    document["nftables"].take().as_array().unwrap().clone()
}

fn rules(rules: &Rules) -> Vec<Value> {
    commands(&batch(rules, &[])).iter().filter_map(|command| command.pointer("/add/rule").cloned()).collect()
}

#[test]
fn a_transaction_takes_away_what_was_there_before_it_adds() {
    let all = tables_of(&"wg0".parse().unwrap());
    let cleared = commands(&batch(&Rules::none("wg0".parse().unwrap()), &all));
    let expected: Vec<Value> = [("ip", "wg-quick-wg0"), ("ip6", "wg-quick-wg0"), ("inet", "weft-wg0")]
        .into_iter()
        .flat_map(|(family, name)| {
            let table = json!({ "table": { "family": family, "name": name } });
            [json!({ "add": table }), json!({ "delete": table })]
        })
        .collect();
    assert_eq!(cleared, expected);
    assert_eq!(commands(&batch(&full(), &[]))[..6], expected);
}

#[test]
fn a_transaction_names_no_table_that_is_neither_there_nor_wanted() {
    let mut rules = full();
    rules.full_tunnel.as_mut().unwrap().ipv6 = false;
    (rules.kill_switch, rules.mss_clamp) = (None, false);
    let families = |present: &[Table]| {
        let text = serde_json::to_string(&batch(&rules, present)).unwrap();
        ["\"ip\"", "\"ip6\"", "\"inet\""].map(|family| text.contains(&format!("\"family\":{family}")))
    };
    assert_eq!(families(&[]), [true, false, false]);
    assert_eq!(families(&[full_tunnel_table(&rules.interface, true)]), [true, true, false]);
    assert_eq!(families(&[full_tunnel_table(&"wg1".parse().unwrap(), true)]), [true, false, false]);
}

#[test]
fn a_rule_is_written_as_nft_reads_it() {
    let rules = rules(&full());
    let own = rules.iter().find(|rule| rule["chain"] == "preraw" && rule["family"] == "ip6").unwrap();
    let expected = json!([
        { "match": { "op": "!=", "left": { "meta": { "key": "iifname" } }, "right": "wg0" } },
        { "match": {
            "op": "==", "left": { "payload": { "protocol": "ip6", "field": "daddr" } }, "right": "fd00::2"
        } },
        { "match": {
            "op": "!=", "left": { "fib": { "result": "type", "flags": ["saddr"] } }, "right": "local"
        } },
        { "drop": {} },
    ]);
    assert_eq!(own["expr"], expected);
}

#[test]
fn nothing_is_let_through_without_a_condition_and_every_base_chain_ends_with_a_refusal() {
    let rules = rules(&full());
    for rule in rules.iter().filter(|rule| rule["table"] == "weft-wg0") {
        let statements = rule["expr"].as_array().unwrap();
        let accepts = statements.iter().any(|statement| statement.get("accept").is_some());
        assert!(!accepts || statements[0].get("match").is_some(), "{rule}");
    }
    for (chain, verdict) in [("output", "reject"), ("forward", "drop"), ("postrouting", "drop")] {
        let last = rules.iter().rfind(|rule| rule["chain"] == chain).unwrap();
        assert!(last["expr"][1].get(verdict).is_some(), "{last}");
    }
}

#[test]
fn the_kill_switch_never_names_a_device_by_its_number() {
    // When the tunnel comes back, an interface index may belong to another device, or to none.
    let text = serde_json::to_string(&batch(&full(), &[])).unwrap();
    assert!(text.contains("\"oifname\"") && !text.contains("\"oif\"") && !text.contains("\"iif\""));
}

#[test]
fn one_process_at_a_time_changes_the_rules_of_a_network_namespace() {
    if !here::namespaces_permitted() {
        return;
    }
    let other = || File::open("/proc/thread-self/ns/net").unwrap();
    Namespace::new("alone").unwrap().run(|| {
        let first = alone().unwrap();
        assert!(matches!(other().try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        other().try_lock().unwrap();
    });
}
