//! A filter engine in memory, of which calls fail, or are the last thing that a process does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::evaluation::{DATAGRAM, Packet, SYN, V6, WEFT, passes};
use super::filters::Filter;
use super::{CallError, Engine, Sublayer};
use crate::fault::{Fault, Process};

pub(super) const NOT_FOUND: u32 = 0x8032_0008;
pub(super) const ALREADY_EXISTS: u32 = 0x8032_0009;
pub(super) const IN_USE: u32 = 0x8032_000a;
const NO_TRANSACTION: u32 = 0x8032_000d;

/// What the system keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    pub(super) has_provider: bool,
    /// The sublayers of weft's provider, with their names.
    pub(super) sublayers: BTreeMap<u128, String>,
    /// All filters, with the keys of their sublayers.
    pub(super) filters: BTreeMap<u128, (u128, Filter)>,
    /// The adapters that exist: their GUIDs and LUIDs.
    pub(super) adapters: BTreeMap<u128, u64>,
    pub(super) program: Vec<u8>,
}

impl World {
    /// Reports whether a packet passes every sublayer.
    pub(super) fn passes(&self, packet: Packet) -> bool {
        let all = self.filters.values();
        let sublayers: std::collections::BTreeSet<u128> = all.map(|(sublayer, _)| *sublayer).collect();
        sublayers.into_iter().all(|sublayer| {
            let own = self.filters.values().filter(|(of, _)| *of == sublayer);
            passes(own.map(|(_, filter)| filter), packet)
        })
    }

    /// Reports whether packets of other programs are held back, in every direction, while weft's own pass.
    pub(super) fn is_closed(&self) -> bool {
        let forwarded = |packet| Packet { forwarded: Some((1, 2)), ..packet };
        let others = [SYN, V6, SYN.inbound(), V6.inbound(), forwarded(SYN), forwarded(V6)];
        let own = Packet { program: WEFT, remote: ("192.0.2.1", 51_820), ..DATAGRAM };
        others.into_iter().all(|packet| !self.passes(packet)) && self.passes(own)
    }
}

#[derive(Debug, Default)]
pub(super) struct Simulated {
    pub(super) world: RefCell<World>,
    /// What the transaction makes of it.
    transaction: RefCell<Option<World>>,
    process: Process<&'static str>,
    /// Whether the kill switch was in force after each call.
    was_closed: Cell<bool>,
}

impl Simulated {
    pub(super) fn new(world: World) -> Self {
        Self { world: RefCell::new(world), ..Self::default() }
    }

    /// A new process, of which this call goes wrong. The session of the one before has ended.
    pub(super) fn process(&self, fault: Option<(usize, Fault)>) -> &Self {
        self.transaction.take();
        self.process.start(fault);
        self
    }

    /// The calls of the process.
    pub(super) fn calls(&self) -> Vec<&'static str> {
        self.process.calls()
    }

    pub(super) fn world(&self) -> World {
        self.world.borrow().clone()
    }

    pub(super) fn has_transaction(&self) -> bool {
        self.transaction.borrow().is_some()
    }

    pub(super) fn watch(&self) {
        self.was_closed.set(true);
    }

    /// Reports whether the kill switch was in force all the time since [`Self::watch`].
    pub(super) fn was_closed(&self) -> bool {
        self.was_closed.get()
    }

    fn act<T>(&self, call: &'static str, work: impl FnOnce() -> Result<T, u32>) -> Result<T, CallError> {
        let error = |code| CallError { call, code };
        let work = || {
            let result = work().map_err(error);
            self.was_closed.set(self.was_closed.get() && self.world.borrow().is_closed());
            result
        };
        let result = self.process.call(call, |_| error(31), work);
        if self.process.is_killed() {
            self.transaction.take();
        }
        result
    }

    /// Acts on the objects: in the transaction, or at once without one.
    fn with<T>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut World) -> Result<T, u32>,
    ) -> Result<T, CallError> {
        self.act(call, || match &mut *self.transaction.borrow_mut() {
            Some(world) => work(world),
            None => work(&mut self.world.borrow_mut()),
        })
    }
}

impl Engine for &Simulated {
    fn begin(&self) -> Result<(), CallError> {
        self.act("begin", || {
            let before = self.transaction.replace(Some(self.world()));
            assert!(before.is_none(), "a transaction within another");
            Ok(())
        })
    }

    fn commit(&self) -> Result<(), CallError> {
        self.act("commit", || {
            self.world.replace(self.transaction.take().ok_or(NO_TRANSACTION)?);
            Ok(())
        })
    }

    fn abort(&self) -> Result<(), CallError> {
        self.act("abort", || self.transaction.take().map(drop).ok_or(NO_TRANSACTION))
    }

    fn program(&self) -> Result<Vec<u8>, CallError> {
        self.with("program", |world| Ok(world.program.clone()))
    }

    fn luid(&self, adapter: u128) -> Option<u64> {
        self.world.borrow().adapters.get(&adapter).copied()
    }

    fn has_provider(&self) -> Result<bool, CallError> {
        self.with("has_provider", |world| Ok(world.has_provider))
    }

    fn add_provider(&self) -> Result<(), CallError> {
        self.with("add_provider", |world| match std::mem::replace(&mut world.has_provider, true) {
            true => Err(ALREADY_EXISTS),
            false => Ok(()),
        })
    }

    fn delete_provider(&self) -> Result<(), CallError> {
        self.with("delete_provider", |world| match (world.has_provider, world.sublayers.is_empty()) {
            (false, _) => Err(NOT_FOUND),
            (true, false) => Err(IN_USE),
            (true, true) => {
                world.has_provider = false;
                Ok(())
            }
        })
    }

    fn sublayers(&self) -> Result<Vec<Sublayer>, CallError> {
        self.with("sublayers", |world| {
            let all = world.sublayers.iter();
            Ok(all.map(|(key, name)| Sublayer { key: *key, name: name.clone() }).collect())
        })
    }

    fn add_sublayer(&self, sublayer: &Sublayer) -> Result<(), CallError> {
        self.with("add_sublayer", |world| {
            if !world.has_provider {
                return Err(NOT_FOUND);
            }
            match world.sublayers.insert(sublayer.key, sublayer.name.clone()) {
                Some(_) => Err(ALREADY_EXISTS),
                None => Ok(()),
            }
        })
    }

    fn delete_sublayer(&self, key: u128) -> Result<(), CallError> {
        self.with("delete_sublayer", |world| {
            if world.filters.values().any(|(sublayer, _)| *sublayer == key) {
                return Err(IN_USE);
            }
            world.sublayers.remove(&key).map(drop).ok_or(NOT_FOUND)
        })
    }

    fn filters(&self, sublayer: u128) -> Result<Vec<u128>, CallError> {
        self.with("filters", |world| {
            let own = world.filters.iter().filter(|(_, (of, _))| *of == sublayer);
            Ok(own.map(|(key, _)| *key).collect())
        })
    }

    fn add_filter(&self, sublayer: &Sublayer, key: u128, filter: &Filter) -> Result<(), CallError> {
        self.with("add_filter", |world| {
            if !world.sublayers.contains_key(&sublayer.key) {
                return Err(NOT_FOUND);
            }
            match world.filters.insert(key, (sublayer.key, filter.clone())) {
                Some(_) => Err(ALREADY_EXISTS),
                None => Ok(()),
            }
        })
    }

    fn delete_filter(&self, key: u128) -> Result<(), CallError> {
        self.with("delete_filter", |world| world.filters.remove(&key).map(drop).ok_or(NOT_FOUND))
    }
}
