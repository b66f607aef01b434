//! Tests that host routes follow the system's routes and the endpoints, against tables in memory.

use super::*;
use crate::routes::Via;
use crate::routes::bsd::{self, tests::Simulated as Bsd};
use crate::routes::tables::Configurator;
use crate::routes::tables::tests::{Simulation, endpoints, full_tunnel, gateway, plan, up};
use crate::routes::windows::{self, simulation::Simulated as Windows};

const DEFAULT: &str = "0.0.0.0/0";

fn host_routes(steps: &[Step]) -> Vec<(String, Via)> {
    let routes = steps.iter().filter_map(|step| match step {
        Step::EndpointRoute { address, via } => Some((address.to_string(), via.clone())),
        _ => None,
    });
    routes.collect()
}

fn host_routes_follow<T: Simulation>() {
    let (mut system, mut applied) = up::<T>();
    let mut now = plan(&full_tunnel::<T>(), &system, applied.steps());
    let v6 = ("2001:db8::1".to_owned(), gateway::<T>("fe80::1"));
    let to = |via| vec![("192.0.2.1".to_owned(), via), v6.clone()];
    assert_eq!(host_routes(applied.steps()), to(gateway::<T>("192.168.1.1")));
    let mut follow = |now: &mut Plan, endpoints: &[SocketAddr], system: &mut Configurator<T>| {
        let Routing::Halves(found) = system.routing().unwrap() else { panic!() };
        *now = following(now, &mut applied, endpoints, found);
        let is_same = now.steps == applied.steps();
        applied.change_to(&now.steps, system).unwrap();
        (is_same, host_routes(applied.steps()))
    };
    let all = endpoints();
    let same = follow(&mut now, &all, &mut system);
    assert_eq!(same, (true, to(gateway::<T>("192.168.1.1"))), "nothing changed");

    // Without a gateway the packets go nowhere, and then through the next one.
    system.tables.set_way(DEFAULT, None);
    assert_eq!(follow(&mut now, &all, &mut system), (false, to(Via::Blackhole)));
    let nowhere = system.has_endpoint_route("192.0.2.1".parse().unwrap(), &Via::Blackhole);
    assert!(nowhere.unwrap());
    system.tables.set_way(DEFAULT, Some(gateway::<T>("172.16.0.1")));
    assert_eq!(follow(&mut now, &all, &mut system), (false, to(gateway::<T>("172.16.0.1"))));

    // The kernel removes host routes with their interface, which then comes back as it was.
    system.tables.set_way("192.0.2.1/32", None);
    assert_eq!(follow(&mut now, &all, &mut system).1.len(), 2);
    let via = gateway::<T>("172.16.0.1");
    assert!(system.has_endpoint_route("192.0.2.1".parse().unwrap(), &via).unwrap());

    // A peer that roams takes its route along.
    let roamed: Vec<SocketAddr> = vec!["203.0.113.4:1".parse().unwrap()];
    let (_, routes) = follow(&mut now, &roamed, &mut system);
    assert_eq!(routes, [("203.0.113.4".to_owned(), gateway::<T>("172.16.0.1"))]);

    let before = T::home();
    before.set_way(DEFAULT, Some(gateway::<T>("172.16.0.1")));
    assert!(applied.undo(&mut system).is_empty());
    assert_eq!(system.tables.around(), before.around());
}

#[test]
fn host_routes_follow_the_gateway_and_the_endpoints() {
    host_routes_follow::<bsd::Programs<Bsd>>();
    host_routes_follow::<windows::IpHelper<Windows>>();
}

#[test]
fn a_host_route_leaves_an_interface_that_is_disconnected() {
    type Machine = windows::IpHelper<Windows>;
    let (mut system, mut applied) = up::<Machine>();
    let now = plan(&full_tunnel::<Machine>(), &system, applied.steps());
    // Windows keeps the routes of the interface.
    system.tables.disconnect();
    let Routing::Halves(found) = system.routing().unwrap() else { panic!() };
    let now = following(&now, &mut applied, &endpoints(), found);
    applied.change_to(&now.steps, &mut system).unwrap();
    let address = "192.0.2.1".parse().unwrap();
    assert!(system.has_endpoint_route(address, &Via::Blackhole).unwrap());
    assert!(!system.has_endpoint_route(address, &gateway::<Machine>("192.168.1.1")).unwrap());
}
