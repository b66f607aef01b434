//! Plans that are carried out against the tables of each system in memory, and what is left of them.

use std::fmt::Debug;

use weft_config::Config;

use super::*;
use crate::HostError;
use crate::execute::{Applied, Outcome};
use crate::plan::{Plan, SystemState};
use crate::routes::bsd::tests::Simulated as Bsd;
use crate::routes::tests::config;
use crate::routes::windows::simulation::Simulated as Windows;
use crate::routes::{bsd, windows};
use crate::step::Step;

/// A machine in a home network, with a default route of either family.
pub(crate) trait Simulation: Tables + Sized {
    /// The name of weft's device.
    const DEVICE: &'static str;
    /// The name of the interface to the home network.
    const LAN: &'static str;
    /// The tables, but for what goes away with the device.
    type State: PartialEq + Debug;

    fn home() -> Self;

    fn around(&self) -> Self::State;

    /// Returns how many calls have changed something, or would have.
    fn calls(&self) -> usize;

    /// Lets calls fail without an effect, from the number of the first on: as many as `count`.
    fn fail(&self, first: usize, count: usize);

    /// Has the system lead a prefix this way, or not at all.
    fn set_way(&self, prefix: &str, via: Option<Via>);
}

/// The system as `kernel.rs` changes it: the steps that this module is for.
impl<T: Simulation> crate::execute::System for Configurator<T> {
    fn apply(&mut self, step: &Step) -> Result<Outcome, HostError> {
        let link = self.link(&T::DEVICE.parse().unwrap())?;
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
        let link = self.link(&T::DEVICE.parse().unwrap())?;
        match step {
            Step::Address(address) => self.remove_address(&link, *address)?,
            Step::Route { prefix, table } => self.remove_route(&link, *prefix, *table)?,
            Step::EndpointRoute { address, via } => self.remove_endpoint_route(*address, via)?,
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn lost(&self, steps: &[Step]) -> Result<Vec<Step>, HostError> {
        let link = self.link(&T::DEVICE.parse().unwrap())?;
        let (addresses, routes) = (self.addresses(&link)?, self.routes_through(&link)?);
        let is_lost = |step: &&Step| match step {
            Step::Address(address) => !addresses.contains(address),
            Step::Route { prefix, table } => !routes.contains(&(*prefix, *table)),
            _ => false,
        };
        Ok(steps.iter().filter(is_lost).cloned().collect())
    }
}

pub(crate) fn gateway<T: Simulation>(address: &str) -> Via {
    Via::Gateway { address: address.parse().unwrap(), interface: T::LAN.to_owned() }
}

pub(crate) fn machine<T: Simulation>() -> Configurator<T> {
    Configurator::new(T::home())
}

pub(crate) fn endpoints() -> Vec<SocketAddr> {
    let all = ["192.0.2.1:51820", "192.168.1.5:51820", "[2001:db8::1]:51820", "198.51.100.9:51820"];
    all.map(|endpoint| endpoint.parse().unwrap()).to_vec()
}

pub(crate) fn full_tunnel<T: Simulation>() -> Config {
    of_device::<T>("Address = 10.9.0.2/24, fd00::2/64\nMTU = 1380", "0.0.0.0/0, ::/0, 10.9.0.0/24")
}

pub(crate) fn of_device<T: Simulation>(interface: &str, allowed_ips: &str) -> Config {
    let mut config = config(interface, allowed_ips);
    config.interface.name = T::DEVICE.parse().unwrap();
    config
}

pub(crate) fn plan<T: Simulation>(config: &Config, machine: &Configurator<T>, in_force: &[Step]) -> Plan {
    let facts = SystemState { routing: machine.routing().unwrap(), ..SystemState::default() };
    Plan::new(config, &endpoints(), &facts.without(in_force))
}

/// A machine with the full tunnel up.
pub(crate) fn up<T: Simulation>() -> (Configurator<T>, Applied) {
    let (mut machine, mut applied) = (machine::<T>(), Applied::default());
    let plan = plan(&full_tunnel::<T>(), &machine, &[]);
    applied.apply(&plan.steps, &mut machine).unwrap();
    (machine, applied)
}

fn a_start_that_fails<T: Simulation>() {
    let calls = up::<T>().0.tables.calls();
    for fails_at in 1..=calls {
        let mut machine = machine::<T>();
        let before = machine.tables.around();
        let plan = plan(&full_tunnel::<T>(), &machine, &[]);
        machine.tables.fail(fails_at, 1);
        let error = Applied::default().apply(&plan.steps, &mut machine).unwrap_err().to_string();
        assert!(error.starts_with("cannot ") && !error.contains('\n'), "{error}");
        assert_eq!(machine.tables.around(), before, "call {fails_at}");
    }
}

#[test]
fn a_start_that_fails_at_any_call_leaves_the_tables_as_they_were() {
    a_start_that_fails::<bsd::Programs<Bsd>>();
    a_start_that_fails::<windows::IpHelper<Windows>>();
}

fn a_daemon_killed<T: Simulation>() {
    let calls = up::<T>().0.tables.calls();
    for done in 0..=calls {
        let mut machine = machine::<T>();
        let before = machine.tables.around();
        let plan = plan(&full_tunnel::<T>(), &machine, &[]);
        // What is killed calls no more.
        machine.tables.fail(done + 1, usize::MAX);
        let _ = Applied::default().apply(&plan.steps, &mut machine);
        machine.tables.fail(0, 0);
        // All steps are on record, also those that were not done.
        assert!(Applied::recorded(plan.steps).undo(&mut machine).is_empty());
        assert_eq!(machine.tables.around(), before, "after {done} calls");
    }
}

#[test]
fn a_daemon_killed_after_any_call_leaves_what_its_record_undoes() {
    a_daemon_killed::<bsd::Programs<Bsd>>();
    a_daemon_killed::<windows::IpHelper<Windows>>();
}

fn a_reload<T: Simulation>() {
    let (mut machine, mut applied) = up::<T>();
    let full = machine.tables.around();
    let addresses = |machine: &Configurator<T>| {
        let link = machine.link(&T::DEVICE.parse().unwrap()).unwrap();
        (machine.addresses(&link).unwrap(), machine.routes_through(&link).unwrap())
    };
    let of_full = addresses(&machine);
    let split = of_device::<T>("Address = 10.9.0.3/24\nMTU = 1380", "10.9.0.0/24, 10.0.0.0/8");
    let wanted = plan(&split, &machine, applied.steps()).steps;
    let before = machine.tables.calls();
    let calls = {
        let (mut machine, mut applied) = up::<T>();
        applied.change_to(&wanted, &mut machine).unwrap();
        machine.tables.calls() - before
    };
    for fails_at in 1..=calls {
        let now = machine.tables.calls();
        machine.tables.fail(now + fails_at, 1);
        applied.change_to(&wanted, &mut machine).unwrap_err();
        assert_eq!(addresses(&machine), of_full, "call {fails_at}");
        assert_eq!(machine.tables.around(), full, "call {fails_at}");
    }
    machine.tables.fail(0, 0);
    applied.change_to(&wanted, &mut machine).unwrap();
    assert!(!applied.steps().iter().any(|step| matches!(step, Step::EndpointRoute { .. })));
    assert_ne!(machine.tables.around(), full, "the host routes are gone");
    assert!(applied.undo(&mut machine).is_empty());
    assert_eq!(machine.tables.around(), T::home().around());
}

#[test]
fn a_reload_that_fails_at_any_call_leaves_the_tunnel_as_it_was() {
    a_reload::<bsd::Programs<Bsd>>();
    a_reload::<windows::IpHelper<Windows>>();
}

#[test]
fn a_half_beside_the_default_route_is_one_route() {
    let machine = machine::<bsd::Programs<Bsd>>();
    let config = of_device::<bsd::Programs<Bsd>>("Address = 10.9.0.2/24", "0.0.0.0/0, 128.0.0.0/1");
    let steps = plan(&config, &machine, &[]).steps;
    let routes = steps.iter().filter_map(|step| match step {
        Step::Route { prefix, .. } => Some(prefix.to_string()),
        _ => None,
    });
    assert_eq!(routes.collect::<Vec<_>>(), ["128.0.0.0/1", "0.0.0.0/1"]);
}
