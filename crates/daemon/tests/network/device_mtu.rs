//! The device's MTU follows the routes to the peers, unless it was set by hand.
//!
//! ```text
//!   client  wan ─── 1500, then 1400 ─── router ─── 1500 ─── wan  server
//! ```

use weft::interface::queue_limits;
use weft_host::routes::Netlink;
use weft_lab::routed::{End, OUTER, Routed};
use weft_lab::{Namespace, link, until};

use crate::weft::{Pair, options, routed, talk};

pub(crate) fn mtu_of(namespace: &Namespace) -> u32 {
    namespace.run(|| Netlink::open().unwrap().link(&"weft0".parse().unwrap()).unwrap().mtu)
}

fn set_uplink(lab: &Routed, mtu: u32) {
    link::set_mtu(&lab.client, OUTER, mtu).unwrap();
    link::set_mtu(&lab.router, "to-client", mtu).unwrap();
}

fn start(lab: &Routed, mtu: Option<u16>) -> Pair {
    Pair::start(&lab.client, &lab.server, Routed::v4(End::Server, 2), mtu, &options())
}

#[test]
fn the_mtu_follows_the_uplink() {
    let Some(lab) = routed() else { return };
    let _pair = start(&lab, None);
    assert_eq!(mtu_of(&lab.client), 1420);
    for (outer, inner) in [(1400, 1320), (1500, 1420)] {
        set_uplink(&lab, outer);
        until("the MTU follows", || mtu_of(&lab.client) == inner);
    }
}

#[test]
fn an_endpoint_on_this_machine_gives_the_mtu_of_the_uplink() {
    let Some(lab) = routed() else { return };
    for endpoint in ["127.0.0.1", "::1", &Routed::v4(End::Client, 2).to_string()] {
        let endpoint = endpoint.parse().unwrap();
        let _pair = Pair::start(&lab.client, &lab.server, endpoint, None, &options());
        assert_eq!(mtu_of(&lab.client), 1420, "{endpoint}");
        for (outer, inner) in [(1400, 1320), (1500, 1420)] {
            set_uplink(&lab, outer);
            until("the MTU follows", || mtu_of(&lab.client) == inner);
        }
    }
}

#[test]
fn an_mtu_that_was_chosen_stays() {
    let Some(lab) = routed() else { return };
    // One by its configuration, and one by hand.
    let configured = start(&lab, Some(1380));
    set_uplink(&lab, 1400);
    wait_for_a_reaction(&lab, &configured);
    assert_eq!(mtu_of(&lab.client), 1380);
    drop(configured);
    let by_hand = start(&lab, None);
    assert_eq!(mtu_of(&lab.client), 1320);
    link::set_mtu(&lab.client, "weft0", 1300).unwrap();
    set_uplink(&lab, 1500);
    wait_for_a_reaction(&lab, &by_hand);
    assert_eq!(mtu_of(&lab.client), 1300);
}

#[test]
fn super_packets_follow_an_mtu_that_any_program_sets() {
    let Some(lab) = routed() else { return };
    let _pair = start(&lab, Some(9000));
    let segments = || {
        let output = lab.client.command("ip").args(["-d", "-j", "link", "show", "weft0"]).output().unwrap();
        let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        links[0]["gso_max_segs"].as_u64().unwrap()
    };
    let wanted = |mtu| u64::from(queue_limits(mtu).gso_max_segments.unwrap());
    assert_eq!(segments(), wanted(9000));
    link::set_mtu(&lab.client, "weft0", 1300).unwrap();
    until("a batch has more of the shorter segments", || segments() == wanted(1300));
    assert!(wanted(1300) > wanted(9000));
}

/// Lets the client move, which it tells the server of once it is through with everything that changed before.
fn wait_for_a_reaction(lab: &Routed, pair: &Pair) {
    talk(&lab.client, &lab.server).finish();
    let before = pair.server.peer().endpoint.unwrap().ip();
    let (from, to) = if before == Routed::v4(End::Client, 2) { (2, 3) } else { (3, 2) };
    lab.move_end(End::Client, from, to).unwrap();
    until("the server hears of it", || {
        pair.server.peer().endpoint.is_some_and(|endpoint| endpoint.ip() == Routed::v4(End::Client, to))
    });
    lab.move_end(End::Client, to, from).unwrap();
}
