//! The MSS of forwarded TCP fits the tunnel, whichever side begins.

use std::net::{IpAddr, SocketAddr};

use weft_host::firewall::Rules;
use weft_lab::link;

use crate::attempts::Attempt;
use crate::tun::{checksum, ipv4};
use crate::world::{NAME, World};

/// The tunnel's MTU in these tests.
const MTU: u32 = 1380;

fn clamp() -> Rules {
    Rules { mss_clamp: true, ..Rules::none(NAME.parse().unwrap()) }
}

/// The MSS that a SYN names.
fn mss(packet: &[u8]) -> Option<u16> {
    let segment = match packet[0] >> 4 {
        4 => &packet[usize::from(packet[0] & 15) * 4..],
        _ => &packet[40..],
    };
    let options = &segment[20..usize::from(segment[12] >> 4) * 4];
    let place = options.windows(2).position(|start| start == [2, 4])?;
    Some(u16::from_be_bytes([options[place + 2], options[place + 3]]))
}

/// The MSS of a client's connection, as it goes into the tunnel.
fn into_the_tunnel(world: &World, address: &str) -> u16 {
    Attempt::tcp(address, 80).make(&world.client);
    mss(&world.tun.as_ref().unwrap().wait_for(&format!("tcp {address} 80"))).unwrap()
}

/// The MSS of a peer's connection that named `named`, as it comes to the client.
fn out_of_the_tunnel(world: &World, named: u16) -> u16 {
    let (from, to) = ("10.77.0.9".parse().unwrap(), "192.168.93.2".parse().unwrap());
    let mut segment = vec![0x10, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 0x02, 0xff, 0xff, 0, 0, 0, 0, 2, 4];
    segment.extend(named.to_be_bytes());
    // The pseudo header (RFC 9293, section 3.1).
    let mut summed = ipv4(6, from, to, &[])[12..20].to_vec();
    summed.extend([0, 6, 0, 24]);
    summed.extend(&segment);
    let sum = checksum(&summed);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    world.tun.as_ref().unwrap().write(&ipv4(6, from, to, &segment));
    mss(&world.ports.client.wait_for("tcp 192.168.93.2 80")).unwrap()
}

#[test]
fn forwarded_connections_fit_the_tunnel_in_both_directions() {
    let Some(world) = World::new() else { return };
    link::set_mtu(&world.machine, NAME, MTU).unwrap();
    assert_eq!(into_the_tunnel(&world, "10.77.0.9"), 1460);
    assert_eq!(into_the_tunnel(&world, "fd77::9"), 1440);
    assert_eq!(out_of_the_tunnel(&world, 1460), 1460);
    world.apply(&clamp());
    assert_eq!(into_the_tunnel(&world, "10.77.0.9"), 1340);
    assert_eq!(into_the_tunnel(&world, "fd77::9"), 1320);
    assert_eq!(out_of_the_tunnel(&world, 1460), 1340);
    // Less stays what it is.
    assert_eq!(out_of_the_tunnel(&world, 1000), 1000);
}

#[test]
fn what_goes_past_the_tunnel_is_left_alone() {
    let Some(world) = World::new() else { return };
    link::set_mtu(&world.machine, "wan", MTU).unwrap();
    world.apply(&clamp());
    let to = SocketAddr::new("203.0.113.9".parse::<IpAddr>().unwrap(), 80);
    Attempt::tcp(&to.ip().to_string(), to.port()).make(&world.client);
    assert_eq!(mss(&world.ports.internet.wait_for("tcp 203.0.113.9 80")), Some(1460));
}

#[test]
fn a_forged_message_about_the_mtu_of_a_path_lowers_no_mss_below_what_every_device_carries() {
    let Some(world) = World::new() else { return };
    world.apply(&clamp());
    let (machine, far) = ("10.77.0.1".parse().unwrap(), "10.77.0.9".parse().unwrap());
    // "Fragmentation needed, MTU 68", which quotes an answer to an echo request.
    let mut message = vec![3, 4, 0, 0, 0, 0, 0, 68];
    message.extend(ipv4(1, machine, far, &[0; 8]));
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    weft_lab::until("the machine believes it", || {
        world.tun.as_ref().unwrap().write(&ipv4(1, far, machine, &message));
        let route = world.machine.command("ip").args(["route", "get", "10.77.0.9"]).output().unwrap();
        String::from_utf8(route.stdout).unwrap().contains("mtu lock 552")
    });
    assert_eq!(into_the_tunnel(&world, "10.77.0.9"), 1220);
    assert_eq!(out_of_the_tunnel(&world, 1460), 1220);
    assert_eq!(out_of_the_tunnel(&world, 1000), 1000);
}
