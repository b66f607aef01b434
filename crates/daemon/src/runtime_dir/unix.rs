//! A directory that root and the user of the services share.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::Path;

use nix::unistd::{User, geteuid};

use super::LOCK;

/// The user that `weft@.service` runs as.
const SERVICES: &str = "weft";
const MODE: u32 = 0o755;

pub(super) fn make(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(MODE).create(parent)?;
    }
    match DirBuilder::new().mode(MODE).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(MODE)),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives a directory of root's, and the lock in it, to the user of the services, if there is one.
pub(super) fn give_to_services(path: &Path) -> io::Result<()> {
    let directory = File::open(path)?;
    if !geteuid().is_root() || directory.metadata()?.uid() != 0 {
        return Ok(());
    }
    let Some(user) = User::from_name(SERVICES)? else { return Ok(()) };
    let (uid, gid) = (Some(user.uid.as_raw()), Some(user.gid.as_raw()));
    // The lock first: in a directory that is that user's, it could be any other file by now.
    fchown(options().create(true).open(path.join(LOCK))?, uid, gid)?;
    fchown(&directory, uid, gid)
}

/// The lock of the directory, which is made if it is missing: for root and the directory's owner alone, whichever is first.
pub(crate) fn open_lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    let owner = fs::metadata(directory)?;
    if owner.uid() == geteuid().as_raw() {
        return options().create(true).open(path);
    }
    match options().open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    // It has another name until it is the owner's, who would be refused what is root's.
    let unfinished = directory.join(format!("{LOCK}.{}", std::process::id()));
    let lock = options().create_new(true).open(&unfinished)?;
    // Where it cannot be given away it stays ours, and where the name is taken by now the owner was quicker.
    let _given = fchown(&lock, Some(owner.uid()), Some(owner.gid()));
    let _put = fs::hard_link(&unfinished, &path);
    fs::remove_file(&unfinished)?;
    options().create(true).open(path)
}

/// A file for its owner alone. A link is not followed: the directory may be another user's.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_once_for_everybody_to_look_into() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run/weft");
        for _ in 0..2 {
            make(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700, "what is there is somebody's choice");
        fs::write(place.path().join("file"), "").unwrap();
        make(&place.path().join("file")).unwrap_err();
    }

    #[test]
    fn the_lock_that_root_makes_is_the_owners_of_the_directory() {
        let place = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(place.path(), Some(1), Some(1)).is_err() {
            crate::lab::not_run("the_lock_that_root_makes_is_the_owners_of_the_directory", "needs root");
            return;
        }
        for _ in 0..2 {
            let lock = open_lock(place.path()).unwrap();
            lock.try_lock().unwrap();
            let metadata = fs::symlink_metadata(place.path().join(LOCK)).unwrap();
            assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (1, 1, 0o600));
            assert_eq!(metadata.ino(), lock.metadata().unwrap().ino());
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("elsewhere", place.path().join(LOCK)).unwrap();
        open_lock(place.path()).unwrap_err();
        assert!(!place.path().join("elsewhere").exists());
    }
}
