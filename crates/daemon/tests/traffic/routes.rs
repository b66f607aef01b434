//! The device gets the addresses, the MTU and the routes of its configuration, and they go with it.

use crate::support::{
    Conf, End, Ends, Family, NAME, Running, Traces, addresses_of, answers, links_of, routes_of,
};

fn mtu_of(ends: &Ends, end: End) -> u32 {
    links_of(ends.namespace(end)).into_iter().find(|(name, ..)| name == NAME).unwrap().1
}

/// The routes through the device outside of the local table and beside those of addresses.
fn routes_through_weft(ends: &Ends) -> Vec<String> {
    let mut routes: Vec<String> = routes_of(&ends.a)
        .into_iter()
        .filter(|route| route.ends_with(" dev weft0") && !route.starts_with("table 255:"))
        .filter(|route| !route.contains("fe80::") && !route.contains("ff00::"))
        .collect();
    routes.sort();
    routes
}

/// End A with prefixes of both families beyond the network of its addresses.
fn conf_with_prefixes(table: Option<&str>) -> Conf {
    let (mut conf, _) = Conf::pair(Family::V4);
    conf.table = table.map(str::to_owned);
    conf.peers[0].allowed_ips = ["10.77.0.2/32", "10.88.0.0/16", "fd88::/48"].map(str::to_owned).into();
    conf
}

#[test]
fn addresses_and_routes_are_those_of_the_configuration() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    let weft = Running::up(&ends.a, &conf_with_prefixes(None), &[]);
    let addresses = addresses_of(&ends.a);
    for address in ["10.77.0.1/24 dev weft0", "fd77::1/64 dev weft0"] {
        assert!(addresses.iter().any(|is| is == address), "{addresses:?}");
    }
    let expected = [
        "table 254: 10.77.0.0/24 dev weft0",
        "table 254: 10.88.0.0/16 dev weft0",
        "table 254: fd77::/64 dev weft0",
        "table 254: fd88::/48 dev weft0",
    ];
    assert_eq!(routes_through_weft(&ends), expected);
    weft.stop();
    before.assert_restored(&ends.a);
}

#[test]
fn table_off_adds_no_routes() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    let weft = Running::up(&ends.a, &conf_with_prefixes(Some("off")), &[]);
    let connected = ["table 254: 10.77.0.0/24 dev weft0", "table 254: fd77::/64 dev weft0"];
    assert_eq!(routes_through_weft(&ends), connected);
    weft.stop();
    before.assert_restored(&ends.a);
}

#[test]
fn a_table_by_number_gets_every_prefix() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    // One that fits the old eight bits of a table's number, and one that does not.
    for table in ["77", "51820"] {
        let weft = Running::up(&ends.a, &conf_with_prefixes(Some(table)), &[]);
        let mut expected: Vec<String> = ["10.77.0.2/32", "10.88.0.0/16", "fd88::/48"]
            .map(|prefix| format!("table {table}: {prefix} dev weft0"))
            .into();
        expected.extend(["10.77.0.0/24", "fd77::/64"].map(|net| format!("table 254: {net} dev weft0")));
        expected.sort();
        assert_eq!(routes_through_weft(&ends), expected);
        weft.stop();
        before.assert_restored(&ends.a);
    }
}

#[test]
fn routes_that_others_removed_are_not_missed() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    let weft = Running::up(&ends.a, &conf_with_prefixes(None), &[]);
    // Its routes and IPv6 addresses go with that.
    weft_lab::link::set_down(&ends.a, NAME).unwrap();
    let (ended, _) = weft.stop();
    // Without CAP_NET_ADMIN over the machine it also warns of small socket buffers, and of the UAPI socket
    // when another test has an interface of that name.
    let of_others = |line: &str| ["UDP buffer", "wg(8) cannot ask"].iter().any(|text| line.contains(text));
    let of_routes = |line: &str| line.contains("WARN") && !of_others(line);
    // Before its end it may have seen that its routes are gone, and tells that.
    let mut of_the_end = ended.stderr.lines().skip_while(|line| !line.contains("ending"));
    assert!(of_the_end.next().is_some() && !of_the_end.any(of_routes), "{ended:?}");
    before.assert_restored(&ends.a);
}

#[test]
fn the_mtu_is_the_configured_one_or_fits_the_way_to_the_peer() {
    for (outer_mtu, configured, expected) in
        [(1500, Some(1280), 1280), (1500, None, 1420), (9000, None, 8920), (9000, Some(8000), 8000)]
    {
        let Some(ends) = Ends::new(outer_mtu) else { return };
        let (mut conf_a, mut conf_b) = Conf::pair(Family::V6);
        (conf_a.mtu, conf_b.mtu) = (configured, configured);
        let a = Running::up(&ends.a, &conf_a, &[]);
        let b = Running::up(&ends.b, &conf_b, &[]);
        assert_eq!((mtu_of(&ends, End::A), mtu_of(&ends, End::B)), (expected, expected));
        assert!(answers(&ends.a, End::B.inner(Family::V6)));
        a.stop();
        b.stop();
    }
}
