//! The three namespaces, and what can be seen in them.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::process::Command;

use ipnet::Ipv6Net;
use weft_host::firewall::{self, KillSwitch, Local, OwnPackets, Rules};
use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, here};

use crate::attempts::Attempt;
use crate::capture::Port;
use crate::tun::Tun;

/// The tunnel's device.
pub(crate) const NAME: &str = "weft0";
/// The mark of the tunnel's own packets.
pub(crate) const MARK: u32 = 0xca6c;
/// The tunnel's addresses.
pub(crate) const INNER: [&str; 2] = ["10.77.0.1/24", "fd77::1/64"];

pub(crate) struct World {
    pub(crate) client: Namespace,
    pub(crate) machine: Namespace,
    pub(crate) internet: Namespace,
    /// The tunnel, while there is one.
    pub(crate) tun: Option<Tun>,
    pub(crate) ports: Ports,
}

/// Both ends of both cables.
pub(crate) struct Ports {
    pub(crate) client: Port,
    pub(crate) lan: Port,
    pub(crate) wan: Port,
    pub(crate) internet: Port,
}

impl World {
    /// Without rules and with a tunnel; `None` where that is not permitted, which is said.
    pub(crate) fn new() -> Option<Self> {
        let mut world = Self::without_tunnel()?;
        world.tun = Some(Tun::make(&world.machine, NAME, &INNER));
        Some(world)
    }

    /// The same without the tunnel's device.
    pub(crate) fn without_tunnel() -> Option<Self> {
        if !here::tun_permitted() || !here::installed(&["nft"]) {
            return None;
        }
        let [client, machine, internet] =
            ["client", "machine", "internet"].map(|name| Namespace::new(name).unwrap());
        if let Err(error) = machine.run(|| firewall::present(&NAME.parse().unwrap())) {
            here::not_run(&error.to_string());
            return None;
        }
        if let Err(error) = machine.set_sysctl("net/ipv4/ip_forward", "1") {
            here::not_run(&error.to_string());
            return None;
        }
        machine.set_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        machine.set_sysctl("net/ipv4/conf/all/rp_filter", "0").unwrap();
        let cables = [
            (&client, "eth0", ["192.168.93.2/24", "fd93::2/64"], "lan", ["192.168.93.1/24", "fd93::1/64"]),
            (
                &internet,
                "eth0",
                ["198.51.100.1/24", "2001:db8:1::1/64"],
                "wan",
                ["198.51.100.2/24", "2001:db8:1::2/64"],
            ),
        ];
        for (there, name_a, addresses_a, name_b, addresses_b) in cables {
            let nets = |addresses: [&str; 2]| addresses.map(|address| address.parse().unwrap()).to_vec();
            let options = LinkOptions {
                name_a: name_a.to_owned(),
                name_b: name_b.to_owned(),
                addresses_a: nets(addresses_a),
                addresses_b: nets(addresses_b),
                ..LinkOptions::default()
            };
            link::join_in_order(there, &machine, &options).unwrap();
        }
        for (namespace, gateways) in
            [(&client, ["192.168.93.1", "fd93::1"]), (&machine, ["198.51.100.1", "2001:db8:1::1"])]
        {
            for (net, via) in ["0.0.0.0/0", "::/0"].into_iter().zip(gateways) {
                link::add_route(namespace, net.parse().unwrap(), via.parse().unwrap()).unwrap();
            }
        }
        let lan = ("192.168.93.0/24".parse().unwrap(), "198.51.100.2".parse().unwrap());
        link::add_route(&internet, lan.0, lan.1).unwrap();
        link::add_address(&machine, "wan", "fe80::93/64".parse().unwrap()).unwrap();
        link::add_address(&client, "eth0", "fe80::2/64".parse().unwrap()).unwrap();
        let ports = Ports {
            client: Port::open(&client, "eth0"),
            lan: Port::open(&machine, "lan"),
            wan: Port::open(&machine, "wan"),
            internet: Port::open(&internet, "eth0"),
        };
        let world = Self { client, machine, internet, tun: None, ports };
        world.find_neighbours();
        Some(world)
    }

    /// A packet that has to wait for the address of the next hop would come after the marker.
    fn find_neighbours(&self) {
        for (from, port) in [(&self.machine, 4001), (&self.client, 4002)] {
            for address in ["203.0.113.250", "2001:db8:ffff::250"] {
                Attempt::udp(address, port).make(from);
                self.ports.internet.wait_for(&format!("udp {address} {port}"));
            }
        }
        for address in ["192.168.93.2", "fd93::2"] {
            Attempt::udp(address, 4003).make(&self.machine);
            self.ports.client.wait_for(&format!("udp {address} 4003"));
        }
        Attempt::udp("fe80::2", 4003).through("lan").make(&self.machine);
        self.ports.client.wait_for("udp fe80::2 4003");
    }

    /// Puts the rules in place.
    #[track_caller]
    pub(crate) fn apply(&self, rules: &Rules) {
        self.machine.run(|| firewall::apply(rules)).unwrap();
    }

    /// Makes the attempts and tells where what arrived, in words such as `internet: udp 203.0.113.1 53`.
    pub(crate) fn seen(&mut self, machine: &[Attempt], client: &[Attempt]) -> BTreeSet<String> {
        for attempt in machine {
            attempt.make(&self.machine);
        }
        for attempt in client {
            attempt.make(&self.client);
        }
        self.arrived()
    }

    /// What arrived since the last time.
    pub(crate) fn arrived(&mut self) -> BTreeSet<String> {
        let Ports { client, lan, wan, internet } = &mut self.ports;
        // First what the client sent, which may go on to the others.
        let at_machine = lan.take(client);
        let _ = wan.take(internet);
        let mut seen: BTreeSet<String> =
            internet.take(wan).into_iter().map(|packet| format!("internet: {packet}")).collect();
        seen.extend(client.take(lan).into_iter().map(|packet| format!("client: {packet}")));
        if let Some(tun) = &self.tun {
            seen.extend(tun.take().into_iter().map(|packet| format!("tunnel: {packet}")));
        }
        drop(at_machine);
        seen.retain(|line| !is_chatter(line));
        seen
    }

    /// Runs nft in the machine, and gives what it says.
    #[track_caller]
    pub(crate) fn nft(&self, arguments: &[&str]) -> String {
        run(self.machine.command("nft").args(arguments))
    }

    /// Runs ip in the machine.
    #[track_caller]
    pub(crate) fn ip(&self, arguments: &[&str]) {
        run(self.machine.command("ip").args(arguments));
    }
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What systems say to their links when they like: solicitations and advertisements of neighbours and routers
/// on the link, and reports of listeners.
fn is_chatter(line: &str) -> bool {
    if line.ends_with("protocol 2 224.0.0.22") {
        return true;
    }
    let Some((_, packet)) = line.split_once("icmpv6 ") else { return false };
    let Some((destination, kind)) = packet.split_once(" type ") else { return false };
    let destination: Ipv6Addr = destination.parse().unwrap();
    let links = ["fe80::/10", "ff02::/16", "fd93::/64", "2001:db8:1::/64"];
    let on_link = links.iter().any(|net| net.parse::<Ipv6Net>().unwrap().contains(&destination));
    on_link && ["133", "134", "135", "136", "143"].contains(&kind)
}

/// The kill switch and nothing else.
pub(crate) fn kill_switch(own: OwnPackets, local: Local) -> Rules {
    Rules { kill_switch: Some(KillSwitch { own, local }), ..Rules::none(NAME.parse().unwrap()) }
}

/// The kill switch for a device with a mark.
pub(crate) fn marked(local: Local) -> Rules {
    kill_switch(OwnPackets::new(MARK, []), local)
}

/// These lines, as [`World::seen`] gives them.
pub(crate) fn lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    lines.into_iter().map(str::to_owned).collect()
}
