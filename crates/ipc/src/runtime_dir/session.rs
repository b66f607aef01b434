//! The runtime directory of a user whose session has no XDG_RUNTIME_DIR, as under cron, su(1) and ssh(1)
//! without systemd: in the directory that systemd has for the user, else in /tmp.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{UntrustedError, kind, user};

/// A user who is logged in has a directory here (pam_systemd(8)).
const SESSIONS: &str = "/run/user";
/// Whatever TMPDIR is: the commands of a user have to find each other.
const TEMPORARY: &str = "/tmp";
/// The permission bits of other users.
const OTHERS: u32 = 0o077;

/// Returns the runtime directory of this user. It may be missing.
///
/// # Errors
/// The one in /tmp is not a directory of this user alone: any user can make it.
pub(crate) fn of_user() -> Result<PathBuf, UntrustedError> {
    choose(Path::new(SESSIONS), Path::new(TEMPORARY))
}

fn choose(sessions: &Path, temporary: &Path) -> Result<PathBuf, UntrustedError> {
    let session = sessions.join(user().to_string());
    if fs::symlink_metadata(&session).is_ok_and(|found| reason_against(&found).is_none()) {
        return Ok(session.join("weft"));
    }
    let own = temporary.join(format!("weft-{}", user()));
    check(&own)?;
    Ok(own)
}

/// Reports whether this is the runtime directory of the user in /tmp.
pub(super) fn is_temporary(directory: &Path) -> bool {
    directory == Path::new(TEMPORARY).join(format!("weft-{}", user()))
}

/// Checks that the directory, unless it is missing, is one of this user alone.
pub(super) fn check(directory: &Path) -> Result<(), UntrustedError> {
    match fs::symlink_metadata(directory) {
        Ok(found) => match reason_against(&found) {
            Some(reason) => Err(UntrustedError::UserDirectory { path: directory.to_owned(), reason }),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(UntrustedError::io(directory)(error)),
    }
}

fn reason_against(found: &Metadata) -> Option<String> {
    match () {
        () if !found.is_dir() => Some(format!("is {}", kind(found))),
        () if found.uid() != user() => Some(format!("belongs to user {}", found.uid())),
        () if found.mode() & OTHERS != 0 => {
            Some(format!("has mode {:04o}, and not 0700", found.mode() & 0o7777))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::super::{leave, make};
    use super::*;

    /// The directory of this user in an empty place, and what [`choose`] returns for it.
    fn place() -> (tempfile::TempDir, PathBuf, impl Fn() -> Result<PathBuf, String>) {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join(format!("weft-{}", user()));
        let at = place.path().to_owned();
        let chosen = move || choose(&at.join("sessions"), &at).map_err(|error| error.to_string());
        (place, own, chosen)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_directory_of_the_session_comes_first_if_it_is_the_users_alone() {
        let (place, own, chosen) = place();
        let session = place.path().join("sessions").join(user().to_string());
        assert_eq!(chosen(), Ok(own.clone()), "no session");
        fs::create_dir_all(&session).unwrap();
        set_mode(&session, 0o755);
        assert_eq!(chosen(), Ok(own), "others may look into it");
        set_mode(&session, 0o700);
        assert_eq!(chosen(), Ok(session.join("weft")));
    }

    #[test]
    fn a_directory_that_another_user_could_have_made_is_refused() {
        let (place, own, chosen) = place();
        let refused = |reason: &str| {
            let error = chosen().unwrap_err();
            let told = format!("{}: the runtime directory {reason}; ", own.display());
            assert!(error.starts_with(&told) && error.contains("set XDG_RUNTIME_DIR"), "{error}");
        };
        let real = place.path().join("real");
        fs::create_dir(&real).unwrap();
        set_mode(&real, 0o700);
        symlink(&real, &own).unwrap();
        refused("is a symbolic link");
        fs::remove_file(&own).unwrap();
        fs::write(&own, "").unwrap();
        refused("is a regular file");
        fs::remove_file(&own).unwrap();
        fs::create_dir(&own).unwrap();
        set_mode(&own, 0o750);
        refused("has mode 0750, and not 0700");
        set_mode(&own, 0o700);
        assert_eq!(chosen(), Ok(own.clone()));
        if chown(&own, Some(65_534), None).is_ok() {
            refused("belongs to user 65534");
        }
    }

    #[test]
    fn the_directory_in_tmp_is_made_for_the_user_alone_and_goes_with_its_last_interface() {
        let own = Path::new(TEMPORARY).join(format!("weft-{}", user()));
        let instances = ["first", "second"].map(|name| own.join(format!("{name}-{}", std::process::id())));
        for instance in &instances {
            make(instance).unwrap();
            assert_eq!([&own, instance].map(|path| mode(path)), [0o700; 2]);
        }
        let [first, second] = instances;
        leave(&first);
        assert!(!first.exists() && second.exists());
        leave(&second);
        // Unless this user runs something.
        let is_used = fs::read_dir(&own).is_ok_and(|mut entries| entries.next().is_some());
        assert!(!second.exists() && (is_used || !own.exists()));
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }
}
