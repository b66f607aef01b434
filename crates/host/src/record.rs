//! Records on disk what was done for an interface, so that it can be undone when the daemon has ended.
//!
//! `NAME/record.json` lists the steps, and is written before the first of them is done. `NAME/lock` is locked
//! as long as a daemon runs the interface, and names its process, and whether that is ending: a start waits
//! for it then. The kernel releases the lock when the process ends, for whatever reason. A daemon releases it
//! last of all, so that its successor finds nothing in the way.
//!
//! The directory `NAME` may belong to another user, as whom a service runs: what this process reads there is
//! checked before it is trusted ([`runtime_dir`]).

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weft_config::{Hook, InterfaceName, path_of};
use weft_ipc::holder::{Held, Holder as LockHolder};
use weft_ipc::runtime_dir::{self, Access, UntrustedError, open_untrusted, read_untrusted};

use super::HostError;
use super::plan::{Plan, SRC_VALID_MARK};
use super::platform::{self, Process};
use super::step::Step;
use crate::dns;
use crate::netns::{self, NetworkNamespace};
use crate::routes::Family;

mod apart;
mod others;
mod removed;

pub(super) use apart::{Apart, remove_dead_socket};
use removed::replaced;

const VERSION: u32 = 1;
/// The record of 50,000 peers, each with two routes and an endpoint by name of some 70 bytes each, has 10 MB;
/// during a reload it may have twice as many routes. A larger record is neither read nor written.
const MAX_RECORD_BYTES: u64 = 32 << 20;
/// Two numbers of 20 digits at most, and [`ENDING`].
const MAX_LOCK_BYTES: u64 = 64;
/// What fails with a record that is empty or cut off, or of another version.
pub(super) const UNDERSTAND: &str = "understand";
/// Follows the numbers in the lock of a process that takes the interface down.
const ENDING: &str = "ending";
/// How long to wait for a lock that other users cannot open. No command of the configuration runs while one
/// is held, but that of the interface itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a start waits for a predecessor that is ending. Commands of PreDown and PostDown may take long.
pub(super) const PATIENCE_WITH_ENDING: Duration = Duration::from_secs(30);
/// How long a daemon may take to note that it ends: after a signal, or the removal of its socket.
pub(super) const NOTICE: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(10);

/// The steps that were, or may have been, done for an interface. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of this format.
    pub version: u32,
    /// The name of the interface.
    pub interface: InterfaceName,
    /// The file of its configuration.
    pub file: Option<PathBuf>,
    /// The interface index of the device, once it was created.
    pub index: Option<u32>,
    /// The mark of its packets; 0: none.
    pub mark: u32,
    /// The steps in their order; the last ones may not have been done.
    pub steps: Vec<Step>,
    /// The record that undoes the name servers.
    pub dns: Option<dns::Record>,
    /// The commands of PreDown and PostDown.
    pub down: Vec<Hook>,
    /// The last addresses of endpoints that are names in the configuration, by `host:port`: behind a kill
    /// switch that survives a crash, the names cannot be looked up.
    #[serde(default)]
    pub endpoints: BTreeMap<String, SocketAddr>,
    /// Where the packets go that the tunnel makes of those of each family, if it has a default route: another
    /// tunnel that they go through asks.
    #[serde(default)]
    pub outer: BTreeMap<Family, SocketAddr>,
    /// The commands of PreUp and PostUp that have run.
    #[serde(default)]
    pub ran: Vec<Hook>,
    /// Whether the device was made silent; what another program changed of that later stays.
    #[serde(default)]
    pub is_silent: bool,
    /// The network namespace in which it was made, where there are such.
    #[serde(default)]
    pub network: Option<NetworkNamespace>,
    /// The run of the service (`INVOCATION_ID`) that left everything in force, for the next run to take over.
    #[serde(default)]
    pub handed_over: Option<String>,
}

/// What a record of every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Record {
    /// Returns an empty record.
    pub fn new(interface: &InterfaceName) -> Self {
        Self {
            version: VERSION,
            interface: interface.clone(),
            file: None,
            index: None,
            mark: 0,
            steps: Vec::new(),
            dns: None,
            down: Vec::new(),
            endpoints: BTreeMap::new(),
            outer: BTreeMap::new(),
            ran: Vec::new(),
            is_silent: false,
            network: NetworkNamespace::ours(),
            handed_over: None,
        }
    }

    /// Returns the record of an interface of which only a kill switch is left. It has what a start behind the
    /// kill switch needs, and the mark, which no other interface may use.
    #[must_use]
    pub(super) fn of_kill_switch(&self, step: Step) -> Self {
        Self {
            mark: self.mark,
            steps: vec![step],
            endpoints: self.endpoints.clone(),
            ..Self::new(&self.interface)
        }
    }

    /// Reports whether the record in a directory was made in another network namespace, which is still there.
    /// The sockets of that name are not of this one then.
    pub fn is_of_another_namespace(directory: &Path, interface: &InterfaceName) -> bool {
        let found = Self::read_file(&record_path(directory, interface), interface);
        matches!(found, Ok(Some((record, _))) if record.is_elsewhere())
    }

    /// Reads the record of an interface in a directory, if there is one that was made in this network
    /// namespace. Only the trusted part of another user's record is returned.
    pub fn read(directory: &Path, interface: &InterfaceName) -> Result<Option<Self>, HostError> {
        let found = Self::read_file(&record_path(directory, interface), interface)?;
        let ours = match found.filter(|(record, _)| !record.is_elsewhere()) {
            None => apart::path_of_ours(directory, interface)
                .map_or(Ok(None), |path| Self::read_file(&path, interface))?,
            found => found,
        };
        Ok(ours.map(Self::believed))
    }

    /// Reports whether there is a record to be read, be it one that cannot be understood.
    pub fn exists(directory: &Path, interface: &InterfaceName) -> Result<bool, HostError> {
        match Self::read(directory, interface) {
            Err(HostError::State { action: UNDERSTAND, .. }) => Ok(true),
            found => Ok(found?.is_some()),
        }
    }

    fn believed((record, is_others): (Self, bool)) -> Self {
        if is_others { record.of_another_user() } else { record }
    }

    /// Reads a record as it stands there. Also returns whether it belongs to another user. One that cannot be
    /// understood, and names another network namespace, is a record without steps.
    fn read_file(file: &Path, interface: &InterfaceName) -> Result<Option<(Self, bool)>, HostError> {
        let advice =
            "see what it holds; if it is of no use, remove it, and the routes, rules and tables by hand";
        let Some((text, opened)) =
            read_untrusted(file, MAX_RECORD_BYTES).map_err(|error| untrusted("read", error))?
        else {
            return Ok(None);
        };
        let record = Self::parse(&text, interface).or_else(|error| {
            let elsewhere = Self { network: apart::network_of(&text), ..Self::new(interface) };
            if elsewhere.is_elsewhere() {
                tracing::debug!("{}, of another network namespace: {error}", file.display());
                return Ok(elsewhere);
            }
            Err(HostError::State { action: UNDERSTAND, file: file.to_owned(), error, advice })
        })?;
        Ok(Some((record, platform::other_owner(&opened).is_some())))
    }

    fn parse(text: &[u8], interface: &InterfaceName) -> io::Result<Self> {
        // Another version need not have what this one has.
        let Versioned { version } = serde_json::from_slice(text)?;
        if version != VERSION {
            let of = if version > VERSION { ", of a newer weft" } else { "" };
            return Err(io::Error::other(format!("it is of version {version}{of}")));
        }
        let record: Self = serde_json::from_slice(text)?;
        if record.interface != *interface {
            return Err(io::Error::other(format!("it is the record of {}", record.interface)));
        }
        Ok(record)
    }

    /// Returns the trusted part of a record that another user, such as the one that a service runs as, could
    /// write: the part that concerns the interface. What this process may do but that user may not (commands,
    /// other files) is removed.
    fn of_another_user(mut self) -> Self {
        if !self.down.is_empty() {
            tracing::warn!(
                interface = %self.interface,
                "the record of what was done is another user's: PreDown and PostDown are not run for it"
            );
            self.down.clear();
        }
        self.steps.retain(|step| match step {
            Step::Sysctl { name, before, .. } => {
                name == SRC_VALID_MARK && ["0", "1"].contains(&before.as_str())
            }
            Step::Hook(_) => false,
            _ => true,
        });
        let usual = path_of(self.interface.as_str());
        self.file = self.file.filter(|file| *file == usual);
        self
    }

    /// Writes it, whole or not at all.
    fn write_file(&self, path: &Path) -> Result<(), HostError> {
        let text = serde_json::to_vec(self).map_err(|error| refused("write", path, error.into()))?;
        if text.len() as u64 > MAX_RECORD_BYTES {
            let error =
                format!("it would have {} bytes, and {MAX_RECORD_BYTES} are read at most", text.len());
            return Err(refused("write", path, io::Error::other(error)));
        }
        platform::put_private(path, &text).map_err(|error| refused("write", path, error))
    }

    /// Adds the rules of a plan to the recorded steps: other interfaces cannot choose their priorities from
    /// now on, although the rules are added later.
    pub(super) fn reserve_rules_of(&mut self, plan: &Plan) {
        let rules: Vec<Step> = plan.steps.iter().filter(|step| step.as_rule().is_some()).cloned().collect();
        self.steps.extend(rules.into_iter().filter(|rule| !self.steps.contains(rule)).collect::<Vec<_>>());
    }
}

/// Returns the path of an interface's record.
pub fn record_path(directory: &Path, interface: &InterfaceName) -> PathBuf {
    runtime_dir::instance(directory, interface).join("record.json")
}

/// The right to run an interface, and to write its record.
#[derive(Debug)]
pub struct Owner {
    directory: PathBuf,
    interface: InterfaceName,
    lock: Mutex<File>,
    /// Dropped after the lock is closed: on some file systems of Windows a file is there until then.
    _instance: Instance,
}

/// Locks a file.
fn lock_within(file: &File, patience: Duration) -> Result<(), TryLockError> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => std::thread::sleep(TICK),
            locked => return locked,
        }
    }
}

/// The directory of an interface, which is removed when it is dropped.
#[derive(Debug)]
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        runtime_dir::leave(&self.0);
    }
}

impl Owner {
    /// Claims the interface. Waits for a process that takes it down.
    ///
    /// # Errors
    /// [`HostError::Running`] if a daemon runs the interface, [`HostError::Ending`] if one takes too long to
    /// take it down, and [`HostError::Locked`] if another process keeps its lock.
    pub fn claim(directory: &Path, interface: &InterfaceName) -> Result<Self, HostError> {
        Self::claim_within(directory, interface, PATIENCE)
    }

    fn claim_within(
        directory: &Path,
        interface: &InterfaceName,
        patience: Duration,
    ) -> Result<Self, HostError> {
        let instance = runtime_dir::instance(directory, interface);
        let path = lock_path(directory, interface);
        let start = Instant::now();
        let mut wait = WaitForHolder::default();
        loop {
            runtime_dir::make(&instance).map_err(|error| refused("create", &instance, error))?;
            let opened = open_untrusted(&path, Access::Create, MAX_LOCK_BYTES);
            match opened
                .map_err(|error| untrusted("open", error))?
                .map(|lock| (platform::try_lock(&lock), lock))
            {
                // The previous owner may have removed the file meanwhile, and another process may have
                // created a new file.
                Some((Ok(()), lock)) if platform::is_same_file(&lock, &path) => {
                    if platform::other_owner(&lock).is_none() {
                        let owner = Self {
                            directory: directory.to_owned(),
                            interface: interface.clone(),
                            lock: lock.into(),
                            _instance: Instance(instance),
                        };
                        let cleared = owner.lock().set_len(0);
                        let signed = cleared.and_then(|()| owner.sign(false));
                        signed.map_err(|error| refused("write", &path, error))?;
                        return Ok(owner);
                    }
                    // The user that owns the file could write the id of another process to it.
                    std::fs::remove_file(&path).map_err(|error| refused("remove", &path, error))?;
                }
                // The previous owner may have removed the directory too.
                Some((Ok(()), _)) | None => {}
                Some((Err(TryLockError::WouldBlock), lock)) => {
                    // A process that only checks whether the file is locked holds the lock for a moment, and
                    // does not write its id.
                    if let Some(holder) = signature_of(&lock).filter(|holder| holder.process.is_alive()) {
                        wait.on(holder, interface, &path)?;
                        std::thread::sleep(TICK);
                        continue;
                    }
                }
                Some((Err(TryLockError::Error(error)), _)) => return Err(refused("lock", &path, error)),
            }
            if start.elapsed() > patience {
                let holder = LockHolder::of(Held::Lock(&path));
                return Err(HostError::Locked { interface: interface.to_string(), lock: path, holder });
            }
            std::thread::sleep(TICK);
        }
    }

    /// Returns the process that runs an interface.
    ///
    /// # Errors
    /// The file that names the process cannot be read, or is not trusted.
    pub fn running(directory: &Path, interface: &InterfaceName) -> Result<Option<Process>, HostError> {
        let path = lock_path(directory, interface);
        let opened = open_untrusted(&path, Access::Read, MAX_LOCK_BYTES);
        let Some(lock) = opened.map_err(|error| untrusted("open", error))? else { return Ok(None) };
        let is_held = matches!(platform::try_lock_shared(&lock), Err(TryLockError::WouldBlock));
        let process = is_held.then(|| signature_of(&lock)).flatten().map(|holder| holder.process);
        // Any program can lock the file that a daemon has left.
        let process = process.filter(Process::is_alive);
        // A user must not get another user's process ended by writing its id to the file. But the service
        // manager gives the directory of an interface that runs to the user of a service.
        let owner = platform::other_owner(&lock);
        let holds_it = |id| matches!(LockHolder::of(Held::Lock(&path)), LockHolder::Process { id: holder, .. } if holder == id);
        let is_trusted =
            |process: &Process| owner.is_none_or(|owner| process.is_of(owner)) || holds_it(process.id);
        Ok(process.filter(is_trusted))
    }

    /// Reports whether this process has noted that it takes the interface down.
    pub(super) fn is_marked(directory: &Path, interface: &InterfaceName, process: u32) -> bool {
        let lock = open_untrusted(&lock_path(directory, interface), Access::Read, MAX_LOCK_BYTES);
        let holder = lock.ok().flatten().and_then(|lock| signature_of(&lock));
        holder.is_some_and(|holder| holder.is_ending && holder.process.id == process)
    }

    /// Returns the runtime directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the record of the daemon that ran the interface before, if it left a record.
    pub fn left_behind(&self) -> Result<Option<Record>, HostError> {
        apart::make_room(&self.directory, &self.interface)?;
        Record::read(&self.directory, &self.interface)
    }

    /// Keeps a record that cannot be understood under another name. Returns its path.
    pub(super) fn put_aside(&self) -> Result<PathBuf, HostError> {
        let path = record_path(&self.directory, &self.interface);
        let aside = path.with_extension("json.unread");
        std::fs::rename(&path, &aside).map_err(|error| refused("rename", &path, error))?;
        Ok(aside)
    }

    /// Notes that the interface is being taken down: a start waits from now on.
    pub fn note_end(&self) {
        if let Err(error) = self.sign(true) {
            tracing::debug!(%error, "a start does not know that this process is ending");
        }
    }

    /// Writes the record, whole or not at all.
    pub fn write(&self, record: &Record) -> Result<(), HostError> {
        let path = record_path(&self.directory, &self.interface);
        if self.is_replaced() {
            return Err(replaced("write", &path));
        }
        record.write_file(&path)
    }

    /// Removes the record: nothing is left to undo.
    pub fn forget(&self) -> Result<(), HostError> {
        if self.is_replaced() {
            return Ok(());
        }
        let path = record_path(&self.directory, &self.interface);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refused("remove", &path, error)),
            _ => Ok(()),
        }
    }

    fn sign(&self, is_ending: bool) -> io::Result<()> {
        let Process { id, started } = Process::this();
        let mark = if is_ending { format!(" {ENDING}") } else { String::new() };
        let mut lock = self.lock();
        lock.rewind()?;
        // One write: a reader sees all of it or nothing.
        lock.write_all(format!("{id} {started}{mark}\n").as_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // The file is still locked: a process that opened it before finds that it is no longer the file of
        // this name.
        let path = lock_path(&self.directory, &self.interface);
        if platform::is_same_file(&self.lock(), &path) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What the file of a lock says of the process that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    process: Process,
    /// Whether it has noted that it takes the interface down.
    is_ending: bool,
}

/// How long a claim waits for the process that holds the lock.
#[derive(Debug, Default)]
struct WaitForHolder {
    /// The process that was seen to run the interface, and since when.
    running: Option<(Process, Instant)>,
    /// The process that was seen to end, and since when it has been waited for one. It stays so: between
    /// the end of its packet threads and its note, its device is gone and no queue shows that.
    ending: Option<(Process, Instant)>,
}

impl WaitForHolder {
    /// Looks at the process that holds the lock now.
    ///
    /// # Errors
    /// It runs the interface, or has been ending for too long.
    fn on(&mut self, holder: Holder, interface: &InterfaceName, lock: &Path) -> Result<(), HostError> {
        let Holder { process, is_ending } = holder;
        let was_ending = self.ending.is_some_and(|(same, _)| same == process);
        if is_ending || was_ending || platform::has_lost_its_device(process.id) {
            self.running = None;
            let (seen, since) = self.ending.get_or_insert_with(|| {
                tracing::info!(%interface, pid = process.id, "waiting for the process that takes it down");
                (process, Instant::now())
            });
            *seen = process;
            if since.elapsed() < PATIENCE_WITH_ENDING {
                return Ok(());
            }
            let (interface, lock) = (interface.to_string(), lock.to_owned());
            let seconds = PATIENCE_WITH_ENDING.as_secs();
            return Err(HostError::Ending { interface, pid: process.id, seconds, lock });
        }
        match self.running {
            Some((same, since)) if same == process && since.elapsed() >= NOTICE => {
                Err(running(interface, process))
            }
            Some((same, _)) if same == process => Ok(()),
            _ => {
                self.running = Some((process, Instant::now()));
                Ok(())
            }
        }
    }
}

/// Refuses an interface of another network namespace, by the process that runs it. A process may have moved
/// its device to this namespace; then there is one of that name.
///
/// # Errors
/// [`HostError::Elsewhere`]
pub fn refuse_elsewhere(interface: &InterfaceName, process: Option<u32>) -> Result<(), HostError> {
    match process.filter(|process| netns::is_elsewhere(*process)) {
        Some(pid) if !netns::has_device(interface.as_str()) => Err(elsewhere(interface, pid)),
        _ => Ok(()),
    }
}

fn elsewhere(interface: &InterfaceName, pid: u32) -> HostError {
    HostError::Elsewhere { interface: interface.to_string(), pid }
}

fn running(interface: &InterfaceName, process: Process) -> HostError {
    if process.is_elsewhere() {
        return elsewhere(interface, process.id);
    }
    HostError::Running { interface: interface.to_string(), pid: process.id }
}

fn lock_path(directory: &Path, interface: &InterfaceName) -> PathBuf {
    runtime_dir::instance(directory, interface).join("lock")
}

fn signature_of(mut lock: &File) -> Option<Holder> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.take(MAX_LOCK_BYTES).read_to_string(&mut text).ok()?;
    let mut words = text.strip_suffix('\n')?.split(' ');
    let process = Process { id: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? };
    Some(Holder { process, is_ending: words.next() == Some(ENDING) })
}

/// Converts an error. For an error of the system, the advice is about the directory; other errors have their
/// own advice.
fn untrusted(action: &'static str, error: UntrustedError) -> HostError {
    match error {
        UntrustedError::Io { path, error } => refused(action, &path, error),
        error => HostError::Untrusted(error),
    }
}

fn refused(action: &'static str, path: &Path, error: io::Error) -> HostError {
    let advice = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room there, or name another directory in WEFT_RUNTIME_DIR"
        }
        io::ErrorKind::ReadOnlyFilesystem => "name a directory that can be written to in WEFT_RUNTIME_DIR",
        _ => "run weft as root, or as the user who runs the interface",
    };
    HostError::State { action, file: path.to_owned(), error, advice }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
