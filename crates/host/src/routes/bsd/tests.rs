//! Plans carried out by the calls of ifconfig(8) and route(8), against tables in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use weft_config::Config;

use super::*;
use crate::HostError;
use crate::execute::{Applied, Outcome, System as _};
use crate::plan::{Facts, Plan};
use crate::routes::tests::config;
use crate::step::Step;

const DEVICE: &str = "utun7";

/// The tables of a machine, which change by the calls that the programs would get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tables {
    /// (table, prefix, way)
    routes: BTreeSet<(u32, IpNet, Via)>,
    addresses: BTreeSet<IpNet>,
    mtu: String,
    is_up: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Simulated {
    tables: RefCell<Tables>,
    calls: Cell<usize>,
    /// The call that fails, without an effect.
    fails_at: Cell<Option<usize>>,
    log: RefCell<Vec<String>>,
}

fn answer(errors: &str) -> Answer {
    Answer { is_success: errors.is_empty(), output: String::new(), errors: errors.to_owned() }
}

impl Machine for Simulated {
    fn run(&self, call: &Call) -> io::Result<Answer> {
        self.log.borrow_mut().push(call.to_string());
        self.calls.set(self.calls.get() + 1);
        if self.fails_at.get() == Some(self.calls.get()) {
            return Ok(answer("it fails"));
        }
        let words: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
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
        Ok(own.map(|(_, prefix, via)| FoundRoute { prefix: *prefix, via: via.clone() }).collect())
    }

    fn index(&self, name: &str) -> Option<u32> {
        (name == DEVICE).then_some(9)
    }
}

impl Tables {
    fn ifconfig(&mut self, words: &[&str]) -> &'static str {
        match words {
            [DEVICE | "en0"] => {}
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
            [gateway] => Via::Gateway {
                address: gateway.split('%').next().unwrap().parse().unwrap(),
                interface: "en0".to_owned(),
            },
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

/// The system as `kernel.rs` changes it: the steps that this module is for.
impl crate::execute::System for Configurator<Simulated> {
    fn apply(&mut self, step: &Step) -> Result<Outcome, HostError> {
        let link = self.link(&DEVICE.parse().unwrap())?;
        let outcome = |is_new| if is_new { Outcome::Done } else { Outcome::Left };
        match step {
            Step::Address(address) => self.add_address(&link, *address)?,
            Step::Mtu(mtu) => self.set_mtu(&link, *mtu)?,
            Step::LinkUp => self.set_up(&link)?,
            Step::Route { prefix, table } => return Ok(outcome(self.add_route(&link, *prefix, *table)?)),
            Step::EndpointRoute { address, via } => {
                return Ok(outcome(self.add_endpoint_route(*address, via)?));
            }
            other => panic!("{other:?}"),
        }
        Ok(Outcome::Done)
    }

    fn undo(&mut self, step: &Step) -> Result<(), HostError> {
        let link = self.link(&DEVICE.parse().unwrap())?;
        match step {
            Step::Address(address) => self.remove_address(&link, *address)?,
            Step::Route { prefix, table } => self.remove_route(&link, *prefix, *table)?,
            Step::EndpointRoute { address, via } => self.remove_endpoint_route(*address, via)?,
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn lost(&self, _: &[Step]) -> Result<Vec<Step>, HostError> {
        Ok(Vec::new())
    }
}

pub(crate) fn gateway(address: &str) -> Via {
    Via::Gateway { address: address.parse().unwrap(), interface: "en0".to_owned() }
}

/// A machine in a home network, with a default route of either family.
pub(crate) fn machine() -> Configurator<Simulated> {
    let simulated = Simulated::default();
    let route = |prefix: &str, via| (MAIN_TABLE, prefix.parse().unwrap(), via);
    simulated.tables.borrow_mut().routes = BTreeSet::from([
        route("0.0.0.0/0", gateway("192.168.1.1")),
        route("192.168.1.0/24", Via::Interface("en0".to_owned())),
        route("127.0.0.0/8", Via::Interface("lo0".to_owned())),
        route("::/0", gateway("fe80::1")),
        // Another program's route, to an endpoint of the tunnel.
        route("198.51.100.9/32", gateway("192.168.1.7")),
    ]);
    Configurator::new(simulated)
}

pub(crate) fn endpoints() -> Vec<SocketAddr> {
    let all = ["192.0.2.1:51820", "192.168.1.5:51820", "[2001:db8::1]:51820", "198.51.100.9:51820"];
    all.map(|endpoint| endpoint.parse().unwrap()).to_vec()
}

pub(crate) fn full_tunnel() -> Config {
    let mut config = config("Address = 10.9.0.2/24, fd00::2/64\nMTU = 1380", "0.0.0.0/0, ::/0, 10.9.0.0/24");
    config.interface.name = DEVICE.parse().unwrap();
    config
}

pub(crate) fn plan(config: &Config, machine: &Configurator<Simulated>) -> Plan {
    let facts = Facts { routing: machine.routing().unwrap(), ..Facts::default() };
    Plan::new(config, &endpoints(), &facts)
}

/// Returns the machine's state, but for the device, which goes away with its settings.
fn around(machine: &Configurator<Simulated>) -> Tables {
    Tables { mtu: String::new(), is_up: false, ..machine.machine.tables.borrow().clone() }
}

#[test]
fn a_default_route_is_two_halves_behind_host_routes_to_the_endpoints() {
    let mut machine = machine();
    let before = around(&machine);
    let plan = plan(&full_tunnel(), &machine);
    assert_eq!(plan.mark, 0, "nothing looks at a mark");
    let mut applied = Applied::default();
    applied.apply(&plan.steps, &mut machine).unwrap();
    let changes = |machine: &Configurator<Simulated>| -> Vec<String> {
        machine.machine.log.take().into_iter().filter(|call| *call != "ifconfig utun7").collect()
    };
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
    assert_eq!(changes(&machine), expected);
    assert!(applied.undo(&mut machine).is_empty());
    let undone = changes(&machine);
    assert_eq!(undone[0], "route -n delete -inet6 -net 8000::/1 -interface utun7");
    assert_eq!(undone[5], "route -n delete -inet6 -host 2001:db8::1 fe80::1%en0");
    assert_eq!(around(&machine), before);
}

#[test]
fn a_half_beside_the_default_route_is_one_route() {
    let mut config = config("Address = 10.9.0.2/24", "0.0.0.0/0, 128.0.0.0/1");
    config.interface.name = DEVICE.parse().unwrap();
    let steps = plan(&config, &machine()).steps;
    let routes = steps.iter().filter_map(|step| match step {
        Step::Route { prefix, .. } => Some(prefix.to_string()),
        _ => None,
    });
    assert_eq!(routes.collect::<Vec<_>>(), ["128.0.0.0/1", "0.0.0.0/1"]);
}

#[test]
fn a_start_that_fails_at_any_call_leaves_the_tables_as_they_were() {
    let calls = {
        let mut machine = machine();
        let plan = plan(&full_tunnel(), &machine);
        Applied::default().apply(&plan.steps, &mut machine).unwrap();
        machine.machine.calls.get()
    };
    for fails_at in 1..=calls {
        let mut machine = machine();
        let before = around(&machine);
        let plan = plan(&full_tunnel(), &machine);
        machine.machine.fails_at.set(Some(fails_at));
        let error = Applied::default().apply(&plan.steps, &mut machine).unwrap_err().to_string();
        assert!(error.starts_with("cannot run `") && !error.contains('\n'), "{error}");
        assert_eq!(around(&machine), before, "call {fails_at}");
    }
}

#[test]
fn a_daemon_killed_after_any_step_leaves_what_its_record_undoes() {
    let steps = plan(&full_tunnel(), &machine()).steps;
    for done in 0..=steps.len() {
        let mut machine = machine();
        let before = around(&machine);
        for step in &steps[..done] {
            machine.apply(step).unwrap();
        }
        // All steps are on record, also those that were not done.
        assert!(Applied::recorded(steps.clone()).undo(&mut machine).is_empty());
        assert_eq!(around(&machine), before, "after {done} steps");
    }
}

#[test]
fn another_program_s_route_of_the_same_prefix_stays() {
    let mut machine = machine();
    let theirs = (MAIN_TABLE, "0.0.0.0/1".parse().unwrap(), Via::Interface("utun3".to_owned()));
    machine.machine.tables.borrow_mut().routes.insert(theirs);
    let before = around(&machine);
    let plan = plan(&full_tunnel(), &machine);
    let error = Applied::default().apply(&plan.steps, &mut machine).unwrap_err().to_string();
    assert!(error.contains("0.0.0.0/1") && error.contains("`Table = off`"), "{error}");
    assert_eq!(around(&machine), before);
}

#[test]
fn a_table_of_freebsd_gets_every_route_as_it_is() {
    let mut machine = machine();
    let mut config = full_tunnel();
    config.interface.table = weft_config::Table::Number(7);
    let plan = plan(&config, &machine);
    Applied::default().apply(&plan.steps, &mut machine).unwrap();
    let log = machine.machine.log.take();
    assert!(log.contains(&"route -n add -fib 7 -inet -net 0.0.0.0/0 -interface utun7".to_owned()), "{log:?}");
    assert!(!log.iter().any(|call| call.contains("-host")), "{log:?}");
    config.interface.table = weft_config::Table::Off;
    assert!(!super::tests::plan(&config, &machine).to_string().contains("route"));
}

#[test]
fn switched_off_ipv6_and_a_missing_right_are_told_in_one_line() {
    let call = commands::add_address(DEVICE, "fd00::2/64".parse().unwrap());
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
    let machine = machine();
    let mut config = full_tunnel();
    config.interface.mtu = None;
    // The interfaces of this machine show no MTU.
    assert_eq!(machine.default_mtu(&config.interface, &endpoints(), 0), 1420);
    assert_eq!(machine.mtu_towards("192.0.2.1".parse().unwrap(), 0).unwrap(), 1500);
}

impl Configurator<Simulated> {
    /// Has the system lead a prefix this way, or not at all.
    pub(crate) fn set_way(&mut self, prefix: &str, via: Option<Via>) {
        let prefix: IpNet = prefix.parse().unwrap();
        let mut tables = self.machine.tables.borrow_mut();
        tables.routes.retain(|(_, found, _)| *found != prefix);
        tables.routes.extend(via.map(|via| (MAIN_TABLE, prefix, via)));
    }
}
