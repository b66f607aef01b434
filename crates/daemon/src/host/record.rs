//! What was done for an interface, on disk: so that it can be taken back when the daemon is gone.
//!
//! `NAME.json` lists the steps, and is written before the first of them; `NAME.lock` is locked for as long as a
//! daemon runs the interface, and names its process. A lock goes with its process, however that ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::HostError;
use super::plan::{Plan, SRC_VALID_MARK};
use super::platform::{self, Process};
use super::step::Step;
use crate::config::{Hook, InterfaceName, path_of};
use crate::dns;
use crate::routes::Rule;
use crate::runtime_dir;

const VERSION: u32 = 1;
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
        let read = || {
            let mut options = OpenOptions::new();
            platform::for_owner_only(options.read(true));
            let mut opened = options.open(&file)?;
            let mut text = Vec::new();
            opened.read_to_end(&mut text)?;
            io::Result::Ok((text, platform::other_owner(&opened).is_some()))
        };
        let (text, is_others) = match read() {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let record: Self = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        if record.version != VERSION {
            return Err(failed(io::Error::other(format!("it is of version {}", record.version))));
        }
        Ok(Some((record, is_others)))
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
        let records = Self::of_others(directory, interface);
        records.iter().map(|record| record.mark).filter(|mark| *mark != 0).collect()
    }

    /// The rules of policy routing that other interfaces have in this directory, or are about to make.
    pub(super) fn rules_of_others(directory: &Path, interface: &InterfaceName) -> Vec<Rule> {
        let records = Self::of_others(directory, interface);
        records.iter().flat_map(|record| &record.steps).filter_map(Step::as_rule).copied().collect()
    }

    fn of_others(directory: &Path, interface: &InterfaceName) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
        entries
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let name = path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()?;
                let (record, _) = Self::look(directory, &name).ok()??;
                (name != *interface).then_some(record)
            })
            .collect()
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
    directory.join(format!("{interface}.json"))
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
        runtime_dir::make(directory).map_err(|error| refused("create", directory, error))?;
        let path = lock_path(directory, interface);
        let start = Instant::now();
        loop {
            let lock = open_lock(&path).map_err(|error| refused("open", &path, error))?;
            match lock.try_lock() {
                // The one before may have removed the file meanwhile, which somebody else has made anew.
                Ok(()) if platform::is_same_file(&lock, &path) => {
                    let mut owner =
                        Self { directory: directory.to_owned(), interface: interface.clone(), lock };
                    owner.sign().map_err(|error| refused("write", &path, error))?;
                    return Ok(owner);
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    // Who looks whether it is locked holds it for a moment, and signs nothing.
                    if let Some(process) = signature_of(&lock).filter(Process::is_alive) {
                        return Err(HostError::Running { interface: interface.to_string(), pid: process.id });
                    }
                }
                Err(TryLockError::Error(error)) => return Err(refused("lock", &path, error)),
            }
            if start.elapsed() > PATIENCE {
                return Err(refused("lock", &path, io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(TICK);
        }
    }

    /// The process that runs an interface.
    pub fn running(directory: &Path, interface: &InterfaceName) -> Option<Process> {
        let path = lock_path(directory, interface);
        let lock = File::open(&path).ok()?;
        let is_held = matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
        let process = is_held.then(|| signature_of(&lock)).flatten()?;
        // Nobody has somebody else's process ended by writing its number down.
        platform::other_owner(&lock).is_none_or(|owner| process.is_of(owner)).then_some(process)
    }

    /// Keeps others from choosing a mark and the places of rules until the answer is dropped.
    pub(super) fn choose_alone(&self) -> Result<File, HostError> {
        let path = &self.directory;
        let lock = runtime_dir::open_lock(path).map_err(|error| refused("open the lock of", path, error))?;
        let start = Instant::now();
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::WouldBlock if start.elapsed() < PATIENCE => std::thread::sleep(TICK),
                TryLockError::WouldBlock => {
                    return Err(refused("lock", path, io::ErrorKind::TimedOut.into()));
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
        let temporary = self.directory.join(format!(".{}.json.new", self.interface));
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
    }
}

fn lock_path(directory: &Path, interface: &InterfaceName) -> PathBuf {
    directory.join(format!("{interface}.lock"))
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    platform::for_owner_only(&mut options);
    options.open(path)
}

fn signature_of(mut lock: &File) -> Option<Process> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.take(64).read_to_string(&mut text).ok()?;
    let (id, started) = text.strip_suffix('\n')?.split_once(' ')?;
    Some(Process { id: id.parse().ok()?, started: started.parse().ok()? })
}

fn refused(action: &'static str, path: &Path, error: io::Error) -> HostError {
    const ADVICE: &str = "run weft as root, or name a directory that it may write to in WEFT_RUNTIME_DIR";
    HostError::State { action, file: path.to_owned(), error, advice: ADVICE }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::config::Stage;

    fn name() -> InterfaceName {
        "wg0".parse().unwrap()
    }

    #[test]
    fn an_interface_has_one_owner_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Owner::running(directory.path(), &name()), None);
        let owner = Owner::claim(directory.path(), &name()).unwrap();
        assert_eq!(Owner::running(directory.path(), &name()), Some(Process::this()));
        let error = Owner::claim(directory.path(), &name()).unwrap_err();
        assert!(matches!(error, HostError::Running { pid, .. } if pid == std::process::id()), "{error}");
        drop(owner);
        assert_eq!(Owner::running(directory.path(), &name()), None);
        drop(Owner::claim(directory.path(), &name()).unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_record_comes_back_as_it_was_written_and_only_its_owner_may_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let owner = Owner::claim(directory.path(), &name()).unwrap();
        assert_eq!(owner.left_behind().unwrap(), None);
        let mut record = Record::new(&name());
        record.mark = 51_820;
        record.steps = vec![
            Step::Address("10.0.0.1/24".parse().unwrap()),
            Step::Route { prefix: "::/0".parse().unwrap(), table: 51_820 },
        ];
        owner.write(&record).unwrap();
        assert_eq!(owner.left_behind().unwrap(), Some(record));
        let path = record_path(directory.path(), &name());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            Record::marks_of_others(directory.path(), &"wg1".parse().unwrap()),
            BTreeSet::from([51_820])
        );
        assert_eq!(Record::marks_of_others(directory.path(), &name()), BTreeSet::new());
        owner.forget().unwrap();
        owner.forget().unwrap();
        assert_eq!(owner.left_behind().unwrap(), None);

        std::fs::write(&path, "{\"version\":99}").unwrap();
        let error = owner.left_behind().unwrap_err().to_string();
        assert!(error.contains("wg0.json") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn nothing_that_only_root_may_do_is_done_because_another_users_record_says_so() {
        let hook = |stage| Hook { stage, command: "true".into(), file: "wg0.conf".into(), line: 1 };
        let sysctl = |name: &str, before: &str| Step::Sysctl {
            name: name.into(),
            value: "1".into(),
            before: before.into(),
        };
        let address = Step::Address("10.0.0.1/24".parse().unwrap());
        let mut record = Record::new(&name());
        record.down = vec![hook(Stage::PostDown)];
        record.file = Some("/etc/cron.d/job".into());
        record.steps = vec![
            address.clone(),
            sysctl("//.//.etc.passwd", "root::0:0:::"),
            sysctl(SRC_VALID_MARK, "root::0:0:::"),
            sysctl(SRC_VALID_MARK, "0"),
            Step::Hook(hook(Stage::PostUp)),
        ];
        let believed = record.of_another_user();
        assert_eq!((believed.down, believed.file), (vec![], None));
        assert_eq!(believed.steps, [address, sysctl(SRC_VALID_MARK, "0")]);
    }

    #[test]
    fn a_link_in_place_of_a_record_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let owner = Owner::claim(elsewhere.path(), &name()).unwrap();
        owner.write(&Record::new(&name())).unwrap();
        let record = record_path(elsewhere.path(), &name());
        std::os::unix::fs::symlink(record, record_path(directory.path(), &name())).unwrap();
        assert!(matches!(Record::read(directory.path(), &name()), Err(HostError::State { .. })));
    }

    #[test]
    fn a_link_in_place_of_a_lock_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let precious = directory.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, lock_path(directory.path(), &name())).unwrap();
        assert!(matches!(Owner::claim(directory.path(), &name()), Err(HostError::State { .. })));
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }
}
