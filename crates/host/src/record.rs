//! What was done for an interface, on disk: so that it can be taken back when the daemon is gone.
//!
//! `NAME/record.json` lists the steps, and is written before the first of them; `NAME/lock` is locked for as
//! long as a daemon runs the interface, and names its process. A lock goes with its process, however that
//! ended.
//!
//! The directory `NAME` may be that of another user, for whom a service runs: what this process reads there
//! is checked before it is believed ([`runtime_dir`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weft_config::{Hook, InterfaceName, path_of};

use super::HostError;
use super::plan::{Plan, SRC_VALID_MARK};
use super::platform::{self, Process};
use super::step::Step;
use crate::dns;
use crate::routes::Rule;
use crate::runtime_dir::{self, Access, UntrustedError, open_untrusted, read_untrusted};

const VERSION: u32 = 1;
/// The record of 50,000 peers, each with two routes and an endpoint by name of some 70 bytes each, has 10 MB;
/// during a reload it may have twice as many routes. A larger one is not written either.
const MAX_RECORD_BYTES: u64 = 32 << 20;
/// Two numbers of 20 digits at most.
const MAX_LOCK_BYTES: u64 = 64;
/// Choosing a mark and writing it down takes no time; a command of the configuration never runs meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(20);

/// What was, or may have been, done for an interface. There is no secret in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of this format.
    pub version: u32,
    /// The interface.
    pub interface: InterfaceName,
    /// The file of its configuration.
    pub file: Option<PathBuf>,
    /// The system's number for the device, once it was made.
    pub index: Option<u32>,
    /// The mark of its packets; 0: none.
    pub mark: u32,
    /// The steps in their order; the last ones may not have been done.
    pub steps: Vec<Step>,
    /// What takes the name servers back.
    pub dns: Option<dns::Record>,
    /// The commands of PreDown and PostDown.
    pub down: Vec<Hook>,
    /// Where endpoints were that are names in the configuration, as `host:port`: behind a kill switch that outlives a
    /// crash nobody can ask for them.
    #[serde(default)]
    pub endpoints: BTreeMap<String, SocketAddr>,
    /// The commands of PreUp and PostUp that have run.
    #[serde(default)]
    pub ran: Vec<Hook>,
    /// The run of the service (`INVOCATION_ID`) that left all this as it is, for the next one to take over.
    #[serde(default)]
    pub handed_over: Option<String>,
}

impl Record {
    /// A record of nothing.
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
            ran: Vec::new(),
            handed_over: None,
        }
    }

    /// What stays on record when nothing is left of all this but a kill switch: what a start behind it needs, and its
    /// mark, which nobody else may have.
    #[must_use]
    pub(super) fn of_kill_switch(&self, step: Step) -> Self {
        Self {
            mark: self.mark,
            steps: vec![step],
            endpoints: self.endpoints.clone(),
            ..Self::new(&self.interface)
        }
    }

    /// The record of an interface in a directory, if there is one.
    pub fn read(directory: &Path, interface: &InterfaceName) -> Result<Option<Self>, HostError> {
        let believed =
            |(record, is_others): (Self, bool)| if is_others { record.of_another_user() } else { record };
        Ok(Self::look(directory, interface)?.map(believed))
    }

    /// The record as it stands there, and whether it is another user's.
    fn look(directory: &Path, interface: &InterfaceName) -> Result<Option<(Self, bool)>, HostError> {
        let file = record_path(directory, interface);
        let advice =
            "see what it holds; if it is of no use, remove it, and the routes, rules and tables by hand";
        let failed = |error| HostError::State { action: "read", file: file.clone(), error, advice };
        let Some((text, opened)) =
            read_untrusted(&file, MAX_RECORD_BYTES).map_err(|error| untrusted("read", error))?
        else {
            return Ok(None);
        };
        let record: Self = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        if record.version != VERSION {
            return Err(failed(io::Error::other(format!("it is of version {}", record.version))));
        }
        if record.interface != *interface {
            return Err(failed(io::Error::other(format!("it is the record of {}", record.interface))));
        }
        Ok(Some((record, platform::other_owner(&opened).is_some())))
    }

    /// What may be believed of a record that another user could write, as the one that a service runs as: what concerns
    /// the interface. What this process may do and that user may not (commands, other files) is left out.
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

    /// The marks that other interfaces have in this directory.
    pub(super) fn marks_of_others(directory: &Path, interface: &InterfaceName) -> BTreeSet<u32> {
        Self::of_others(directory, interface).map(|record| record.mark).filter(|mark| *mark != 0).collect()
    }

    /// The rules of policy routing that other interfaces have in this directory, or are about to make.
    pub(super) fn rules_of_others(directory: &Path, interface: &InterfaceName) -> Vec<Rule> {
        let rules_of = |record: Self| record.steps.into_iter().filter_map(|step| step.as_rule().copied());
        Self::of_others(directory, interface).flat_map(rules_of).collect()
    }

    /// One at a time: each may be large. What is no record of another interface takes nothing from this one.
    fn of_others(directory: &Path, interface: &InterfaceName) -> impl Iterator<Item = Self> {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(move |entry| {
            let name = entry.ok()?.file_name().to_str()?.parse().ok().filter(|name| name != interface)?;
            let looked = Self::look(directory, &name);
            looked.inspect_err(|error| tracing::debug!("{error}")).ok()?.map(|(record, _)| record)
        })
    }

    /// Adds the rules that a plan has to the steps: nobody else may choose their places from now on, although they are
    /// made later.
    pub(super) fn reserve_rules_of(&mut self, plan: &Plan) {
        let rules: Vec<Step> = plan.steps.iter().filter(|step| step.as_rule().is_some()).cloned().collect();
        self.steps.extend(rules.into_iter().filter(|rule| !self.steps.contains(rule)).collect::<Vec<_>>());
    }
}

/// Where the record of an interface is.
pub fn record_path(directory: &Path, interface: &InterfaceName) -> PathBuf {
    runtime_dir::instance(directory, interface).join("record.json")
}

/// The right to run an interface, and to write its record.
#[derive(Debug)]
pub struct Owner {
    directory: PathBuf,
    interface: InterfaceName,
    lock: File,
}

impl Owner {
    /// Takes the interface over; an error if a daemon runs it.
    pub fn claim(directory: &Path, interface: &InterfaceName) -> Result<Self, HostError> {
        let instance = runtime_dir::instance(directory, interface);
        let path = lock_path(directory, interface);
        let start = Instant::now();
        loop {
            runtime_dir::make(&instance).map_err(|error| refused("create", &instance, error))?;
            let opened = open_untrusted(&path, Access::Create, MAX_LOCK_BYTES);
            match opened.map_err(|error| untrusted("open", error))?.map(|lock| (lock.try_lock(), lock)) {
                // The one before may have removed the file meanwhile, which somebody else has made anew.
                Some((Ok(()), lock)) if platform::is_same_file(&lock, &path) => {
                    if platform::other_owner(&lock).is_none() {
                        let mut owner =
                            Self { directory: directory.to_owned(), interface: interface.clone(), lock };
                        owner.sign().map_err(|error| refused("write", &path, error))?;
                        return Ok(owner);
                    }
                    // That user could sign for another process.
                    std::fs::remove_file(&path).map_err(|error| refused("remove", &path, error))?;
                }
                // The one before may have removed the directory, too.
                Some((Ok(()), _)) | None => {}
                Some((Err(TryLockError::WouldBlock), lock)) => {
                    // Who looks whether it is locked holds it for a moment, and signs nothing.
                    if let Some(process) = signature_of(&lock).filter(Process::is_alive) {
                        return Err(HostError::Running { interface: interface.to_string(), pid: process.id });
                    }
                }
                Some((Err(TryLockError::Error(error)), _)) => return Err(refused("lock", &path, error)),
            }
            if start.elapsed() > PATIENCE {
                return Err(refused("lock", &path, io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(TICK);
        }
    }

    /// The process that runs an interface.
    ///
    /// # Errors
    /// When the file that names it cannot be read, or may not be believed.
    pub fn running(directory: &Path, interface: &InterfaceName) -> Result<Option<Process>, HostError> {
        let path = lock_path(directory, interface);
        let opened = open_untrusted(&path, Access::Read, MAX_LOCK_BYTES);
        let Some(lock) = opened.map_err(|error| untrusted("open", error))? else { return Ok(None) };
        let is_held = matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
        let process = is_held.then(|| signature_of(&lock)).flatten();
        // No user has another one's process ended by writing its number down.
        let owner = platform::other_owner(&lock);
        Ok(process.filter(|process| owner.is_none_or(|owner| process.is_of(owner))))
    }

    /// Keeps others from choosing a mark and the places of rules until the answer is dropped. Every user who may look
    /// into the directory can lock it: one that does not give it up delays a start, and does not prevent it.
    pub(super) fn choose_alone(&self) -> Result<File, HostError> {
        let path = &self.directory;
        let lock = runtime_dir::lock(path).map_err(|error| refused("open", path, error))?;
        let start = Instant::now();
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::WouldBlock if start.elapsed() < PATIENCE => std::thread::sleep(TICK),
                TryLockError::WouldBlock => {
                    tracing::warn!(
                        "another process keeps {} locked (see `lsof {0}`): another interface that starts at this moment \
                         may choose the same mark",
                        path.display()
                    );
                    break;
                }
                TryLockError::Error(error) => return Err(refused("lock", path, error)),
            }
        }
        Ok(lock)
    }

    /// The directory of the record.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The record of the daemon that had the interface before, if it left one.
    pub fn left_behind(&self) -> Result<Option<Record>, HostError> {
        Record::read(&self.directory, &self.interface)
    }

    /// Writes the record down, whole or not at all.
    pub fn write(&self, record: &Record) -> Result<(), HostError> {
        let path = record_path(&self.directory, &self.interface);
        let text = serde_json::to_vec(record).map_err(|error| refused("write", &path, error.into()))?;
        if text.len() as u64 > MAX_RECORD_BYTES {
            let error =
                format!("it would have {} bytes, and {MAX_RECORD_BYTES} are read at most", text.len());
            return Err(refused("write", &path, io::Error::other(error)));
        }
        let temporary = path.with_extension("json.new");
        let write = || {
            platform::write_private(&temporary, &text)?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|error| refused("write", &path, error))
    }

    /// Removes the record: nothing is left to take back.
    pub fn forget(&self) -> Result<(), HostError> {
        let path = record_path(&self.directory, &self.interface);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refused("remove", &path, error)),
            _ => Ok(()),
        }
    }

    fn sign(&mut self) -> io::Result<()> {
        let Process { id, started } = Process::this();
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        // One write: a reader sees all of it or nothing.
        self.lock.write_all(format!("{id} {started}\n").as_bytes())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Still locked: whoever opened it before finds that it is no longer the file of this name.
        let _ = std::fs::remove_file(lock_path(&self.directory, &self.interface));
        runtime_dir::leave(&runtime_dir::instance(&self.directory, &self.interface));
    }
}

fn lock_path(directory: &Path, interface: &InterfaceName) -> PathBuf {
    runtime_dir::instance(directory, interface).join("lock")
}

fn signature_of(mut lock: &File) -> Option<Process> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.take(64).read_to_string(&mut text).ok()?;
    let (id, started) = text.strip_suffix('\n')?.split_once(' ')?;
    Some(Process { id: id.parse().ok()?, started: started.parse().ok()? })
}

/// What the system refuses may be a matter of rights; anything else has its own advice.
fn untrusted(action: &'static str, error: UntrustedError) -> HostError {
    match error {
        UntrustedError::Io { path, error } => refused(action, &path, error),
        error => HostError::Untrusted(error),
    }
}

fn refused(action: &'static str, path: &Path, error: io::Error) -> HostError {
    const ADVICE: &str = "run weft as root, or name a directory that it may write to in WEFT_RUNTIME_DIR";
    HostError::State { action, file: path.to_owned(), error, advice: ADVICE }
}

#[cfg(test)]
#[cfg(unix)]
#[path = "record_tests.rs"]
mod tests;
