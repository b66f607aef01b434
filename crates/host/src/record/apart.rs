//! The record of an interface whose name is used in another network namespace too.
//!
//! The namespaces of `ip netns` have /run in common. What a daemon left in one of them when it crashed does
//! not concern the others, and is undone from there. As soon as another namespace needs the place of its
//! record, it stands in `NAME/netns-ID/record.json`.

use std::fs::{self, DirBuilder, File};
use std::io;
#[cfg(unix)]
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use weft_config::InterfaceName;
use weft_ipc::runtime_dir;

use super::{Owner, PATIENCE, Record, lock_within, record_path, refused};
use crate::HostError;
use crate::netns::NetworkNamespace;

impl Record {
    /// Removes the record of another network namespace that is gone, and returns whether there was one.
    ///
    /// # Errors
    /// It cannot be read or removed, or a process runs an interface of this name.
    pub fn forget_if_gone(directory: &Path, interface: &InterfaceName) -> Result<bool, HostError> {
        if !Self::is_of_another_namespace(directory, interface) {
            return Ok(false);
        }
        let _owner = Owner::claim(directory, interface)?;
        let place = record_path(directory, interface);
        let found = Self::read_file(&place, interface)?.map(|(record, _)| record);
        match found.filter(Self::is_elsewhere).and_then(|record| record.network) {
            Some(theirs) if !theirs.exists() => {
                forget_gone(&place, interface)?;
                remove_dead_socket(interface);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Reports whether it was made in another network namespace than that of this thread.
    pub(super) fn is_elsewhere(&self) -> bool {
        let ours = NetworkNamespace::ours();
        self.network.as_ref().zip(ours).is_some_and(|(theirs, ours)| theirs.is_another_than(&ours))
    }
}

/// The record of this network namespace, while another one uses the name of its interface.
#[derive(Debug)]
pub(crate) struct Apart {
    path: PathBuf,
    interface: InterfaceName,
    /// Its directory, which is locked.
    _lock: File,
}

impl Apart {
    /// Opens the record; `None` if there is none.
    pub(crate) fn open(directory: &Path, interface: &InterfaceName) -> Result<Option<Self>, HostError> {
        let Some(path) = path_of_ours(directory, interface) else { return Ok(None) };
        let aside = path.parent().unwrap_or(directory);
        let lock = runtime_dir::lock(aside).map_err(|error| refused("open", aside, error))?;
        lock_within(&lock, PATIENCE).map_err(|error| refused("lock", aside, error.into()))?;
        Ok(Some(Self { path, interface: interface.clone(), _lock: lock }))
    }

    /// Reads it. Another process may have removed it meanwhile.
    pub(crate) fn read(&self) -> Result<Option<Record>, HostError> {
        Ok(Record::read_file(&self.path, &self.interface)?.map(Record::believed))
    }

    /// Replaces it, or removes it.
    pub(crate) fn write(&self, record: Option<&Record>) -> Result<(), HostError> {
        let Some(record) = record else {
            fs::remove_file(&self.path).map_err(|error| refused("remove", &self.path, error))?;
            forget_directory(&self.path);
            return Ok(());
        };
        record.write_file(&self.path)
    }
}

/// What tells whom a record concerns that is not understood otherwise.
#[derive(Deserialize)]
struct InNetwork {
    network: Option<NetworkNamespace>,
}

/// Returns the network namespace that a record names.
pub(super) fn network_of(text: &[u8]) -> Option<NetworkNamespace> {
    serde_json::from_slice(text).ok().and_then(|InNetwork { network }| network)
}

/// Returns the place of this network namespace's record, if it stands apart.
pub(super) fn path_of_ours(directory: &Path, interface: &InterfaceName) -> Option<PathBuf> {
    let path = path_of(directory, interface, &NetworkNamespace::ours()?);
    (path.parent().is_some_and(is_directory) && path.exists()).then_some(path)
}

fn path_of(directory: &Path, interface: &InterfaceName, network: &NetworkNamespace) -> PathBuf {
    runtime_dir::instance(directory, interface).join(format!("netns-{}", network.id())).join("record.json")
}

/// Puts the record of another network namespace aside, and that of this one, which was put aside, in its
/// place. The caller has claimed the interface.
pub(super) fn make_room(directory: &Path, interface: &InterfaceName) -> Result<(), HostError> {
    let place = record_path(directory, interface);
    if let Some((record, _)) = Record::read_file(&place, interface)? {
        let Some(theirs) = record.network.as_ref().filter(|_| record.is_elsewhere()) else { return Ok(()) };
        if theirs.exists() {
            tracing::info!(
                %interface,
                "what a daemon left in another network namespace stays: `weft down {interface}` there takes it back"
            );
            let aside = path_of(directory, interface, theirs);
            let made = aside.parent().map_or(Ok(()), make_directory);
            made.and_then(|()| fs::rename(&place, &aside))
                .map_err(|error| refused("write", &aside, error))?;
        } else {
            forget_gone(&place, interface)?;
        }
    }
    let Some(ours) = path_of_ours(directory, interface) else { return Ok(()) };
    fs::rename(&ours, &place).map_err(|error| refused("write", &place, error))?;
    forget_directory(&ours);
    Ok(())
}

fn forget_gone(place: &Path, interface: &InterfaceName) -> Result<(), HostError> {
    tracing::info!(%interface, "what a daemon left in another network namespace is gone with that");
    fs::remove_file(place).map_err(|error| refused("remove", place, error))
}

/// Removes the control socket of a daemon that has ended.
pub(crate) fn remove_dead_socket(interface: &InterfaceName) {
    #[cfg(unix)]
    if let Err(error) =
        weft_ipc::listener::remove_dead(&runtime_dir::control_socket(&runtime_dir::runtime_dir(), interface))
    {
        tracing::debug!("the control socket stays: {error}");
    }
    #[cfg(not(unix))]
    let _ = interface;
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    builder.mode(0o700);
    builder.recursive(true).create(path)?;
    if is_directory(path) { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Reports whether it is a directory itself: a service's user may have put a link there.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|entry| entry.is_dir())
}

fn forget_directory(record: &Path) {
    // On a failure an empty directory is left.
    let _ = record.parent().map(fs::remove_dir);
}
