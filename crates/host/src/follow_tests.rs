//! Tests that host routes follow the system's routes and the endpoints, against tables in memory.

use super::*;
use crate::routes::Via;
use crate::routes::bsd::tests::{endpoints, full_tunnel, gateway, machine, plan};

const DEFAULT: &str = "0.0.0.0/0";

fn host_routes(steps: &[Step]) -> Vec<(String, Via)> {
    let routes = steps.iter().filter_map(|step| match step {
        Step::EndpointRoute { address, via } => Some((address.to_string(), via.clone())),
        _ => None,
    });
    routes.collect()
}

#[test]
fn host_routes_follow_the_gateway_and_the_endpoints() {
    let mut system = machine();
    let mut now = plan(&full_tunnel(), &system);
    let mut applied = Applied::default();
    applied.apply(&now.steps, &mut system).unwrap();
    let v6 = ("2001:db8::1".to_owned(), gateway("fe80::1"));
    let to = |via| vec![("192.0.2.1".to_owned(), via), v6.clone()];
    assert_eq!(host_routes(applied.steps()), to(gateway("192.168.1.1")));
    let mut follow = |now: &mut Plan, endpoints: &[SocketAddr], system: &mut _| {
        let Routing::Halves(found) = crate::routes::bsd::Configurator::routing(system).unwrap() else {
            panic!()
        };
        *now = following(now, &mut applied, endpoints, found);
        let is_same = now.steps == applied.steps();
        applied.change_to(&now.steps, system).unwrap();
        (is_same, host_routes(applied.steps()))
    };
    let all = endpoints();
    assert_eq!(follow(&mut now, &all, &mut system), (true, to(gateway("192.168.1.1"))), "nothing changed");

    // Without a gateway the packets go nowhere, and then through the next one.
    system.set_way(DEFAULT, None);
    assert_eq!(follow(&mut now, &all, &mut system), (false, to(Via::Blackhole)));
    system.set_way(DEFAULT, Some(gateway("172.16.0.1")));
    assert_eq!(follow(&mut now, &all, &mut system), (false, to(gateway("172.16.0.1"))));

    // The kernel removes host routes with their interface, which then comes back as it was.
    system.set_way("192.0.2.1/32", None);
    assert_eq!(follow(&mut now, &all, &mut system).1.len(), 2);
    assert!(system.has_endpoint_route("192.0.2.1".parse().unwrap(), &gateway("172.16.0.1")).unwrap());

    // A peer that roams takes its route along.
    let roamed: Vec<SocketAddr> = vec!["203.0.113.4:1".parse().unwrap()];
    let (_, routes) = follow(&mut now, &roamed, &mut system);
    assert_eq!(routes, [("203.0.113.4".to_owned(), gateway("172.16.0.1"))]);

    let mut before = machine();
    before.set_way(DEFAULT, Some(gateway("172.16.0.1")));
    assert!(applied.undo(&mut system).is_empty());
    assert_eq!(system.routing().unwrap(), before.routing().unwrap());
}
