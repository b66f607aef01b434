//! The calls of ifconfig(8) and route(8) for a plan, and tables in memory that change by them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;

use super::*;
use crate::execute::Applied;
use crate::routes::tables::Configurator;
use crate::routes::tables::tests::{Simulation, endpoints, full_tunnel, gateway, machine, plan};
use crate::routes::{MAIN_TABLE, Via};

const DEVICE: &str = "utun7";

/// The tables of a machine, which change by the calls that the programs would get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// (table, prefix, way)
    routes: BTreeSet<(u32, IpNet, Via)>,
    addresses: BTreeSet<IpNet>,
    mtu: String,
    is_up: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Simulated {
    tables: RefCell<State>,
    calls: Cell<usize>,
    /// The first call that fails, and how many do.
    failing: Cell<(usize, usize)>,
    log: RefCell<Vec<String>>,
}

type Machine = Programs<Simulated>;

fn answer(errors: &str) -> Answer {
    Answer { is_success: errors.is_empty(), output: String::new(), errors: errors.to_owned() }
}

impl super::Machine for Simulated {
    fn run(&self, call: &Call) -> io::Result<Answer> {
        let words: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
        if let ("ifconfig", [DEVICE]) = (call.program, &words[..]) {
            return Ok(Answer { output: self.tables.borrow().shown(), ..answer("") });
        }
        self.log.borrow_mut().push(call.to_string());
        self.calls.set(self.calls.get() + 1);
        let (first, count) = self.failing.get();
        if self.calls.get() >= first && self.calls.get() - first < count {
            return Ok(answer("it fails"));
        }
        let mut tables = self.tables.borrow_mut();
        let errors = match call.program {
            "ifconfig" => tables.ifconfig(&words),
            "route" => tables.route(&words),
            other => panic!("{other}"),
        };
        Ok(answer(errors))
    }

    fn routes(&self, table: u32) -> io::Result<Vec<FoundRoute>> {
        let tables = self.tables.borrow();
        let own = tables.routes.iter().filter(|(of, ..)| *of == table);
        let found = |(_, prefix, via): &(u32, IpNet, Via)| FoundRoute {
            prefix: *prefix,
            via: via.clone(),
            is_up: true,
        };
        Ok(own.map(found).collect())
    }

    fn index(&self, name: &str) -> Option<u32> {
        (name == DEVICE).then_some(9)
    }

    fn name(&self, index: u32) -> Option<String> {
        (index == 9).then(|| DEVICE.to_owned())
    }
}

impl State {
    fn shown(&self) -> String {
        let line = |address: &IpNet| match address {
            IpNet::V4(net) => format!("\tinet {} netmask {:#010x}\n", net.addr(), u32::from(net.netmask())),
            IpNet::V6(net) => format!("\tinet6 {} prefixlen {}\n", net.addr(), net.prefix_len()),
        };
        self.addresses.iter().map(line).collect()
    }

    fn ifconfig(&mut self, words: &[&str]) -> &'static str {
        match words {
            ["en0"] => {}
            [DEVICE, "up"] => self.is_up = true,
            [DEVICE, "mtu", mtu] => self.mtu = (*mtu).to_owned(),
            [DEVICE, "inet", net, peer, "alias"] => {
                assert!(net.starts_with(&format!("{peer}/")), "{words:?}");
                self.addresses.insert(net.parse().unwrap());
            }
            [DEVICE, "inet6", net, "alias"] => drop(self.addresses.insert(net.parse().unwrap())),
            [DEVICE, _, address, "-alias"] => {
                let address: IpAddr = address.parse().unwrap();
                self.addresses.retain(|net| net.addr() != address);
            }
            _ => panic!("{words:?}"),
        }
        ""
    }

    fn route(&mut self, words: &[&str]) -> &'static str {
        let (verb, table, rest) = match words {
            ["-n", verb, "-fib", table, rest @ ..] => (*verb, table.parse().unwrap(), rest),
            ["-n", verb, rest @ ..] => (*verb, MAIN_TABLE, rest),
            _ => panic!("{words:?}"),
        };
        let (prefix, via): (IpNet, &[&str]) = match rest {
            [_, "-net", prefix, via @ ..] => (prefix.parse().unwrap(), via),
            [_, "-host", address, via @ ..] => (address.parse::<IpAddr>().unwrap().into(), via),
            _ => panic!("{words:?}"),
        };
        let via = match via {
            ["-interface", interface] => Via::Interface((*interface).to_owned()),
            [_, "-blackhole"] => Via::Blackhole,
            [address] => gateway::<Machine>(address.split('%').next().unwrap()),
            _ => panic!("{words:?}"),
        };
        let is_there = self.routes.iter().any(|(of, found, _)| (*of, *found) == (table, prefix));
        match verb {
            "add" if is_there => "route: writing to routing socket: File exists",
            "add" => {
                self.routes.insert((table, prefix, via));
                ""
            }
            "delete" if self.routes.remove(&(table, prefix, via)) => "",
            "delete" => "route: writing to routing socket: not in table",
            _ => panic!("{words:?}"),
        }
    }
}

impl Simulation for Machine {
    const DEVICE: &'static str = DEVICE;
    const LAN: &'static str = "en0";
    type State = State;

    fn home() -> Self {
        let machine = Simulated::default();
        let route = |prefix: &str, via| (MAIN_TABLE, prefix.parse().unwrap(), via);
        machine.tables.borrow_mut().routes = BTreeSet::from([
            route("0.0.0.0/0", gateway::<Self>("192.168.1.1")),
            route("192.168.1.0/24", Via::Interface("en0".to_owned())),
            route("127.0.0.0/8", Via::Interface("lo0".to_owned())),
            route("::/0", gateway::<Self>("fe80::1")),
            // Another program's route, to an endpoint of the tunnel.
            route("198.51.100.9/32", gateway::<Self>("192.168.1.7")),
        ]);
        Self { machine }
    }

    fn around(&self) -> State {
        State { mtu: String::new(), is_up: false, ..self.machine.tables.borrow().clone() }
    }

    fn calls(&self) -> usize {
        self.machine.calls.get()
    }

    fn fail(&self, first: usize, count: usize) {
        self.machine.failing.set((first, count));
    }

    fn set_way(&self, prefix: &str, via: Option<Via>) {
        let prefix: IpNet = prefix.parse().unwrap();
        let mut tables = self.machine.tables.borrow_mut();
        tables.routes.retain(|(_, found, _)| *found != prefix);
        tables.routes.extend(via.map(|via| (MAIN_TABLE, prefix, via)));
    }
}

fn log(machine: &Configurator<Machine>) -> Vec<String> {
    machine.tables.machine.log.take()
}

#[test]
fn a_default_route_is_two_halves_behind_host_routes_to_the_endpoints() {
    let mut machine = machine::<Machine>();
    let before = machine.tables.around();
    let plan = plan(&full_tunnel::<Machine>(), &machine, &[]);
    assert_eq!(plan.mark, 0, "nothing looks at a mark");
    let mut applied = Applied::default();
    applied.apply(&plan.steps, &mut machine).unwrap();
    let expected = [
        "ifconfig utun7 inet 10.9.0.2/24 10.9.0.2 alias",
        "ifconfig utun7 inet6 fd00::2/64 alias",
        "ifconfig utun7 mtu 1380",
        "ifconfig utun7 up",
        "route -n add -inet -host 192.0.2.1 192.168.1.1",
        "route -n add -inet6 -host 2001:db8::1 fe80::1%en0",
        "route -n add -inet -net 10.9.0.0/24 -interface utun7",
        "route -n add -inet -net 0.0.0.0/1 -interface utun7",
        "route -n add -inet -net 128.0.0.0/1 -interface utun7",
        "route -n add -inet6 -net ::/1 -interface utun7",
        "route -n add -inet6 -net 8000::/1 -interface utun7",
    ];
    assert_eq!(log(&machine), expected);
    assert!(applied.undo(&mut machine).is_empty());
    let undone = log(&machine);
    assert_eq!(undone[0], "route -n delete -inet6 -net 8000::/1 -interface utun7");
    assert_eq!(undone[5], "route -n delete -inet6 -host 2001:db8::1 fe80::1%en0");
    assert_eq!(machine.tables.around(), before);
}

#[test]
fn another_program_s_route_of_the_same_prefix_stays() {
    let mut machine = machine::<Machine>();
    let theirs = (MAIN_TABLE, "0.0.0.0/1".parse().unwrap(), Via::Interface("utun3".to_owned()));
    machine.tables.machine.tables.borrow_mut().routes.insert(theirs);
    let before = machine.tables.around();
    let plan = plan(&full_tunnel::<Machine>(), &machine, &[]);
    let error = Applied::default().apply(&plan.steps, &mut machine).unwrap_err().to_string();
    assert!(error.contains("0.0.0.0/1") && error.contains("`Table = off`"), "{error}");
    assert_eq!(machine.tables.around(), before);
}

#[test]
fn a_table_of_freebsd_gets_every_route_as_it_is() {
    let mut machine = machine::<Machine>();
    let mut config = full_tunnel::<Machine>();
    config.interface.table = weft_config::Table::Number(7);
    let of_seven = plan(&config, &machine, &[]);
    Applied::default().apply(&of_seven.steps, &mut machine).unwrap();
    let log = log(&machine);
    assert!(log.contains(&"route -n add -fib 7 -inet -net 0.0.0.0/0 -interface utun7".to_owned()), "{log:?}");
    assert!(!log.iter().any(|call| call.contains("-host")), "{log:?}");
    config.interface.table = weft_config::Table::Off;
    assert!(!plan(&config, &machine, &[]).to_string().contains("route"));
}

#[test]
fn switched_off_ipv6_and_a_missing_right_are_told_in_one_line() {
    let link = Link { name: DEVICE.to_owned(), index: 9, mtu: 1420 };
    let call = commands::call(&Edit::AddAddress(&link, "fd00::2/64".parse().unwrap()));
    let told = |errors: &str| refused(&call, commands::outcome(answer(errors)).unwrap_err());
    let off = told("ifconfig: ioctl (SIOCAIFADDR): Protocol family not supported");
    assert_eq!(off.exit_code(), weft_config::exit::Code::Failure);
    let off = off.to_string();
    assert!(off.contains("fd00::2/64") && off.contains("remove the IPv6 addresses"), "{off}");
    let denied = told("ifconfig: ioctl (SIOCAIFADDR): Operation not permitted");
    assert_eq!(denied.exit_code(), weft_config::exit::Code::Permission);
    assert!(denied.to_string().ends_with("run weft as root"), "{denied}");
}

#[test]
fn the_mtu_is_that_of_the_ways_to_the_endpoints_less_80() {
    let machine = machine::<Machine>();
    let mut config = full_tunnel::<Machine>();
    config.interface.mtu = None;
    // The interfaces of this machine show no MTU.
    assert_eq!(machine.default_mtu(&config, &endpoints(), 0), 1420);
    assert_eq!(machine.mtu_towards("192.0.2.1:1".parse().unwrap(), 0).unwrap(), 1500);
}
