//! Everything that is tried against a kill switch, and what of it may arrive.

use std::collections::BTreeSet;
use std::net::{SocketAddrV4, UdpSocket};

use weft_lab::PATIENCE;

use crate::attempts::Attempt;
use crate::world::{MARK, World};

/// An attempt, and the line of `World::seen` if it arrives.
type Case = (Attempt, &'static str);

/// What programs of the machine may not send past the tunnel, marked packets included.
pub(crate) fn forbidden() -> Vec<Case> {
    vec![
        (Attempt::udp("203.0.113.1", 53), "internet: udp 203.0.113.1 53"),
        (Attempt::udp("2001:db8:ffff::1", 53), "internet: udp 2001:db8:ffff::1 53"),
        (Attempt::tcp("203.0.113.1", 53), "internet: tcp 203.0.113.1 53"),
        (Attempt::udp("203.0.113.2", 443), "internet: udp 203.0.113.2 443"),
        (Attempt::tcp("203.0.113.3", 443), "internet: tcp 203.0.113.3 443"),
        (Attempt::tcp("2001:db8:ffff::3", 443), "internet: tcp 2001:db8:ffff::3 443"),
        (Attempt::ping("203.0.113.4"), "internet: icmp 203.0.113.4 type 8"),
        (Attempt::ping("2001:db8:ffff::4"), "internet: icmpv6 2001:db8:ffff::4 type 128"),
        (Attempt::protocol("203.0.113.5", 47), "internet: protocol 47 203.0.113.5"),
        // Another mark, or the tunnel's on something that the tunnel does not send.
        (Attempt::udp("203.0.113.6", 51820).mark(MARK + 1), "internet: udp 203.0.113.6 51820"),
        (Attempt::tcp("203.0.113.7", 51820).mark(MARK), "internet: tcp 203.0.113.7 51820"),
        (Attempt::ping("203.0.113.8").mark(MARK), "internet: icmp 203.0.113.8 type 8"),
        // The tunnel's mark on packets of another user.
        (Attempt::udp("203.0.113.9", 51820).mark(MARK).by_user(1), "internet: udp 203.0.113.9 51820"),
        (Attempt::tcp("203.0.113.9", 53).mark(MARK).by_user(1), "internet: tcp 203.0.113.9 53"),
        // Half of what is let through.
        (Attempt::udp("198.51.100.1", 67).source_port(68), "internet: udp 198.51.100.1 67"),
        (Attempt::udp("203.0.113.10", 53).source_port(68), "internet: udp 203.0.113.10 53"),
        (Attempt::udp("203.0.113.10", 67).source_port(4067), "internet: udp 203.0.113.10 67"),
        (
            Attempt::udp("2001:db8:ffff::10", 547).source("fe80::93").source_port(546).through("wan"),
            "internet: udp 2001:db8:ffff::10 547",
        ),
        (
            Attempt::udp("ff05::1:3", 547).source("2001:db8:1::2").source_port(546).through("wan"),
            "internet: udp ff05::1:3 547",
        ),
        (
            Attempt::udp("ff05::1:3", 548).source("fe80::93").source_port(546).through("wan"),
            "internet: udp ff05::1:3 548",
        ),
        (
            Attempt::udp("ff05::1:3", 547).source("fe80::93").source_port(5460).through("wan"),
            "internet: udp ff05::1:3 547",
        ),
        (
            Attempt::icmpv6("2001:db8:ffff::11", 135, 0).hop_limit(64),
            "internet: icmpv6 2001:db8:ffff::11 type 135",
        ),
        (Attempt::ping("2001:db8:ffff::12").hop_limit(255), "internet: icmpv6 2001:db8:ffff::12 type 128"),
        (Attempt::icmpv6("2001:db8:ffff::13", 132, 0), "internet: icmpv6 2001:db8:ffff::13 type 132"),
        (Attempt::icmpv6("ff02::14", 128, 0).through("wan"), "internet: icmpv6 ff02::14 type 128"),
        (Attempt::icmp("203.0.113.15", 3, 1), "internet: icmp 203.0.113.15 type 3"),
        (Attempt::icmp("203.0.113.16", 5, 4), "internet: icmp 203.0.113.16 type 5"),
        (Attempt::icmpv6("2001:db8:ffff::17", 1, 0), "internet: icmpv6 2001:db8:ffff::17 type 1"),
    ]
}

/// What needs `KillSwitch = allow-local`.
pub(crate) fn local() -> Vec<Case> {
    vec![
        (Attempt::udp("192.168.93.2", 7), "client: udp 192.168.93.2 7"),
        (Attempt::tcp("192.168.93.2", 80), "client: tcp 192.168.93.2 80"),
        (Attempt::ping("192.168.93.2"), "client: icmp 192.168.93.2 type 8"),
        (Attempt::tcp("fd93::2", 80), "client: tcp fd93::2 80"),
        (Attempt::ping("fd93::2"), "client: icmpv6 fd93::2 type 128"),
        // Other protocols have ports too, and no resolver uses those.
        (Attempt::protocol("10.1.2.3", 132), "internet: protocol 132 10.1.2.3"),
        (Attempt::udp("10.1.2.3", 7), "internet: udp 10.1.2.3 7"),
        // Half of what a DHCP client sends.
        (Attempt::udp("10.1.2.4", 69).source_port(68), "internet: udp 10.1.2.4 69"),
        (Attempt::udp("10.1.2.5", 67).source_port(4067), "internet: udp 10.1.2.5 67"),
        (Attempt::udp("172.31.2.3", 7), "internet: udp 172.31.2.3 7"),
        (Attempt::udp("169.254.2.3", 7), "internet: udp 169.254.2.3 7"),
        (Attempt::udp("224.0.0.251", 5353).through("lan"), "client: udp 224.0.0.251 5353"),
        (Attempt::udp("239.255.255.250", 1900).through("lan"), "client: udp 239.255.255.250 1900"),
        (Attempt::udp("255.255.255.255", 9).through("lan"), "client: udp 255.255.255.255 9"),
        (Attempt::udp("ff02::fb", 5353).through("lan"), "client: udp ff02::fb 5353"),
        (Attempt::udp("ff05::c", 1900).through("lan"), "client: udp ff05::c 1900"),
        (Attempt::udp("fe80::2", 7).through("lan").mark(MARK + 1), "client: udp fe80::2 7"),
    ]
}

/// Name servers of local networks that are not those of the configuration.
pub(crate) fn local_dns() -> Vec<Case> {
    vec![
        (Attempt::udp("192.168.93.2", 53), "client: udp 192.168.93.2 53"),
        (Attempt::tcp("192.168.93.2", 53), "client: tcp 192.168.93.2 53"),
        (Attempt::tcp("192.168.93.2", 853), "client: tcp 192.168.93.2 853"),
        (Attempt::udp("fd93::2", 53), "client: udp fd93::2 53"),
        (Attempt::udp("10.1.2.3", 53), "internet: udp 10.1.2.3 53"),
    ]
}

/// What leaves with any kill switch.
pub(crate) fn allowed() -> Vec<Case> {
    vec![
        (Attempt::udp("203.0.113.20", 51820).mark(MARK), "internet: udp 203.0.113.20 51820"),
        (Attempt::udp("2001:db8:ffff::20", 51821).mark(MARK), "internet: udp 2001:db8:ffff::20 51821"),
        (Attempt::tcp("203.0.113.24", 53).mark(MARK), "internet: tcp 203.0.113.24 53"),
        (Attempt::udp("10.77.0.9", 53), "tunnel: udp 10.77.0.9 53"),
        (Attempt::tcp("fd77::9", 443), "tunnel: tcp fd77::9 443"),
        (
            Attempt::udp("255.255.255.255", 67).source_port(68).through("wan"),
            "internet: udp 255.255.255.255 67",
        ),
        (Attempt::udp("192.168.93.2", 67).source_port(68), "client: udp 192.168.93.2 67"),
        (
            Attempt::udp("ff02::1:2", 547).source("fe80::93").source_port(546).through("wan"),
            "internet: udp ff02::1:2 547",
        ),
        (
            Attempt::icmpv6("2001:db8:ffff::21", 135, 0).hop_limit(255),
            "internet: icmpv6 2001:db8:ffff::21 type 135",
        ),
        (
            Attempt::icmpv6("2001:db8:ffff::22", 136, 0).hop_limit(255),
            "internet: icmpv6 2001:db8:ffff::22 type 136",
        ),
        (Attempt::icmpv6("ff02::2", 132, 0).through("wan"), "internet: icmpv6 ff02::2 type 132"),
        (Attempt::icmp("203.0.113.23", 3, 4), "internet: icmp 203.0.113.23 type 3"),
        (Attempt::icmpv6("2001:db8:ffff::23", 2, 0), "internet: icmpv6 2001:db8:ffff::23 type 2"),
    ]
}

/// What a client may not send past the tunnel by way of the machine, not even as what the machine itself may
/// send.
pub(crate) fn forbidden_for_clients() -> Vec<Case> {
    vec![
        (Attempt::udp("203.0.113.30", 53), "internet: udp 203.0.113.30 53"),
        (Attempt::udp("2001:db8:ffff::30", 53), "internet: udp 2001:db8:ffff::30 53"),
        (Attempt::tcp("203.0.113.31", 443), "internet: tcp 203.0.113.31 443"),
        (Attempt::tcp("2001:db8:ffff::31", 443), "internet: tcp 2001:db8:ffff::31 443"),
        (Attempt::ping("203.0.113.32"), "internet: icmp 203.0.113.32 type 8"),
        (Attempt::ping("2001:db8:ffff::32"), "internet: icmpv6 2001:db8:ffff::32 type 128"),
        (Attempt::udp("203.0.113.33", 67).source_port(68), "internet: udp 203.0.113.33 67"),
        (Attempt::icmp("203.0.113.34", 3, 4), "internet: icmp 203.0.113.34 type 3"),
    ]
}

/// What a client may send through the tunnel.
pub(crate) fn allowed_for_clients() -> Vec<Case> {
    vec![
        (Attempt::udp("10.77.0.30", 53), "tunnel: udp 10.77.0.30 53"),
        (Attempt::tcp("fd77::31", 443), "tunnel: tcp fd77::31 443"),
        (Attempt::ping("10.77.0.32"), "tunnel: icmp 10.77.0.32 type 8"),
    ]
}

/// The attempts of these cases.
pub(crate) fn attempts(cases: &[Vec<Case>]) -> Vec<Attempt> {
    cases.iter().flatten().map(|(attempt, _)| attempt.clone()).collect()
}

/// The lines of these cases.
pub(crate) fn all(cases: &[Vec<Case>]) -> BTreeSet<String> {
    cases.iter().flatten().map(|(_, line)| (*line).to_owned()).collect()
}

/// Packets out of the tunnel: the answer to what a client asks, and what a peer begins by itself, towards the
/// client and towards the world. Gives the lines of what arrives.
pub(crate) fn out_of_the_tunnel(world: &mut World) -> BTreeSet<String> {
    let address = |text: &str| text.parse::<SocketAddrV4>().unwrap();
    let client = address("192.168.93.2:4100");
    Attempt::udp("10.77.0.40", 7).source_port(client.port()).make(&world.client);
    let mut seen = world.arrived();
    if let Some(tun) = &world.tun {
        tun.write_udp(address("10.77.0.40:7"), client);
        tun.write_udp(address("10.77.0.41:7"), address("192.168.93.2:4101"));
        tun.write_udp(address("10.77.0.42:7"), address("203.0.113.42:4102"));
    }
    seen.extend(world.arrived());
    // The client may report that the port is closed.
    seen.retain(|line| !line.starts_with("tunnel: icmp 10.77.0.4"));
    seen
}

/// A host in the world sends to the client and to the machine, and both answer. Returns the lines of the
/// answers that arrive.
pub(crate) fn answers_to_the_world(world: &mut World) -> BTreeSet<String> {
    let ends = [(&world.client, "192.168.93.2", 4202), (&world.machine, "198.51.100.2", 4203)];
    let sockets = ends.map(|(namespace, address, port)| {
        let socket = namespace.bind_udp((address, 4201));
        socket.set_nonblocking(true).unwrap();
        Attempt::udp(address, 4201).source_port(port).make(&world.internet);
        socket
    });
    let _ = world.arrived();
    for socket in sockets {
        if let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            let _ = socket.send_to(b"answer", from);
        }
    }
    let mut seen = world.arrived();
    seen.retain(|line| line.starts_with("internet: udp 198.51.100.1 420"));
    seen
}

/// A socket of the machine hears another over the loopback.
pub(crate) fn over_the_loopback(world: &World) -> BTreeSet<String> {
    let heard = world.machine.run(|| {
        let socket = UdpSocket::bind("198.51.100.2:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent = socket.send_to(b"x", socket.local_addr().unwrap());
        sent.and_then(|_| socket.recv(&mut [0; 4])).is_ok()
    });
    heard.then(|| "loopback".to_owned()).into_iter().collect()
}

/// Everything above, and what of it arrives.
pub(crate) fn everything(world: &mut World) -> BTreeSet<String> {
    let machine = attempts(&[forbidden(), local(), local_dns(), allowed()]);
    let client = attempts(&[forbidden_for_clients(), allowed_for_clients()]);
    let mut seen = world.seen(&machine, &client);
    seen.extend(out_of_the_tunnel(world));
    seen.extend(answers_to_the_world(world));
    seen.extend(over_the_loopback(world));
    seen
}
