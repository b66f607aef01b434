//! The claim of a private key. Two interfaces with the same key would take the session with the peers from
//! each other, so one process of this user at a time has it, from before its interface can be asked: commands
//! that start in the same moment see nothing of each other but this lock.

use std::fs::{File, TryLockError, remove_file, symlink_metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_config::InterfaceName;
use weft_ipc::runtime_dir::{self, Access, UntrustedError, open_untrusted};
use weft_tunnel::PublicKey;

/// In the runtime directory of the user. No interface has so long a name.
const DIRECTORY: &str = "keys-of-interfaces";
/// More than the id of the process and the name of its interface, which the file has.
const MAX_BYTES: u64 = 64;
/// How often the lock is tried while another process has it, or removes the file as it ends.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// The right to run an interface with a key, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct KeyClaim {
    path: PathBuf,
    lock: File,
}

/// Why a key is not claimed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// Another process has the key: this one, for the interface of this name, unless it has only begun.
    #[error("{} has the key", holder(.0.as_ref()))]
    Taken(Option<(u32, InterfaceName)>),
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    #[error("{path}: {error}", path = .path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl KeyClaim {
    /// Claims a key in the runtime directory of this user. Waits a moment for a process that is ending.
    pub(super) fn new(directory: &Path, key: &PublicKey, name: &InterfaceName) -> Result<Self, ClaimError> {
        let instance = directory.join(DIRECTORY);
        let file: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let path = instance.join(file);
        let failed = |error| ClaimError::Io { path: path.clone(), error };
        let mut holder = None;
        for _ in 0..TRIES {
            match runtime_dir::make(&instance) {
                // The one above was removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                made => made.map_err(failed)?,
            }
            let Some(mut lock) = open_untrusted(&path, Access::Create, MAX_BYTES)? else { continue };
            match lock.try_lock() {
                Ok(()) if is_at(&lock, &path) => {
                    let signature = format!("{} {name}", std::process::id());
                    let signed = lock.set_len(0).and_then(|()| lock.write_all(signature.as_bytes()));
                    signed.map_err(failed)?;
                    return Ok(Self { path, lock });
                }
                // The process that had it has removed the file, and another one may have made one.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => holder = Some(signature_of(&mut lock)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            std::thread::sleep(PAUSE);
        }
        let vanishes = || failed(io::Error::other("other processes make and remove it again and again"));
        Err(holder.map_or_else(vanishes, ClaimError::Taken))
    }
}

fn holder(signature: Option<&(u32, InterfaceName)>) -> String {
    signature.map_or_else(
        || "another interface".to_owned(),
        |(process, name)| format!("interface {name} (process {process})"),
    )
}

fn signature_of(lock: &mut File) -> Option<(u32, InterfaceName)> {
    let mut signature = String::new();
    lock.read_to_string(&mut signature).ok()?;
    let (process, name) = signature.split_once(' ')?;
    Some((process.parse().ok()?, name.parse().ok()?))
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        if is_at(&self.lock, &self.path) {
            let _ = remove_file(&self.path);
        }
        self.path.parent().into_iter().for_each(runtime_dir::leave);
    }
}

/// Reports whether the path leads to the open file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use weft_tunnel::PrivateKey;

    use super::*;

    #[test]
    fn a_key_is_claimed_once_until_its_process_is_gone() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("weft");
        let [key, other] = [(); 2].map(|()| PrivateKey::generate().unwrap().public_key());
        let claim = |key: &PublicKey, name: &str| KeyClaim::new(&directory, key, &name.parse().unwrap());
        let first = claim(&key, "office").unwrap();
        let refused = claim(&key, "home").unwrap_err();
        let ClaimError::Taken(Some((process, name))) = refused else { panic!("{refused:?}") };
        assert_eq!((process, name.as_str()), (std::process::id(), "office"));
        drop(claim(&other, "home").unwrap());
        // A process that was killed leaves its file, with a longer name.
        let path = first.path.clone();
        drop(first);
        assert!(!path.exists() && !directory.join(DIRECTORY).exists());
        runtime_dir::make(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "1 the-longest-one").unwrap();
        let _after = claim(&key, "home").unwrap();
        let refused = claim(&key, "office");
        assert!(matches!(refused, Err(ClaimError::Taken(Some((_, name)))) if name.as_str() == "home"));
    }
}
