//! A record and a lock that another program has removed while the interface is up.

use std::fs::File;
use std::io;
use std::path::Path;

use weft_ipc::runtime_dir::{self, Access, open_untrusted};

use super::{MAX_LOCK_BYTES, Owner, lock_path, record_path, refused, untrusted};
use crate::platform;
use crate::{Host, HostError};

impl Host {
    /// Makes the record and the lock again if another program has removed them. Returns whether it had.
    ///
    /// # Errors
    /// Another process has claimed the interface meanwhile, or the system refuses.
    pub fn keep_record(&mut self) -> Result<bool, HostError> {
        let Some(owner) = &self.owner else { return Ok(false) };
        let is_missing = !record_path(owner.directory(), &self.plan.interface).exists();
        let is_made = owner.claim_again()? || is_missing;
        if is_made {
            self.write()?;
        }
        Ok(is_made)
    }
}

impl Owner {
    /// Makes the lock again if another program has removed it. Returns whether it had.
    ///
    /// # Errors
    /// Those of [`Host::keep_record`].
    pub fn claim_again(&self) -> Result<bool, HostError> {
        let path = lock_path(&self.directory, &self.interface);
        if self.is_replaced() {
            return Err(replaced("lock", &path));
        }
        if path.exists() {
            return Ok(false);
        }
        let instance = runtime_dir::instance(&self.directory, &self.interface);
        runtime_dir::make(&instance).map_err(|error| refused("create", &instance, error))?;
        runtime_dir::adopt(&instance)?;
        let made = open_untrusted(&path, Access::Create, MAX_LOCK_BYTES);
        let made = made.map_err(|error| untrusted("open", error))?;
        let is_ours = |lock: &File| platform::try_lock(lock).is_ok() && platform::is_same_file(lock, &path);
        *self.lock() = made.filter(is_ours).ok_or_else(|| replaced("lock", &path))?;
        self.sign(false).map_err(|error| refused("write", &path, error))?;
        Ok(true)
    }

    /// Reports whether the lock's file was removed and another process made one: record and lock are not
    /// those of this process any more.
    pub(super) fn is_replaced(&self) -> bool {
        let path = lock_path(&self.directory, &self.interface);
        path.exists() && !platform::is_same_file(&self.lock(), &path)
    }
}

/// Returns the error that the interface is another process's.
pub(super) fn replaced(action: &'static str, path: &Path) -> HostError {
    let error = "its lock was removed, and another process has claimed the interface";
    refused(action, path, io::Error::other(error))
}
