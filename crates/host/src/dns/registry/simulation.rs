//! A registry in memory, on which a call goes wrong or is the last of its process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use super::{Table, Value, ValueChange};
use crate::fault::{Fault, Process};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) values: BTreeMap<String, Value>,
    lasts: bool,
}

/// The keys below HKEY_LOCAL_MACHINE by their paths.
pub(super) type World = BTreeMap<String, Key>;

#[derive(Debug, Default)]
pub(super) struct Simulated {
    pub(super) world: RefCell<World>,
    process: Process<String>,
    /// What the DNS client has read last, and whether Group Policy was read too.
    announced: RefCell<Option<(World, bool)>>,
}

impl Simulated {
    pub(super) fn new(world: World) -> Self {
        Self { world: RefCell::new(world), ..Self::default() }
    }

    /// Begins a process, of which this call goes wrong.
    pub(super) fn process(&self, fault: Option<(usize, Fault)>) -> &Self {
        self.process.start(fault);
        self
    }

    /// The calls of the process.
    pub(super) fn calls(&self) -> Vec<String> {
        self.process.calls()
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
        let refused = |_| io::ErrorKind::PermissionDenied.into();
        self.process.call(call, refused, || work(&mut self.world.borrow_mut()))
    }
}

/// A key that lasts, with these values.
pub(super) fn key<const N: usize>(values: [(&str, Value); N]) -> Key {
    Key { values: values.map(|(name, value)| (name.to_owned(), value)).into(), lasts: true }
}

fn make(world: &mut World, change: &ValueChange) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    match change {
        ValueChange::Create { key, lasts } => {
            let (parent, _) = key.rsplit_once('\\').unwrap();
            let parent = world.get(parent).ok_or_else(missing)?;
            assert!(parent.lasts || !lasts, "{key} cannot last below a key that does not");
            world.entry(key.clone()).or_insert_with(|| Key { lasts: *lasts, ..Key::default() });
        }
        ValueChange::Set { key, name, value } => {
            world.get_mut(key).ok_or_else(missing)?.values.insert((*name).to_owned(), value.clone());
        }
        ValueChange::Unset { key, name } => {
            if let Some(key) = world.get_mut(key) {
                key.values.remove(*name);
            }
        }
        ValueChange::Remove { key } => {
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

    fn make(&self, change: &ValueChange) -> io::Result<()> {
        self.call(change.action(), |world| make(world, change))
    }

    fn announce(&self, with_policy: bool) -> io::Result<()> {
        self.call("announce".to_owned(), |world| {
            self.announced.replace(Some((world.clone(), with_policy)));
            Ok(())
        })
    }
}
