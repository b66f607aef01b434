//! What a plan holds for a configuration and a system.

use proptest::prelude::*;
use weft_config::parse;

use super::*;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn config(interface: &str, allowed_ips: &str) -> Config {
    let text = format!(
        "[Interface]\nPrivateKey={KEY}\n{interface}\n[Peer]\nPublicKey={PEER}\nAllowedIPs={allowed_ips}\n"
    );
    parse(&text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config
}

/// The rules that the kernel makes.
fn usual_rules() -> Vec<FoundRule> {
    let rule = |family, priority, table| FoundRule {
        family,
        priority,
        mark: None,
        is_inverted: false,
        table,
        is_unsigned: true,
        suppressed: None,
    };
    Family::ALL
        .into_iter()
        .flat_map(|family| [rule(family, 0, 255), rule(family, 32_766, 254), rule(family, 32_767, 253)])
        .collect()
}

fn facts() -> SystemState {
    SystemState {
        tables: BTreeSet::from([254, 255]),
        rules: usual_rules(),
        src_valid_mark: Some("0".to_owned()),
        default_mtu: 1420,
        ..SystemState::default()
    }
}

fn plan(interface: &str, allowed_ips: &str, facts: &SystemState) -> Plan {
    Plan::new(&config(interface, allowed_ips), &["192.0.2.1:51820".parse().unwrap()], facts)
}

fn lines(plan: &Plan) -> Vec<String> {
    plan.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn a_plan_is_in_the_order_of_wg_quick() {
    let interface = "Address = 10.9.0.1/24, fd99::1/64\nDNS = 192.0.2.53, corp.example\nPreUp = echo 1\n\
                     PostUp = echo 3\nPreUp = echo 2\nPostDown = echo 5\nPreDown = echo 4\n# weft: MssClamp = on";
    let plan = plan(interface, "10.9.0.2, 10.0.0.0/8, 10.7.0.0/16, fd00::/8", &facts());
    let expected = [
        "create device wg0",
        "run PreUp: echo 1",
        "run PreUp: echo 2",
        "configure keys, port and peers of wg0",
        "add address 10.9.0.1/24 dev wg0",
        "add address fd99::1/64 dev wg0",
        "set mtu 1420 dev wg0",
        "set up dev wg0",
        "set dns 192.0.2.53, corp.example dev wg0",
        "add route 10.7.0.0/16 dev wg0 table main",
        "add route 10.0.0.0/8 dev wg0 table main",
        "add route fd00::/8 dev wg0 table main",
        "add firewall mss clamp dev wg0",
        "run PostUp: echo 3",
    ];
    assert_eq!(lines(&plan), expected);
    let backwards = told_backwards(&plan.interface, &plan.steps, &plan.down);
    let expected = [
        "run PreDown: echo 4",
        "remove firewall mss clamp dev wg0",
        "remove route fd00::/8 dev wg0 table main",
        "remove route 10.0.0.0/8 dev wg0 table main",
        "remove route 10.7.0.0/16 dev wg0 table main",
        "unset dns 192.0.2.53, corp.example dev wg0",
        "remove address fd99::1/64 dev wg0",
        "remove address 10.9.0.1/24 dev wg0",
        "remove device wg0",
        "run PostDown: echo 5",
    ];
    assert_eq!(backwards.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_default_route_gets_a_table_a_mark_and_rules_of_its_own() {
    let plan = plan("Address = 10.9.0.1/32, fd99::1/128", "0.0.0.0/0, ::/0, 10.1.0.0/16", &facts());
    assert_eq!(plan.mark, 51_820);
    let expected = [
        "create device wg0",
        "configure keys, port and peers of wg0 with mark 0xca6c",
        "add address 10.9.0.1/32 dev wg0",
        "add address fd99::1/128 dev wg0",
        "set mtu 1420 dev wg0",
        "set up dev wg0",
        "add route 10.1.0.0/16 dev wg0 table main",
        "set sysctl net.ipv4.conf.all.src_valid_mark=1",
        "add route 0.0.0.0/0 dev wg0 table 51820",
        "add ip rule table main suppress_prefixlength 0 priority 32764",
        "add ip rule not fwmark 0xca6c table 51820 priority 32765",
        "add route ::/0 dev wg0 table 51820",
        "add ip6 rule table main suppress_prefixlength 0 priority 32764",
        "add ip6 rule not fwmark 0xca6c table 51820 priority 32765",
        "add firewall full tunnel of IPv4 and IPv6 with mark 0xca6c dev wg0",
    ];
    assert_eq!(lines(&plan), expected);
}

#[test]
fn each_family_has_its_own_default_route() {
    let v6 = plan("Address = fd99::1", "::/0", &facts()).to_string();
    assert!(v6.contains("ip6 rule") && !v6.contains("ip rule") && !v6.contains("src_valid_mark"), "{v6}");
    let v4 = plan("Address = 10.9.0.1", "0.0.0.0/0", &facts()).to_string();
    assert!(v4.contains("ip rule") && !v4.contains("ip6 rule") && v4.contains("src_valid_mark"), "{v4}");
    let set = SystemState { src_valid_mark: Some("1".to_owned()), ..facts() };
    let set = plan("", "0.0.0.0/0", &set);
    assert!(set.to_string().contains("keep sysctl net.ipv4.conf.all.src_valid_mark=1"), "{set}");
    let down = told_backwards(&set.interface, &set.steps, &set.down);
    assert!(!down.contains("src_valid_mark"), "{down}");
}

#[test]
fn a_table_by_number_and_no_table_need_no_rules() {
    let numbered = plan("Table = 7\nAddress = 10.9.0.1/24", "0.0.0.0/0, 10.9.0.0/24", &facts());
    assert_eq!(numbered.mark, 0);
    let text = numbered.to_string();
    assert!(
        text.contains("add route 10.9.0.0/24 dev wg0 table 7\nadd route 0.0.0.0/0 dev wg0 table 7\n"),
        "{text}"
    );
    assert!(!text.contains("rule") && !text.contains("firewall"), "{text}");
    let off = plan("Table = off\nFwMark = 9", "0.0.0.0/0", &facts());
    assert_eq!((off.mark, off.to_string().contains("route")), (9, false));
}

#[test]
fn the_mark_is_the_configured_one_else_the_one_in_force_else_a_free_one() {
    let mark = |interface: &str, facts: &SystemState| plan(interface, "::/0", facts).mark;
    assert_eq!(mark("FwMark = 0x1234", &facts()), 0x1234);
    assert_eq!(mark("", &SystemState { mark_in_force: 77, ..facts() }), 77);
    let rule = |mark, table| FoundRule {
        family: Family::V4,
        priority: 9,
        mark,
        is_inverted: false,
        table,
        is_unsigned: true,
        suppressed: None,
    };
    let mut busy = facts();
    busy.tables.insert(51_820);
    busy.marks.insert(51_821);
    busy.rules.extend([rule(Some(51_822), 254), rule(None, 51_823)]);
    assert_eq!(mark("", &busy), 51_824);
    assert_eq!(plan("", "10.0.0.0/8", &busy).mark, 0, "nothing needs one");
    assert_eq!(plan("# weft: KillSwitch = on", "10.0.0.0/8", &busy).mark, 51_824);
}

#[test]
fn the_rules_come_right_before_those_of_others() {
    let mut facts = facts();
    facts.rules.insert(
        1,
        FoundRule {
            family: Family::V4,
            priority: 100,
            mark: None,
            is_inverted: false,
            table: 5,
            is_unsigned: true,
            suppressed: None,
        },
    );
    let text = plan("", "0.0.0.0/0, ::/0", &facts).to_string();
    assert!(text.contains("add ip rule not fwmark 0xca6c table 51820 priority 99\n"), "{text}");
    assert!(text.contains("add ip rule table main suppress_prefixlength 0 priority 98\n"), "{text}");
    assert!(text.contains("add ip6 rule not fwmark 0xca6c table 51820 priority 32765\n"), "{text}");
}

#[test]
fn a_kill_switch_knows_the_tunnels_own_packets_and_the_local_name_servers() {
    let text = "DNS = 192.168.1.1\n# weft: KillSwitch = allow-local";
    let plan = plan(text, "10.0.0.0/8", &facts());
    let Some(Step::Firewall(firewall)) = plan.steps.last() else { panic!("{plan}") };
    assert_eq!(firewall.mark.map(NonZeroU32::get), Some(51_820));
    assert_eq!(firewall.endpoints, BTreeSet::from(["192.0.2.1:51820".parse().unwrap()]));
    assert_eq!(firewall.dns_servers, BTreeSet::from(["192.168.1.1".parse().unwrap()]));
    assert_eq!((firewall.kill_switch, &firewall.full_tunnel), (KillSwitch::AllowLocal, &None));
}

#[test]
fn a_clamp_has_the_mtu_of_the_device_where_routes_have_none() {
    let mtu = |text: &str, facts: &SystemState| match plan(text, "0.0.0.0/0", facts).steps.last() {
        Some(Step::Firewall(firewall)) => firewall.mtu,
        last => panic!("{last:?}"),
    };
    let halves = SystemState { routing: Routing::Halves(Vec::new()), default_mtu: 1390, ..facts() };
    assert_eq!(mtu("MTU = 1300\n# weft: MssClamp = on", &halves), Some(1300));
    assert_eq!(mtu("# weft: MssClamp = on", &halves), Some(1390));
    assert_eq!(mtu("# weft: KillSwitch = on", &halves), None);
    assert_eq!(mtu("# weft: MssClamp = on", &facts()), None);
    assert_eq!(mtu("MTU = 1200\n# weft: MssClamp = on", &facts()), Some(1200));
}

#[test]
fn planning_again_for_what_is_in_force_changes_nothing() {
    let config = config("Address = 10.9.0.1/24", "0.0.0.0/0, ::/0, 10.1.0.0/16");
    let first = Plan::new(&config, &[], &facts());
    // The state of the system with this plan in force.
    let mut now = SystemState { src_valid_mark: Some("1".to_owned()), mark_in_force: first.mark, ..facts() };
    now.tables.insert(first.mark);
    for step in &first.steps {
        let Step::Rule(rule) = step else { continue };
        let (mark, table) = match rule.kind {
            RuleKind::Unmarked { mark, table } => (Some(mark), table),
            RuleKind::MainWithoutDefault => (None, 254),
        };
        let (family, priority) = (rule.family, rule.priority);
        now.rules.push(FoundRule {
            family,
            priority,
            mark,
            is_inverted: mark.is_some(),
            table,
            is_unsigned: true,
            suppressed: None,
        });
    }
    now.rules.sort_by_key(|rule| (rule.family, rule.priority));
    let again = Plan::new(&config, &[], &now.without(&first.steps)).keeping_places_of(&first.steps);
    assert_eq!(again, first);
}

fn prefixes() -> impl Strategy<Value = Vec<String>> {
    let v4 = (any::<u32>(), 0u8..=32)
        .prop_map(|(bits, length)| format!("{}/{length}", std::net::Ipv4Addr::from(bits)));
    let v6 = (any::<u128>(), 0u8..=128)
        .prop_map(|(bits, length)| format!("{}/{length}", std::net::Ipv6Addr::from(bits)));
    prop::collection::vec(prop_oneof![v4, v6, Just("0.0.0.0/0".to_owned()), Just("::/0".to_owned())], 1..20)
}

proptest! {
    #[test]
    fn every_prefix_is_reached_through_the_tunnel_and_longer_ones_come_first(
        prefixes in prefixes(),
        tables in prop::collection::btree_set(51_820u32..51_830, 0..9),
        table in prop::sample::select(vec!["auto", "off", "7"]),
    ) {
        let facts = SystemState { tables, ..facts() };
        let config = config(&format!("Table = {table}"), &prefixes.join(","));
        let plan = Plan::new(&config, &[], &facts);
        let routes: Vec<(IpNet, u32)> = plan.steps.iter().filter_map(|step| match step {
            Step::Route { prefix, table } => Some((*prefix, *table)),
            _ => None,
        }).collect();
        let mut wanted: Vec<IpNet> = config.peers[0].allowed_ips.clone();
        wanted.sort();
        let mut routed: Vec<IpNet> = routes.iter().map(|(prefix, _)| *prefix).collect();
        prop_assert!(routed.is_sorted_by_key(|prefix| std::cmp::Reverse(prefix.prefix_len())));
        routed.sort();
        prop_assert_eq!(&routed, &if table == "off" { Vec::new() } else { wanted });
        let has_default = routed.iter().any(|prefix| prefix.prefix_len() == 0);
        prop_assert_eq!(plan.mark != 0, table == "auto" && has_default);
        prop_assert!(!facts.tables.contains(&plan.mark));
        let keys: std::collections::HashSet<_> = plan.steps.iter().map(Step::key).collect();
        prop_assert_eq!(keys.len(), plan.steps.len(), "every step is its own");
    }
}
