//! Sets up the system around the tunnel: addresses, routes, rules, name servers, the packet filter, and the
//! commands of the configuration. This is everything that `weft up` does besides moving packets, and that
//! `weft down` undoes.
//!
//! [`Plan`] decides what to do, without changing anything; [`Applied`] does and undoes it; [`Record`] is what
//! a later `weft down` reads when the daemon has ended. The calls, in order:
//!
//! ```text
//!   Host::prepare      undoes what a previous daemon left behind, makes the plan and records it
//!   (the device is created)
//!   Host::before       PreUp
//!   (key files are read, names of endpoints are looked up)
//!   Host::plan_after_pre_up
//!   (keys, port and peers are set; packets may move)
//!   Host::up           addresses, MTU and link, DNS, routes, firewall, PostUp
//!   …
//!   Host::before_down  PreDown
//!   (the file is saved, if SaveConfig is set)
//!   Host::down         undoes `up` in reverse order
//!   (the device is removed)
//!   Host::after        PostDown
//! ```
//!
//! When the service restarts, the old daemon calls [`Host::hand_over`] instead of the calls from
//! `before_down` on, and the new daemon calls `Host::adopt` instead of `prepare`: steps that are still in
//! force are not done again (`adopt.rs`).
//!
//! A failure before `up` has returned undoes everything that was done. A kill switch in force survives every
//! end of the daemon that the user did not ask for: `Host::down` keeps it then, and a failed start restores
//! the previous one. To be called on a control thread only: every call waits for the system, and for
//! commands.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_config::device::DeviceState;
use weft_config::{Config, Hook, InterfaceName, Location, Notice, PeerComments, Warning};
use weft_ipc::runtime_dir::{self, runtime_dir};
use weft_tunnel::PublicKey;

use crate::resolve::Tunnel;
use crate::routes::{Family, Link, Netlink};

mod adopt;
mod choice;
mod clean_up;
pub mod dns;
mod end;
mod error;
#[cfg(target_os = "linux")]
pub mod ethtool;
mod execute;
#[cfg(test)]
mod fault;
mod file_edit;
pub mod firewall;
mod follow;
mod hooks;
mod kernel;
mod kill_switch;
pub mod memory;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, unreachable_pub, reason = "only tests use it here"))]
pub mod misrouted;
mod namespace;
#[cfg_attr(not(target_os = "linux"), path = "netns/none.rs")]
mod netns;
pub mod network;
mod obstacles;
mod outside;
mod plan;
mod platform;
mod predecessor;
mod programs;
mod record;
pub mod resolve;
mod restore;
pub mod routes;
mod save;
mod step;
mod sysctl;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
mod system_file;
mod system_state;
mod unsaved;
#[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows)))]
compile_error!("weft sets up Linux, macOS, FreeBSD and Windows; apps of other systems embed crates/ffi");

pub use clean_up::{Keep, clean_up, clean_up_unrecorded, is_left_unrecorded, remembered};
pub use error::HostError;
pub use execute::{Applied, Difference, Outcome, StepChange, System};
pub use file_edit::{FileEdit, FileEditError};
pub use follow::FOLLOWS_ENDPOINTS;
pub use hooks::{
    CommandUnderWay, command_under_way, interrupt_commands, is_within_any_command, is_within_command,
    limit_commands_of_the_end,
};
pub use kill_switch::tell_what_is_left;
pub use namespace::keep_what_counts_in_a_namespace;
pub use netns::has_device;
pub use obstacles::{Obstacle, obstacles};
pub use outside::{repair_dns, without_rules};
pub use plan::{FIRST_TABLE, Plan, SRC_VALID_MARK, SystemState, told_backwards};
pub use platform::{Process, put_new_private};
pub use predecessor::{wait_for_predecessor, wait_for_release};
pub use programs::{hung_programs, once_more};
pub use record::{Owner, Record, record_path, refuse_elsewhere};
pub use restore::{DnsPast, Undone};
pub use save::{SaveError, save, save_running};
pub use step::{Firewall, FullTunnel, Step};
pub use unsaved::{Unsaved, settle as settle_unsaved, text_hash};

use adopt::Continued;
use kernel::Kernel;
use restore::DnsWatch;

/// Reports whether this machine has an address, or may have it: only the system's answer that it has not
/// counts.
pub fn has_address(address: IpAddr) -> bool {
    let bound = std::net::UdpSocket::bind((address, 0));
    !bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable)
}

/// Adds a warning to those of a configuration that was loaded from `target` if all users can read its file by
/// an access list, as on Windows. Loading it warns of permission bits.
pub fn warn_of_readers(target: &str, warnings: &mut Vec<Warning>) {
    let path = weft_config::path_of(target);
    if platform::is_open_to_all(&path) {
        let at = Location { file: path.into(), line: 1, key: None };
        warnings.insert(0, Warning { at, notice: Notice::ReadableByAll });
    }
}

/// Where the record of what was done is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// Nowhere: the changes stay after a crash. For interfaces that live as long as a test.
    #[default]
    Nowhere,
    /// In this directory, see [`weft_ipc::runtime_dir`].
    In(PathBuf),
}

/// The system around an interface, from before its device is created until after it is removed. Dropping it
/// undoes the steps in force, without the commands of PreDown and PostDown. A kill switch that a previous
/// daemon left behind stays until [`Self::up`] has replaced it.
#[derive(Debug)]
pub struct Host {
    kernel: Kernel,
    plan: Plan,
    applied: Applied,
    owner: Option<Arc<Owner>>,
    record: Record,
    /// Whether a previous daemon left a kill switch behind: only `down` removes it, a failed start does not.
    found_kill_switch: bool,
    /// Set if the device existed before this daemon started.
    continued: Option<Continued>,
    /// The MTU that was set on the device by hand; it stays if the configuration has no MTU.
    mtu_by_hand: Option<u16>,
    dns_watch: DnsWatch,
    /// What another program has undone and is not restored, and of that what is in the packet filter.
    undone: Vec<Undone>,
    undone_firewall: Vec<Undone>,
    /// Whether the device was deleted, or moved to another network namespace.
    device_has_left: bool,
    /// When the start or the end began that is under way: what has hung in it is not called again.
    event: Instant,
    /// Whether [`Self::down`] has told what could not be undone.
    is_told: bool,
}

impl Host {
    /// Claims the interface, undoes what a previous daemon left behind, and plans what to do. `source` is the
    /// file of the configuration, if there is one; `endpoints` are the known addresses of the peers.
    ///
    /// # Errors
    /// A daemon runs the interface, or the system cannot be queried. No step of the plan is done then.
    pub fn prepare(
        config: &Config,
        source: Option<&Path>,
        endpoints: &[SocketAddr],
        recording: &Recording,
    ) -> Result<Self, HostError> {
        let interface = &config.interface.name;
        crate::routes::check_name(interface)?;
        let kernel = Kernel::new(Netlink::open()?, interface.clone());
        let owner = owner(recording, interface)?;
        let left = left_behind(owner.as_deref(), interface, None)?;
        Self::begin(kernel, owner, left, config, source, endpoints)
    }

    /// Plans what to do for a device in a separate network namespace, which `inside` configures. The
    /// configuration has only [what counts there](keep_what_counts_in_a_namespace). Nothing is recorded: the
    /// namespace ends with its processes, and everything in it.
    ///
    /// # Errors
    /// The system cannot be queried.
    pub fn in_namespace(
        config: &Config,
        source: Option<&Path>,
        endpoints: &[SocketAddr],
        inside: Netlink,
    ) -> Result<Self, HostError> {
        let mut kernel = Kernel::new(inside, config.interface.name.clone());
        kernel.outside = Some(Netlink::open()?);
        Self::begin(kernel, None, None, config, source, endpoints)
    }

    /// Plans nothing: the device is a TCP/IP stack in this process, and the system has no part of it. The
    /// plan says which addresses, routes and MTU the stack has. The configuration has only
    /// [what counts there](keep_what_counts_in_a_namespace).
    ///
    /// # Errors
    /// The system cannot be queried.
    pub fn detached(config: &Config, endpoints: &[SocketAddr]) -> Result<Self, HostError> {
        let mut kernel = Kernel::new(Netlink::open()?, config.interface.name.clone());
        kernel.outside = Some(Netlink::open()?);
        kernel.is_detached = true;
        Self::begin(kernel, None, None, config, None, endpoints)
    }

    fn begin(
        mut kernel: Kernel,
        owner: Option<Arc<Owner>>,
        left: Option<Record>,
        config: &Config,
        source: Option<&Path>,
        endpoints: &[SocketAddr],
    ) -> Result<Self, HostError> {
        let interface = &config.interface.name;
        let mut kept = None;
        let mut stuck = Vec::new();
        let mut known = BTreeMap::new();
        let event = Instant::now();
        if let Some(left) = left {
            tracing::info!(%interface, "taking back what a daemon left behind");
            let failures;
            (failures, kept, stuck) = programs::event(programs::OF_AN_EVENT, event, || {
                clean_up::take_back(&left, &mut kernel, Keep::KillSwitch)
            });
            for failure in failures {
                tracing::warn!("{failure}");
            }
            kernel.link = None;
            known = left.endpoints;
        }
        if owner.is_some() {
            outside::repair_dns();
        }
        let directory = owner.as_deref().map(Owner::directory);
        let facts = system_state::gather(&kernel.netlink, kernel.paths(), config, endpoints, directory, 0)?;
        let plan = Plan::new(config, endpoints, &facts);
        // New name servers replace those that could not be undone.
        stuck.retain(|step| !matches!(step, Step::Dns(_)) || plan.dns().is_none());
        kernel.dns = kernel.dns.filter(|_| stuck.iter().any(|step| matches!(step, Step::Dns(_))));
        if facts.src_valid_mark.is_none() && plan.routes_by_mark(Family::V4) {
            tracing::warn!(
                "cannot see the sysctl {SRC_VALID_MARK}; where the reverse-path filter is strict and it is not 1, what the \
                 peers send over IPv4 is dropped: a service with a default route is weft-client@.service, or has \
                 full-tunnel.conf"
            );
        }
        let record = Record {
            file: source.map(Path::to_owned),
            steps: kept.iter().chain(&stuck).cloned().collect(),
            dns: kernel.dns.clone(),
            down: plan.down.clone(),
            endpoints: known,
            ran: plan.up_hooks(),
            ..Record::new(interface)
        };
        let found_kill_switch = kept.is_some();
        kernel.kept = kept;
        let applied = Applied::default().with_stuck(stuck);
        let mut host = Self {
            kernel,
            plan: plan.clone(),
            applied,
            owner,
            record,
            found_kill_switch,
            continued: None,
            mtu_by_hand: None,
            dns_watch: DnsWatch::default(),
            undone: Vec::new(),
            undone_firewall: Vec::new(),
            device_has_left: false,
            event,
            is_told: false,
        };
        host.reserve((config, endpoints), 0, Some(plan))?;
        Ok(host)
    }

    /// Returns the plan: what is done, and in which order.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the steps in force, in the order in which they were done.
    pub fn in_force(&self) -> &[Step] {
        self.applied.steps()
    }

    /// Returns the mark (SO_MARK) that the tunnel's own packets need; 0: none.
    pub fn mark(&self) -> u32 {
        self.plan.mark
    }

    /// Returns the MTU that the device gets, in bytes.
    pub fn mtu(&self) -> u16 {
        self.plan.mtu
    }

    /// Returns the MTU that was set on the device by hand, if it is to stay.
    pub fn mtu_by_hand(&self) -> Option<u16> {
        self.mtu_by_hand
    }

    /// Records that the device has this MTU now. `stays`: a configuration without an MTU leaves it as it is.
    pub fn note_mtu(&mut self, mtu: u16, stays: bool) {
        self.applied.note_mtu(mtu);
        self.plan.mtu = mtu;
        self.mtu_by_hand = stays.then_some(mtu);
    }

    /// Returns the tunnel that look-ups of its peers' names must not depend on; `None`: names are looked up
    /// outside the namespace of the device.
    pub fn tunnel(&self) -> Option<Tunnel> {
        let index = self.link().map(|link| link.index);
        let own = || Tunnel::new(&self.plan.interface, index, self.plan.mark, self.applied.steps());
        self.kernel.outside.is_none().then(own)
    }

    /// Returns the connection to the kernel's network configuration.
    pub fn netlink(&self) -> &Netlink {
        &self.kernel.netlink
    }

    /// Returns the connection to the network configuration that leads to the peers.
    pub fn paths(&self) -> &Netlink {
        self.kernel.paths()
    }

    /// Returns the device, once it was found.
    pub fn link(&self) -> Option<&Link> {
        self.kernel.link.as_ref()
    }

    /// Returns the device, once it was found, unless it is in a separate namespace.
    pub fn link_here(&self) -> Option<&Link> {
        self.link().filter(|_| self.kernel.outside.is_none())
    }

    /// Finds the device, which was just created or is adopted, makes it silent unless a previous daemon did,
    /// and runs PreUp.
    pub fn before(&mut self) -> Result<(), HostError> {
        if self.kernel.is_detached {
            return Ok(());
        }
        let link = self.kernel.netlink.link(&self.plan.interface)?;
        self.record.index = Some(link.index);
        if !self.record.is_silent {
            self.kernel.netlink.make_silent(&link)?;
            self.record.is_silent = true;
        }
        self.kernel.link = Some(link);
        if self.is_to_run_pre_up() {
            self.applied.apply(&self.plan.before, &mut self.kernel)?;
        }
        Ok(())
    }

    /// Adapts the plan to what PreUp has changed, and to addresses of peers that were looked up after it. The
    /// mark stays.
    ///
    /// # Errors
    /// The system cannot be queried, or the record cannot be written.
    pub fn plan_after_pre_up(&mut self, config: &Config, endpoints: &[SocketAddr]) -> Result<(), HostError> {
        self.reserve((config, endpoints), self.plan.mark, None)
    }

    /// Plans, and reserves the mark and the priorities of the rules: other interfaces cannot choose them from
    /// here on.
    fn reserve(
        &mut self,
        wanted: (&Config, &[SocketAddr]),
        mark_in_force: u32,
        given: Option<Plan>,
    ) -> Result<(), HostError> {
        let before = self.record.steps.clone();
        self.plan = self.choose(wanted, mark_in_force, given, |host, plan| {
            host.record.mark = plan.mark;
            host.record.steps.clone_from(&before);
            host.record.reserve_rules_of(plan);
            host.write()
        })?;
        Ok(())
    }

    /// Does the rest of the plan. `before_commands` is called when all but the commands of PostUp is in
    /// place. After a failure, what was done is undone at the latest when this is dropped.
    pub fn up<E: From<HostError>>(
        &mut self,
        before_commands: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(continued) = self.continued.take() {
            before_commands()?;
            return Ok(self.go_on(&continued)?);
        }
        // All steps are recorded before the first is done: the record then has every step that was done, and
        // undoing a step that was not done is harmless.
        self.record.steps =
            self.kernel.kept.iter().chain(&self.applied.all()).chain(&self.plan.steps).cloned().collect();
        if let Some(wanted) = self.plan.dns() {
            self.record.dns = Some(self.kernel.dns_record(wanted)?);
        }
        self.write()?;
        programs::event(Duration::MAX, self.event, || {
            let is_command = |step: &Step| matches!(step, Step::Hook(_));
            let end = self.plan.steps.iter().position(is_command).unwrap_or(self.plan.steps.len());
            let (system, commands) = self.plan.steps.split_at(end);
            let done = self.applied.apply(system, &mut self.kernel).map_err(E::from);
            let done = done.and_then(|()| before_commands());
            let done = done.and_then(|()| Ok(self.applied.apply(commands, &mut self.kernel)?));
            self.conclude(done)
        })
    }

    /// Ends a start. Until it cannot fail any more, a kill switch that was there before is kept.
    fn conclude<E: From<HostError>>(&mut self, done: Result<(), E>) -> Result<(), E> {
        if let Err(error) = done.and_then(|()| Ok(self.write_what_is_in_force()?)) {
            self.restore_kill_switch();
            return Err(error);
        }
        self.release_kill_switch();
        Ok(())
    }

    /// Brings the system from the steps in force to those of another configuration. Only differences are
    /// applied, and a failure restores the previous state. Commands do not run; from here on, PreDown and
    /// PostDown are those of the new configuration. The device's mark may change, see [`Self::mark`]. Returns
    /// the number of changes.
    pub fn reload(&mut self, config: &Config, endpoints: &[SocketAddr]) -> Result<usize, HostError> {
        let plan = self.choose((config, endpoints), self.plan.mark, None, Self::write_before)?;
        let again = self.to_do_again(&plan);
        let forgotten = self.forget_undone(&again);
        let work = || self.carry_out(plan);
        let changes = programs::event(programs::OF_AN_EVENT, Instant::now(), work);
        if changes.is_err() {
            // The end still has to undo them.
            self.applied.remember(forgotten);
            if let Err(error) = self.write_what_is_in_force() {
                tracing::warn!("{error}");
            }
        }
        let changes = changes?;
        Ok(changes + self.restore_connected(again))
    }

    /// Writes down the steps that may be in force until a change to another plan is complete: those of either
    /// plan.
    fn write_before(&mut self, plan: &Plan) -> Result<(), HostError> {
        let mut steps = self.applied.all();
        let in_force: HashSet<&Step> = self.applied.steps().iter().collect();
        steps.extend(plan.steps.iter().filter(|step| !in_force.contains(step)).cloned());
        self.record.steps = steps;
        if self.plan.mark == 0 {
            self.record.mark = plan.mark;
        }
        self.write()
    }

    /// Brings the system to another plan.
    fn change_to(&mut self, plan: Plan) -> Result<usize, HostError> {
        self.write_before(&plan)?;
        programs::change(|| self.carry_out(plan))
    }

    /// Brings the system to another plan, of which the record has the steps already.
    fn carry_out(&mut self, plan: Plan) -> Result<usize, HostError> {
        let before = self.applied.steps().to_vec();
        let lacks = std::mem::take(&mut self.kernel.lacks);
        let done = self.applied.change_to(&plan.steps, &mut self.kernel);
        let done = done.and_then(|changes| self.write_change_to(&plan.down, plan.mark).map(|()| changes));
        if done.is_ok() {
            self.plan = plan;
            return done;
        }
        self.kernel.lacks = lacks;
        // The record that was written first covers what may be in force, whatever fails here.
        let restored = self.applied.change_to(&before, &mut self.kernel);
        let (down, mark) = (self.plan.down.clone(), self.plan.mark);
        if let Err(error) = restored.and_then(|_| self.write_change_to(&down, mark)) {
            tracing::warn!("while taking back a change that failed: {error}");
        }
        done
    }

    /// Records that a plan with these commands and this mark is in force.
    fn write_change_to(&mut self, down: &[Hook], mark: u32) -> Result<(), HostError> {
        self.record.down = down.to_vec();
        self.record.mark = mark;
        self.write_what_is_in_force()
    }

    /// Returns the plan for another configuration of this interface, which is up.
    pub fn plan_for(&self, config: &Config, endpoints: &[SocketAddr]) -> Result<Plan, HostError> {
        self.decide(config, endpoints, self.plan.mark)
    }

    /// Reports whether [`Self::remember`] is needed: a start after a crash cannot look names up behind a kill
    /// switch, and other tunnels ask for the endpoint of one with a default route.
    pub fn needs_memory(&self) -> bool {
        let is_for_others = Family::ALL.into_iter().any(|family| self.plan.routes_by_mark(family));
        is_for_others || self.plan.steps.iter().chain(&self.record.steps).any(clean_up::has_kill_switch)
    }

    /// Records the addresses of endpoints that are names in the configuration, see [`remembered`], and
    /// where the peers of a default route are: `endpoint` returns the address of the peer at a place.
    pub fn remember(
        &mut self,
        endpoints: BTreeMap<String, SocketAddr>,
        config: &Config,
        endpoint: impl Fn(usize, &PublicKey) -> Option<SocketAddr>,
    ) -> Result<(), HostError> {
        let outer = outer(config, endpoint);
        if self.record.endpoints == endpoints && self.record.outer == outer {
            return Ok(());
        }
        (self.record.endpoints, self.record.outer) = (endpoints, outer);
        self.write()
    }

    /// Reports whether a previous daemon left a kill switch behind.
    pub fn found_kill_switch(&self) -> bool {
        self.found_kill_switch
    }

    /// Writes the state of the interface into its file, see [`save()`]. If the file cannot be read or
    /// written, the state is kept beside the record; `text` is what the file had when it was last read.
    /// Returns whether the file was changed.
    pub fn save(
        &self,
        config: &Config,
        file: &Path,
        text: Option<&str>,
        device: &DeviceState,
    ) -> Result<bool, SaveError> {
        let chosen_mark = if config.interface.settings.fw_mark == 0 { self.plan.mark } else { 0 };
        let place = self.owner.as_ref().map(|owner| owner.directory());
        let comments = config.peers.iter().map(|peer| PeerComments {
            public_key: peer.public_key,
            report: peer.report.clone(),
            limits: peer.settings.limits,
        });
        let comments: Vec<PeerComments> = comments.collect();
        save::save_device(
            &self.kernel.netlink,
            place,
            &self.plan.interface,
            (file, text, None),
            text.map(unsaved::text_hash),
            (device, &comments),
            chosen_mark,
        )
    }

    fn write(&self) -> Result<(), HostError> {
        self.owner.as_ref().map_or(Ok(()), |owner| owner.write(&self.record))
    }

    fn write_what_is_in_force(&mut self) -> Result<(), HostError> {
        let kept = self.kernel.kept.iter().filter(|kept| !self.has_replaced(kept)).cloned();
        self.record.steps = kept.chain(self.applied.all()).collect();
        self.record.dns.clone_from(&self.kernel.dns);
        self.write()
    }
}

/// Returns the plan for a configuration in the present state of the system. Nothing is claimed or recorded.
pub fn plan(config: &Config, endpoints: &[SocketAddr]) -> Result<Plan, HostError> {
    let (netlink, directory) = (Netlink::open()?, runtime_dir());
    // One that is up keeps its mark: with another one, its own rules would be those of another tunnel.
    let own = Record::read(&directory, &config.interface.name).ok().flatten();
    let mark = own.map_or(0, |own| own.mark);
    let facts = system_state::gather(&netlink, &netlink, config, endpoints, Some(&directory), mark)?;
    Ok(Plan::new(config, endpoints, &facts))
}

fn owner(recording: &Recording, interface: &InterfaceName) -> Result<Option<Arc<Owner>>, HostError> {
    match recording {
        Recording::Nowhere => Ok(None),
        Recording::In(directory) => Ok(claim(directory, interface)?.map(Arc::new)),
    }
}

/// Returns the endpoint of the peer that has the default route of each family.
fn outer(
    config: &Config,
    endpoint: impl Fn(usize, &PublicKey) -> Option<SocketAddr>,
) -> BTreeMap<Family, SocketAddr> {
    let mut found = BTreeMap::new();
    for (place, peer) in config.peers.iter().enumerate() {
        let defaults = peer.allowed_ips.iter().filter(|net| net.prefix_len() == 0);
        found.extend(defaults.filter_map(|net| Some((Family::of(*net), endpoint(place, &peer.public_key)?))));
    }
    found
}

/// Returns what a daemon has left behind, and says in the log what is not known of it. `own` is the device,
/// if it is weft's.
fn left_behind(
    owner: Option<&Owner>,
    interface: &InterfaceName,
    own: Option<&Link>,
) -> Result<Option<Record>, HostError> {
    let Some(owner) = owner else { return Ok(None) };
    let (left, lack) = clean_up::left_behind(owner, interface, own)?;
    if let Some(lack) = lack {
        tracing::warn!("{lack}");
    }
    Ok(left)
}

/// Claims the interface. If the claim cannot be written down, logs a warning and returns `None`.
fn claim(directory: &Path, interface: &InterfaceName) -> Result<Option<Owner>, HostError> {
    match Owner::claim(directory, interface) {
        Ok(owner) => {
            // From here on, the directory's previous owner can neither remove the record nor write another.
            runtime_dir::adopt(&runtime_dir::instance(directory, interface))?;
            Ok(Some(owner))
        }
        Err(error @ HostError::State { .. }) => {
            tracing::warn!("{error}; `weft down` will not find this interface");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
