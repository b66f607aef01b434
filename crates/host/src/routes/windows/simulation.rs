//! Tables in memory that change by the calls of IP Helper as those of Windows do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::routes::tables::tests::Simulation;

pub(super) const DEVICE: &str = "wg0";
const LOOPBACK: u64 = 1;
pub(super) const ETHERNET: u64 = 2;
pub(super) const WIFI: u64 = 3;
pub(super) const OWN: u64 = 9;

/// The tables of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(super) adapters: Vec<Adapter>,
    /// Lacks protocols that are switched off.
    pub(super) settings: BTreeMap<(u64, Family), Settings>,
    pub(super) routes: BTreeSet<Row>,
    pub(super) addresses: BTreeSet<(u64, IpNet)>,
}

#[derive(Debug)]
pub(crate) struct Simulated {
    pub(super) tables: RefCell<State>,
    calls: Cell<usize>,
    /// The first call that fails, and how many do.
    failing: Cell<(usize, usize)>,
    pub(super) log: RefCell<Vec<String>>,
}

pub(super) type Own = IpHelper<Simulated>;

impl Simulated {
    /// Counts a call that changes something, and logs it.
    fn call(&self, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        self.calls.set(self.calls.get() + 1);
        let (first, count) = self.failing.get();
        if self.calls.get() >= first && self.calls.get() - first < count {
            return Err(Refusal::Failed(io::Error::other("it fails")));
        }
        self.log.borrow_mut().push(what());
        Ok(())
    }
}

impl Machine for Simulated {
    fn luid(&self, index: u32) -> Result<u64, Refusal> {
        let tables = self.tables.borrow();
        let found = tables.adapters.iter().find(|adapter| adapter.index == index);
        found.map(|found| found.luid).ok_or(Refusal::Gone)
    }

    fn adapters(&self) -> Result<Vec<Adapter>, Refusal> {
        Ok(self.tables.borrow().adapters.clone())
    }

    fn settings(&self, luid: u64, family: Family) -> Result<Settings, Refusal> {
        self.tables.borrow().settings.get(&(luid, family)).copied().ok_or(Refusal::Gone)
    }

    fn settings_of_new(&self, luid: u64, family: Family) -> Result<Settings, Refusal> {
        self.settings(luid, family)
    }

    fn set(&self, luid: u64, family: Family, settings: &Settings) -> Result<(), Refusal> {
        self.call(|| format!("set {luid} {family} {settings:?}"))?;
        assert!(family == Family::V4 || settings.mtu >= 1280, "Windows refuses {settings:?}");
        let mut tables = self.tables.borrow_mut();
        let found = tables.settings.get_mut(&(luid, family)).ok_or(Refusal::Gone)?;
        *found = *settings;
        if settings.is_metric_automatic {
            found.metric = AUTOMATIC;
        }
        Ok(())
    }

    fn routes(&self) -> Result<Vec<Row>, Refusal> {
        Ok(self.tables.borrow().routes.iter().copied().collect())
    }

    fn create_route(&self, row: &Row) -> Result<(), Refusal> {
        self.call(|| format!("route {} via {} dev {}", row.prefix, row.next_hop, row.luid))?;
        self.settings(row.luid, Family::of(row.prefix))?;
        if self.tables.borrow().routes.iter().any(is_same(row)) {
            return Err(Refusal::Exists);
        }
        self.tables.borrow_mut().routes.insert(*row);
        Ok(())
    }

    fn delete_route(&self, row: &Row) -> Result<(), Refusal> {
        self.call(|| format!("no route {} via {} dev {}", row.prefix, row.next_hop, row.luid))?;
        let mut tables = self.tables.borrow_mut();
        let before = tables.routes.len();
        tables.routes.retain(|found| !is_same(row)(found));
        if tables.routes.len() < before { Ok(()) } else { Err(Refusal::Gone) }
    }

    fn addresses(&self) -> Result<Vec<(u64, IpNet)>, Refusal> {
        Ok(self.tables.borrow().addresses.iter().copied().collect())
    }

    fn create_address(&self, luid: u64, address: IpNet) -> Result<(), Refusal> {
        self.call(|| format!("address {address} dev {luid}"))?;
        let dad = self.settings(luid, Family::of(address))?.dad_transmits;
        assert_eq!(dad, 0, "the address is not usable at once");
        let mut tables = self.tables.borrow_mut();
        if tables.addresses.iter().any(|(_, found)| found.addr() == address.addr()) {
            return Err(Refusal::Exists);
        }
        tables.addresses.insert((luid, address));
        tables.routes.extend(routes_of_address(luid, address));
        Ok(())
    }

    fn delete_address(&self, luid: u64, address: IpAddr) -> Result<(), Refusal> {
        self.call(|| format!("no address {address} dev {luid}"))?;
        let mut tables = self.tables.borrow_mut();
        let found = tables.addresses.iter().find(|(of, net)| (*of, net.addr()) == (luid, address)).copied();
        let (_, net) = found.ok_or(Refusal::Gone)?;
        tables.addresses.remove(&(luid, net));
        // Two addresses of a network share its route.
        let others: Vec<Row> =
            tables.addresses.iter().flat_map(|(of, net)| routes_of_address(*of, *net)).collect();
        for row in routes_of_address(luid, net).iter().filter(|row| !others.contains(row)) {
            tables.routes.remove(row);
        }
        Ok(())
    }
}

/// What the system chooses for an interface.
pub(super) const AUTOMATIC: u32 = 25;
/// What the system gives the routes that it makes.
const OF_ADDRESS: u32 = 256;

fn is_same(row: &Row) -> impl Fn(&Row) -> bool {
    let key = |row: &Row| (row.luid, row.prefix, row.next_hop);
    let key_of_row = key(row);
    move |found| key(found) == key_of_row
}

/// Returns the routes that the system makes for an address: to its network, and to itself.
fn routes_of_address(luid: u64, address: IpNet) -> [Row; 2] {
    let route = |prefix| Row { metric: OF_ADDRESS, ..own_route(luid, prefix) };
    [route(address), route(address.addr().into())]
}

impl Simulation for Own {
    const DEVICE: &'static str = DEVICE;
    const LAN: &'static str = "Ethernet";
    type State = State;

    fn home() -> Self {
        let adapter = |luid: u64, name: &str| Adapter {
            luid,
            index: u32::try_from(luid).unwrap() + 10,
            name: name.to_owned(),
            mtu: if luid == OWN { 65_535 } else { 1500 },
            is_up: true,
            is_loopback: luid == LOOPBACK,
        };
        let adapters = vec![
            adapter(LOOPBACK, "Loopback Pseudo-Interface 1"),
            adapter(ETHERNET, "Ethernet"),
            adapter(WIFI, "Wi-Fi"),
            adapter(OWN, DEVICE),
        ];
        let settings = Settings {
            mtu: 1500,
            metric: AUTOMATIC,
            is_metric_automatic: true,
            dad_transmits: 3,
            asks_routers: true,
        };
        let both = |adapter: &Adapter| Family::ALL.map(|family| ((adapter.luid, family), settings));
        let settings = adapters.iter().flat_map(both).collect();
        let row = |luid, prefix: &str, next_hop: &str, metric| Row {
            luid,
            prefix: prefix.parse().unwrap(),
            next_hop: next_hop.parse().unwrap(),
            metric,
        };
        let routes = BTreeSet::from([
            // The Wi-Fi leads to the Internet too, but is not preferred.
            row(WIFI, "0.0.0.0/0", "172.17.0.1", 300),
            row(ETHERNET, "0.0.0.0/0", "192.168.1.1", 10),
            row(ETHERNET, "192.168.1.0/24", "0.0.0.0", OF_ADDRESS),
            row(LOOPBACK, "127.0.0.0/8", "0.0.0.0", OF_ADDRESS),
            row(ETHERNET, "::/0", "fe80::1", 10),
            // Another program's route, to an endpoint of the tunnel.
            row(ETHERNET, "198.51.100.9/32", "192.168.1.7", 0),
        ]);
        let tables = State { adapters, settings, routes, addresses: BTreeSet::new() };
        let machine = Simulated {
            tables: RefCell::new(tables),
            calls: Cell::new(0),
            failing: Cell::new((0, 0)),
            log: RefCell::default(),
        };
        Self { machine }
    }

    fn around(&self) -> State {
        let mut state = self.machine.tables.borrow().clone();
        for ((luid, _), settings) in &mut state.settings {
            if *luid == OWN {
                *settings = Settings { mtu: 0, dad_transmits: 0, asks_routers: false, ..*settings };
            }
        }
        state
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
        tables.routes.retain(|row| row.prefix != prefix);
        let next_hop = via.map(|via| match via {
            Via::Gateway { address, .. } => address,
            via => panic!("{via}"),
        });
        let row = |next_hop| Row { luid: ETHERNET, prefix, next_hop, metric: 10 };
        tables.routes.extend(next_hop.map(row));
    }
}

impl Own {
    /// Unplugs every interface to the Internet. The system keeps their routes.
    pub(crate) fn disconnect(&self) {
        for adapter in &mut self.machine.tables.borrow_mut().adapters {
            adapter.is_up = ![ETHERNET, WIFI].contains(&adapter.luid);
        }
    }

    pub(super) fn switch_off(&self, family: Family) {
        self.machine.tables.borrow_mut().settings.remove(&(OWN, family));
    }

    pub(super) fn own(&self, family: Family) -> Settings {
        self.machine.tables.borrow().settings[&(OWN, family)]
    }
}
