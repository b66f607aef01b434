//! Sets filters of the Windows Filtering Platform (WFP).
//!
//! The filters of an interface are in a separate sublayer, and all sublayers belong to one provider. All of
//! them are persistent: they stay when the process ends, and when the machine starts again. Each call is one
//! transaction, which the system takes back if the process ends within it.
//!
//! Everything but [`system`] is the same on any system, and is tested against an engine in memory.

use std::io;

use weft_config::InterfaceName;
use weft_tun::guid_of;

use super::error::FirewallError;
use super::{Family, Present, Rules, Table};

#[cfg(test)]
mod evaluation;
mod filters;
#[cfg(test)]
mod simulation;
#[cfg(windows)]
pub(crate) mod system;
#[cfg(test)]
mod tests;

use filters::{Filter, Machine};

/// The key of weft's provider, which never changes: by it a later version finds what an earlier one left.
const PROVIDER: u128 = 0x6d3c_2f0e_51b7_8c94_a2e8_0b7d_4f16_93c5;
/// What the name of a sublayer begins with.
const PREFIX: &str = "weft-";

/// A sublayer of weft's provider.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sublayer {
    key: u128,
    name: String,
}

impl Sublayer {
    fn of(interface: &InterfaceName) -> Self {
        Self { key: guid_of("sublayer", interface.as_str()), name: format!("{PREFIX}{interface}") }
    }
}

/// A call of the system that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallError {
    call: &'static str,
    code: u32,
}

/// A session with the filter engine of the system. Its end takes back a transaction that is not committed.
trait Engine {
    fn begin(&self) -> Result<(), CallError>;
    fn commit(&self) -> Result<(), CallError>;
    fn abort(&self) -> Result<(), CallError>;
    /// Returns the id of this program.
    fn program(&self) -> Result<Vec<u8>, CallError>;
    /// Returns the LUID of the adapter with this GUID, if there is one.
    fn luid(&self, adapter: u128) -> Option<u64>;
    fn has_provider(&self) -> Result<bool, CallError>;
    fn add_provider(&self) -> Result<(), CallError>;
    fn delete_provider(&self) -> Result<(), CallError>;
    /// Returns the sublayers of weft's provider.
    fn sublayers(&self) -> Result<Vec<Sublayer>, CallError>;
    fn add_sublayer(&self, sublayer: &Sublayer) -> Result<(), CallError>;
    fn delete_sublayer(&self, key: u128) -> Result<(), CallError>;
    /// Returns the keys of the filters in a sublayer.
    fn filters(&self, sublayer: u128) -> Result<Vec<u128>, CallError>;
    fn add_filter(&self, sublayer: &Sublayer, key: u128, filter: &Filter) -> Result<(), CallError>;
    fn delete_filter(&self, key: u128) -> Result<(), CallError>;
}

/// Replaces the filters of the interface with those of these rules.
fn apply(engine: &impl Engine, rules: &Rules) -> Result<(), FirewallError> {
    if !has_any(rules) {
        return remove(engine, &rules.interface);
    }
    let action = format!("set the firewall rules of {}", rules.interface);
    in_transaction(engine, &action, Engine::commit, || replace(engine, rules, &action))
}

/// Checks whether the engine would take these rules; nothing is changed.
fn check(engine: &impl Engine, rules: &Rules) -> Result<(), FirewallError> {
    if !has_any(rules) {
        return Ok(());
    }
    let action = format!("check the firewall rules of {}", rules.interface);
    in_transaction(engine, &action, Engine::abort, || replace(engine, rules, &action))
}

/// Removes the filters of the interface, and the provider with the last of them. It is no error if there is
/// nothing.
fn remove(engine: &impl Engine, interface: &InterfaceName) -> Result<(), FirewallError> {
    let action = format!("remove the firewall rules of {interface}");
    let of = |error| failed(&action, error);
    let own = Sublayer::of(interface);
    in_transaction(engine, &action, Engine::commit, || {
        let mut sublayers = engine.sublayers().map_err(of)?;
        if sublayers.contains(&own) {
            for key in engine.filters(own.key).map_err(of)? {
                engine.delete_filter(key).map_err(of)?;
            }
            engine.delete_sublayer(own.key).map_err(of)?;
            sublayers.retain(|sublayer| *sublayer != own);
        }
        if sublayers.is_empty() && engine.has_provider().map_err(of)? {
            engine.delete_provider().map_err(of)?;
        }
        Ok(())
    })
}

/// Returns the sublayer of an interface, if there is one. The engine does not count what it blocks.
fn present(engine: &impl Engine, interface: &InterfaceName) -> Result<Present, FirewallError> {
    let action = format!("read the firewall rules of {interface}");
    let of = |error| failed(&action, error);
    let own = Sublayer::of(interface);
    in_transaction(engine, &action, Engine::abort, || {
        if !engine.sublayers().map_err(of)?.contains(&own) {
            return Ok(Present::default());
        }
        let filters = engine.filters(own.key).map_err(of)?;
        let is_closed = Filter::of_the_rest().all(|filter| filters.contains(&filter.key(interface)));
        Ok(Present { tables: vec![table(own)], blocked: is_closed.then_some(0) })
    })
}

/// Returns where the rules of an interface are.
fn place(interface: &InterfaceName) -> String {
    format!("WFP sublayer {PREFIX}{interface}")
}

fn table(sublayer: Sublayer) -> Table {
    Table { family: Family::Inet, name: sublayer.name }
}

/// Reports whether there is anything to set. A full tunnel needs no filters: Windows does not accept packets
/// to the address of another interface.
fn has_any(rules: &Rules) -> bool {
    rules.kill_switch.is_some() || rules.mss_clamp
}

/// Brings the sublayer to these rules. Filters that stay are not touched.
fn replace(engine: &impl Engine, rules: &Rules, action: &str) -> Result<(), FirewallError> {
    if rules.mss_clamp {
        return Err(FirewallError::NoMssClamp { action: action.to_owned() });
    }
    let Some(switch) = &rules.kill_switch else { return Ok(()) };
    let of = |error| failed(action, error);
    let (interface, own) = (&rules.interface, Sublayer::of(&rules.interface));
    let tunnel = engine.luid(guid_of("adapter", interface.as_str()));
    if tunnel.is_none() {
        tracing::info!(%interface, "there is no adapter: the kill switch lets nothing pass to it until the next start");
    }
    let machine = Machine { program: engine.program().map_err(of)?, tunnel };
    let wanted: Vec<(u128, Filter)> = filters::of_kill_switch(switch, &machine)
        .into_iter()
        .map(|filter| (filter.key(interface), filter))
        .collect();
    if !engine.has_provider().map_err(of)? {
        engine.add_provider().map_err(of)?;
    }
    if !engine.sublayers().map_err(of)?.contains(&own) {
        engine.add_sublayer(&own).map_err(of)?;
    }
    let found = engine.filters(own.key).map_err(of)?;
    for (key, filter) in wanted.iter().filter(|(key, _)| !found.contains(key)) {
        let place = || format!("{action} ({}, {:?})", filter.what, filter.layer);
        engine.add_filter(&own, *key, filter).map_err(|error| failed(&place(), error))?;
    }
    for key in found.iter().filter(|key| wanted.iter().all(|(other, _)| other != *key)) {
        engine.delete_filter(*key).map_err(of)?;
    }
    Ok(())
}

/// Does something in one transaction, which ends as told, or is taken back after a failure.
fn in_transaction<E: Engine, T>(
    engine: &E,
    action: &str,
    end: fn(&E) -> Result<(), CallError>,
    work: impl FnOnce() -> Result<T, FirewallError>,
) -> Result<T, FirewallError> {
    let of = |error| failed(action, error);
    engine.begin().map_err(of)?;
    let done = work().and_then(|result| end(engine).map_err(of).map(|()| result));
    if done.is_err() {
        // The end of the session takes it back too.
        let _ = engine.abort();
    }
    done
}

/// Returns the session with the engine, if the system has one. Without one there are no filters either.
fn if_any<E>(session: Result<E, FirewallError>) -> Result<Option<E>, FirewallError> {
    match session {
        Err(FirewallError::Unsupported { .. }) => Ok(None),
        session => session.map(Some),
    }
}

const ERROR_ACCESS_DENIED: u32 = 5;
/// What Wine says, which has no filter engine.
const RPC_S_CANNOT_SUPPORT: u32 = 1764;
/// What a call says if the Base Filtering Engine, a service, does not run: `ERROR_SERVICE_NOT_ACTIVE`,
/// `RPC_S_SERVER_UNAVAILABLE`, `EPT_S_NOT_REGISTERED`.
const NO_SERVICE: [u32; 3] = [1062, 1722, 1753];

fn failed(action: &str, error: CallError) -> FirewallError {
    let action = action.to_owned();
    match error.code {
        ERROR_ACCESS_DENIED => FirewallError::Permission { action, advice: "run weft as an administrator" },
        RPC_S_CANNOT_SUPPORT => FirewallError::Unsupported { action },
        code if NO_SERVICE.contains(&code) => FirewallError::NoEngine { action },
        code => FirewallError::Engine {
            action,
            call: error.call,
            error: io::Error::from_raw_os_error(code.cast_signed()),
        },
    }
}
