//! The calls of IP Helper for a plan, and what is left of them.

use super::simulation::{AUTOMATIC, ETHERNET, OWN, Own, WIFI};
use super::*;
use crate::execute::Applied;
use crate::routes::tables::Configurator;
use crate::routes::tables::tests::{
    Simulation, endpoints, full_tunnel, gateway, machine, of_device, plan, up,
};
use crate::step::Step;

const DEVICE: &str = <Own as Simulation>::DEVICE;

fn log(machine: &Configurator<Own>) -> Vec<String> {
    machine.tables.machine.log.take().into_iter().filter(|call| !call.starts_with("set ")).collect()
}

fn link() -> Link {
    Link { name: DEVICE.to_owned(), index: 19, mtu: 1420 }
}

#[test]
fn a_default_route_is_two_halves_behind_host_routes_to_the_endpoints() {
    let mut machine = machine::<Own>();
    let before = machine.tables.around();
    let plan = plan(&full_tunnel::<Own>(), &machine, &[]);
    assert_eq!(plan.mark, 0, "nothing looks at a mark");
    let mut applied = Applied::default();
    applied.apply(&plan.steps, &mut machine).unwrap();
    let expected = [
        "address 10.9.0.2/24 dev 9",
        "address fd00::2/64 dev 9",
        // Of the ways to the Internet, the one that Windows prefers.
        "route 192.0.2.1/32 via 192.168.1.1 dev 2",
        "route 2001:db8::1/128 via fe80::1 dev 2",
        // It came with the address.
        "route 10.9.0.0/24 via 0.0.0.0 dev 9",
        "route 0.0.0.0/1 via 0.0.0.0 dev 9",
        "route 128.0.0.0/1 via 0.0.0.0 dev 9",
        "route ::/1 via :: dev 9",
        "route 8000::/1 via :: dev 9",
    ];
    assert_eq!(log(&machine), expected);
    assert!(applied.undo(&mut machine).is_empty());
    let expected = [
        "no route 8000::/1 via :: dev 9",
        "no route ::/1 via :: dev 9",
        "no route 128.0.0.0/1 via 0.0.0.0 dev 9",
        "no route 0.0.0.0/1 via 0.0.0.0 dev 9",
        "no route 2001:db8::1/128 via fe80::1 dev 2",
        "no route 192.0.2.1/32 via 192.168.1.1 dev 2",
        "no address fd00::2 dev 9",
        "no address 10.9.0.2 dev 9",
    ];
    assert_eq!(log(&machine), expected);
    assert_eq!(machine.tables.around(), before);
}

#[test]
fn the_device_has_its_mtu_asks_no_router_and_is_preferred_while_it_has_a_default_route() {
    let (mut machine, mut applied) = up::<Own>();
    for family in Family::ALL {
        let preferred = Settings {
            mtu: 1380,
            metric: 0,
            is_metric_automatic: false,
            dad_transmits: 0,
            asks_routers: false,
        };
        assert_eq!(machine.tables.own(family), preferred, "{family}");
    }
    assert_eq!(machine.link(&DEVICE.parse().unwrap()).unwrap(), Link { mtu: 1380, ..link() });
    let split = of_device::<Own>("Address = 10.9.0.2/24, fd00::2/64\nMTU = 1380", "::/0, 10.9.0.0/24");
    let split = plan(&split, &machine, applied.steps());
    applied.change_to(&split.steps, &mut machine).unwrap();
    let metric = |family| {
        let settings = machine.tables.own(family);
        (settings.metric, settings.is_metric_automatic)
    };
    assert_eq!(Family::ALL.map(metric), [(AUTOMATIC, true), (0, false)]);
}

#[test]
fn a_half_that_cannot_be_removed_is_preferred_still() {
    let machine = machine::<Own>();
    let half = "::/1".parse().unwrap();
    machine.add_route(&link(), half, MAIN_TABLE).unwrap();
    let before = machine.tables.around();
    machine.tables.fail(machine.tables.calls() + 2, 1);
    let error = machine.remove_route(&link(), half, MAIN_TABLE).unwrap_err().to_string();
    assert!(error.starts_with("cannot remove the route ::/1 dev wg0: it fails"), "{error}");
    assert_eq!(machine.tables.around(), before);
}

#[test]
fn the_least_mtu_of_ipv6_does_not_hinder_ipv4() {
    let machine = machine::<Own>();
    machine.set_mtu(&link(), 1000).unwrap();
    assert_eq!(Family::ALL.map(|family| machine.tables.own(family).mtu), [1000, 1280]);
    machine.tables.fail(machine.tables.calls() + 2, 1);
    machine.set_mtu(&link(), 1400).unwrap_err();
    assert_eq!(Family::ALL.map(|family| machine.tables.own(family).mtu), [1000, 1280]);
    machine.tables.switch_off(Family::V6);
    machine.set_mtu(&link(), 1400).unwrap();
    assert_eq!(machine.tables.own(Family::V4).mtu, 1400);
}

#[test]
fn a_protocol_that_is_switched_off_is_an_error_that_names_the_address_and_the_remedy() {
    let mut machine = machine::<Own>();
    machine.tables.switch_off(Family::V6);
    let before = machine.tables.around();
    let plan = plan(&full_tunnel::<Own>(), &machine, &[]);
    let error = Applied::default().apply(&plan.steps, &mut machine).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("cannot add the address fd00::2/64 to wg0: "), "{text}");
    assert!(text.contains("-ComponentID ms_tcpip6") && text.contains("remove the IPv6 addresses"), "{text}");
    assert!(!text.contains('\n'));
    assert_eq!(machine.tables.around(), before);
    let error = machine.add_route(&link(), "::/1".parse().unwrap(), MAIN_TABLE).unwrap_err();
    assert_eq!(error.exit_code(), weft_config::exit::Code::Failure);
    let error = error.to_string();
    assert!(error.starts_with("cannot add the route ::/1 dev wg0: "), "{error}");
    assert!(error.contains("-ComponentID ms_tcpip6"), "{error}");
    // Without IPv6 in the configuration nothing misses it.
    let config = of_device::<Own>("Address = 10.9.0.2/24\nMTU = 1380", "0.0.0.0/0");
    let plan = crate::routes::tables::tests::plan(&config, &machine, &[]);
    Applied::default().apply(&plan.steps, &mut machine).unwrap();
}

#[test]
fn a_missing_right_and_another_table_are_told_in_one_line() {
    let machine = machine::<Own>();
    let denied = Refusal::Failed(io::ErrorKind::PermissionDenied.into());
    let denied = machine.tables.refused(&Edit::SetMtu(&link(), 1380), denied);
    assert_eq!(denied.exit_code(), weft_config::exit::Code::Permission);
    assert!(denied.to_string().ends_with("; run weft as an administrator"), "{denied}");
    let error = machine.add_route(&link(), "10.0.0.0/8".parse().unwrap(), 7).unwrap_err().to_string();
    assert!(error.contains("one routing table; set `Table` to `auto` or `off`"), "{error}");
}

#[test]
fn an_address_of_another_interface_is_an_error_and_stays_there() {
    let machine = machine::<Own>();
    let address: IpNet = "10.9.0.2/24".parse().unwrap();
    machine.tables.machine.tables.borrow_mut().addresses.insert((WIFI, address));
    let error = machine.add_address(&link(), address).unwrap_err().to_string();
    assert!(error.contains("10.9.0.2/24") && error.contains("another interface has it"), "{error}");
    machine.remove_address(&link(), address).unwrap();
    assert_eq!(super::Machine::addresses(&machine.tables.machine).unwrap(), [(WIFI, address)]);
    // The own one is there already when weft continues with an adapter.
    let own = "10.9.0.3/24".parse().unwrap();
    machine.add_address(&link(), own).unwrap();
    machine.add_address(&link(), own).unwrap();
}

#[test]
fn another_program_s_route_of_the_same_prefix_stays_beside_the_own_one() {
    let mut machine = machine::<Own>();
    let theirs = Row { metric: 5, ..own_route(WIFI, "0.0.0.0/1".parse().unwrap()) };
    machine.tables.machine.tables.borrow_mut().routes.insert(theirs);
    let before = machine.tables.around();
    let plan = plan(&full_tunnel::<Own>(), &machine, &[]);
    let mut applied = Applied::default();
    applied.apply(&plan.steps, &mut machine).unwrap();
    let found = machine.tables.routes(MAIN_TABLE).unwrap();
    let last = found.iter().rfind(|route| route.prefix == theirs.prefix).unwrap();
    assert_eq!(last.via.interface(), Some(DEVICE), "the own one is preferred");
    assert!(applied.undo(&mut machine).is_empty());
    assert_eq!(machine.tables.around(), before);
}

#[test]
fn an_adapter_that_is_gone_took_its_addresses_and_routes_and_the_rest_is_undone() {
    let (machine, applied) = up::<Own>();
    let mut state = machine.tables.machine.tables.borrow_mut();
    state.adapters.retain(|adapter| adapter.luid != OWN);
    state.routes.retain(|row| row.luid != OWN);
    state.addresses.clear();
    drop(state);
    // What `kernel.rs` undoes without a device.
    let outside = |step: &&Step| matches!(step, Step::EndpointRoute { .. });
    for step in applied.steps().iter().filter(outside) {
        let Step::EndpointRoute { address, via } = step else { unreachable!() };
        machine.remove_endpoint_route(*address, via).unwrap();
    }
    assert_eq!(machine.tables.machine.tables.borrow().routes, Own::home().machine.tables.borrow().routes);
    let gone = machine.add_address(&link(), "10.9.0.2/24".parse().unwrap()).unwrap_err().to_string();
    assert!(gone.contains("switched off"), "{gone}");
    assert!(machine.link(&DEVICE.parse().unwrap()).unwrap_err().to_string().contains("no interface wg0"));
}

#[test]
fn the_mtu_is_that_of_the_ways_to_the_endpoints_less_80() {
    let machine = machine::<Own>();
    let mut config = full_tunnel::<Own>();
    config.interface.mtu = None;
    let set = |luid, mtu| {
        let mut tables = machine.tables.machine.tables.borrow_mut();
        tables.settings.get_mut(&(luid, Family::V4)).unwrap().mtu = mtu;
    };
    set(WIFI, 1300);
    assert_eq!(machine.default_mtu(&config, &endpoints(), 0), 1420, "no way leads there");
    set(ETHERNET, 1400);
    assert_eq!(machine.default_mtu(&config, &endpoints(), 0), 1320);
    let towards = |endpoint: &str| machine.mtu_towards(endpoint.parse().unwrap(), 0).unwrap();
    assert_eq!(towards("192.0.2.1:1"), 1400);
    // IPv6 in the tunnel needs 1280.
    for (luid, mtu, inner) in [(ETHERNET, 1400, 1320), (WIFI, 1300, 1280)] {
        let endpoint = format!("[fe80::1%{}]:1", luid + 10);
        assert_eq!(towards(&endpoint), mtu, "{endpoint}");
        assert_eq!(machine.default_mtu(&config, &[endpoint.parse().unwrap()], 0), inner, "{endpoint}");
    }
    machine.tables.disconnect();
    assert_eq!(machine.default_mtu(&config, &endpoints(), 0), 1420, "nothing is known");
}

#[test]
fn what_leads_to_the_loopback_interface_goes_nowhere_but_for_its_own_network() {
    let machine = machine::<Own>();
    let address = "203.0.113.4".parse().unwrap();
    machine.add_endpoint_route(address, &Via::Blackhole).unwrap();
    assert_eq!(log(&machine), ["route 203.0.113.4/32 via 0.0.0.0 dev 1"]);
    assert!(machine.has_endpoint_route(address, &Via::Blackhole).unwrap());
    let own =
        machine.tables.routes(MAIN_TABLE).unwrap().into_iter().find(|route| route.prefix.prefix_len() == 8);
    assert_eq!(own.unwrap().via, Via::Interface("Loopback Pseudo-Interface 1".to_owned()));
    let gone = Via::Gateway { address, interface: "Ethernet 7".to_owned() };
    let error = machine.add_endpoint_route(address, &gone).unwrap_err().to_string();
    assert!(error.contains("via 203.0.113.4 dev Ethernet 7") && error.contains("is gone"), "{error}");
    assert_eq!(gateway::<Own>("192.168.1.1").interface(), Some("Ethernet"));
}
