//! A registry in memory, on which a call goes wrong or is the last of its process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

use super::{Change, Table, Value};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) values: BTreeMap<String, Value>,
    lasts: bool,
}

/// The keys below HKEY_LOCAL_MACHINE by their paths.
pub(super) type World = BTreeMap<String, Key>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call does nothing and fails.
    Refuses,
    /// The call does its work and fails.
    IsUnheard,
    /// The call does its work, and its caller is killed.
    IsTheLast,
}

#[derive(Debug, Default)]
pub(super) struct Simulated {
    pub(super) world: RefCell<World>,
    calls: RefCell<Vec<String>>,
    /// The number of the call that goes wrong, from 0.
    fault: Cell<Option<(usize, Fault)>>,
    is_killed: Cell<bool>,
    /// What the DNS client has read last, and whether Group Policy was read too.
    announced: RefCell<Option<(World, bool)>>,
}

impl Simulated {
    pub(super) fn new(world: World) -> Self {
        Self { world: RefCell::new(world), ..Self::default() }
    }

    /// Begins a process, of which this call goes wrong.
    pub(super) fn process(&self, fault: Option<(usize, Fault)>) -> &Self {
        self.fault.set(fault);
        self.calls.take();
        self.is_killed.set(false);
        self
    }

    /// The calls of the process.
    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.borrow().clone()
    }

    pub(super) fn world(&self) -> World {
        self.world.borrow().clone()
    }

    /// Returns what the DNS client has read last.
    pub(super) fn announced(&self) -> Option<(World, bool)> {
        self.announced.borrow().clone()
    }

    /// Restarts the machine.
    pub(super) fn restart(&self) {
        self.world.borrow_mut().retain(|_, key| key.lasts);
    }

    fn call<T>(&self, call: String, work: impl FnOnce(&mut World) -> io::Result<T>) -> io::Result<T> {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        if self.is_killed.get() {
            return Err(refused());
        }
        let number = self.calls.borrow().len();
        self.calls.borrow_mut().push(call);
        let fault = self.fault.get().filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        if fault == Some(Fault::Refuses) {
            return Err(refused());
        }
        let done = work(&mut self.world.borrow_mut());
        self.is_killed.set(fault == Some(Fault::IsTheLast));
        if fault.is_some() { Err(refused()) } else { done }
    }
}

/// A key that lasts, with these values.
pub(super) fn key<const N: usize>(values: [(&str, Value); N]) -> Key {
    Key { values: values.map(|(name, value)| (name.to_owned(), value)).into(), lasts: true }
}

fn make(world: &mut World, change: &Change) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    match change {
        Change::Create { key, lasts } => {
            let (parent, _) = key.rsplit_once('\\').unwrap();
            let parent = world.get(parent).ok_or_else(missing)?;
            assert!(parent.lasts || !lasts, "{key} cannot last below a key that does not");
            world.entry(key.clone()).or_insert_with(|| Key { lasts: *lasts, ..Key::default() });
        }
        Change::Set { key, name, value } => {
            world.get_mut(key).ok_or_else(missing)?.values.insert((*name).to_owned(), value.clone());
        }
        Change::Unset { key, name } => {
            if let Some(key) = world.get_mut(key) {
                key.values.remove(*name);
            }
        }
        Change::Remove { key } => {
            let below = format!("{key}\\");
            assert!(!world.keys().any(|other| other.starts_with(&below)), "{key} has keys");
            world.remove(key);
        }
    }
    Ok(())
}

impl Table for Simulated {
    fn keys(&self, key: &str) -> io::Result<Option<Vec<String>>> {
        self.call(format!("list {key}"), |world| {
            let below = format!("{key}\\");
            let names = world.keys().filter_map(|path| path.strip_prefix(&below)).map(str::to_owned);
            let names = names.filter(|name| !name.contains('\\')).collect();
            Ok(world.contains_key(key).then_some(names))
        })
    }

    fn value(&self, key: &str, name: &str) -> io::Result<Option<Value>> {
        self.call(format!("read {name} of {key}"), |world| {
            Ok(world.get(key).and_then(|key| key.values.get(name)).cloned())
        })
    }

    fn make(&self, change: &Change) -> io::Result<()> {
        self.call(change.action(), |world| make(world, change))
    }

    fn announce(&self, with_policy: bool) -> io::Result<()> {
        self.call("announce".to_owned(), |world| {
            self.announced.replace(Some((world.clone(), with_policy)));
            Ok(())
        })
    }
}
