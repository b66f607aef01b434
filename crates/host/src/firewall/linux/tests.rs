use std::num::NonZeroU32;

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

/// Returns the commands of a transaction.
fn commands(rules: &Rules, unwanted: &[Table]) -> Vec<String> {
    let script = String::from_utf8(script(rules, unwanted).into_bytes()).unwrap();
    script.lines().map(str::to_owned).collect()
}

/// Returns the rules of a transaction, without `add rule`.
fn rules_of(rules: &Rules) -> Vec<String> {
    let commands = commands(rules, &[]);
    commands.iter().filter_map(|command| command.strip_prefix("add rule ").map(str::to_owned)).collect()
}

#[test]
fn a_transaction_takes_away_what_was_there_before_it_adds() {
    let none = Rules::none("wg0".parse().unwrap());
    let cleared = commands(&none, &tables_of(&none.interface));
    let expected: Vec<String> = ["ip wg-quick-wg0", "ip6 wg-quick-wg0", "inet weft-wg0"]
        .into_iter()
        .flat_map(|table| ["add", "delete"].map(|verb| format!("{verb} table {table}")))
        .collect();
    assert_eq!(cleared, expected);
    assert_eq!(commands(&full(), &[])[..6], expected);
}

#[test]
fn a_transaction_names_no_table_that_is_neither_there_nor_wanted() {
    let mut rules = full();
    rules.full_tunnel.as_mut().unwrap().ipv6 = false;
    (rules.kill_switch, rules.mss_clamp) = (None, false);
    let families = |present: &[Table]| {
        let text = commands(&rules, present).join(" ");
        [" ip ", " ip6 ", " inet "].map(|family| text.contains(&format!("table{family}")))
    };
    assert_eq!(families(&[]), [true, false, false]);
    assert_eq!(families(&[full_tunnel_table(&rules.interface, true)]), [true, true, false]);
    assert_eq!(families(&[full_tunnel_table(&"wg1".parse().unwrap(), true)]), [true, false, false]);
}

#[test]
fn a_rule_is_written_as_nft_reads_it() {
    let expected = "ip6 wg-quick-wg0 preraw iifname != \"wg0\" ip6 daddr fd00::2 fib saddr type != local drop \
                    comment \"only from the tunnel\"";
    assert!(rules_of(&full()).iter().any(|rule| rule == expected));
}

#[test]
fn nothing_is_let_through_without_a_condition_and_every_base_chain_ends_with_a_refusal() {
    let rules = rules_of(&full());
    for rule in rules.iter().filter_map(|rule| rule.strip_prefix("inet weft-wg0 ")) {
        assert!(rule.split_whitespace().nth(1) != Some("accept"), "{rule}");
    }
    for (chain, verdict) in
        [("output", "counter reject"), ("forward", "counter drop"), ("postrouting", "counter drop")]
    {
        let own = format!("inet weft-wg0 {chain} ");
        let last = rules.iter().rev().find_map(|rule| rule.strip_prefix(&own)).unwrap();
        assert!(last.starts_with(verdict), "{last}");
    }
}

#[test]
fn the_kill_switch_never_names_a_device_by_its_number() {
    // When the tunnel comes back, an interface index may belong to another device, or to none.
    let text = commands(&full(), &[]).join(" ");
    assert!(text.contains(" oifname ") && !text.contains(" oif ") && !text.contains(" iif "));
}

#[test]
fn no_set_of_a_table_can_be_changed_by_others() {
    let mut rules = full();
    rules.kill_switch.as_mut().unwrap().own = OwnPackets::To(["192.0.2.1:7".parse().unwrap()].into());
    for commands in [commands(&rules, &[]), commands(&full(), &[])] {
        // A set without a name stays as it is.
        assert!(!commands.iter().any(|line| line.contains("add set")), "{commands:?}");
    }
}

#[test]
fn the_counters_of_what_is_blocked_are_read_in_what_nft_says() {
    let listing = "table inet weft-wg0 {\n\tchain output {\n\t\ttype filter hook output priority 0; policy drop;\n\
        \t\tjump sent comment \"of this machine\"\n\
        \t\tcounter packets 3 bytes 9 reject with icmpx type admin-prohibited comment \"blocked\"\n\t}\n\
        \tchain forward {\n\t\tcounter packets 4 bytes 9 drop comment \"blocked\"\n\
        \t\tcounter packets 8 bytes 9 accept comment \"others\"\n\t}\n}\n";
    assert_eq!(blocked_in(listing), Some(7));
    let clamp_only = "table inet weft-wg0 {\n\tchain mss {\n\t}\n}\n";
    assert_eq!(blocked_in(clamp_only), None);
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
        let stranger = other();
        stranger.try_lock().unwrap();
        // It is waited for while rules change, and not for longer.
        for changes in [0, 3] {
            let mut calls = 0;
            let generation = || {
                calls += 1;
                Some(calls.min(changes + 1))
            };
            assert!(alone_while(generation).is_none());
            assert_eq!(calls, changes + 2);
        }
        let generation = || TableSocket::open().unwrap().generation().unwrap();
        let before = generation();
        assert_eq!(generation(), before);
        apply(&full()).unwrap();
        assert_ne!(generation(), before);
    });
}

#[test]
fn a_rule_that_gives_packets_another_source_is_found_in_its_family() {
    use crate::routes::Family::{V4, V6};
    for (listing, families) in [
        (
            "table inet gateway {\n\tchain p {\n\t\tiifname \"wg0\" oifname != \"wg0\" masquerade\n",
            &[V4, V6][..],
        ),
        ("table ip nat {\n\t\tip saddr 10.0.0.0/8 snat to 192.0.2.1\n", &[V4]),
        ("table ip6 nat {\n\t\tmasquerade\n\t}\n}\ntable ip other {\n", &[V6]),
        ("table ip nat {\n\t\toifname \"eth0\" counter packets 0 bytes 0 xt target \"MASQUERADE\"\n", &[V4]),
        ("table inet masquerade {\n\tchain snat {\n\t\ttcp dport 80 dnat ip to 10.0.0.1\n", &[]),
    ] {
        assert_eq!(super::translated_in(listing), families.iter().copied().collect(), "{listing}");
    }
}
