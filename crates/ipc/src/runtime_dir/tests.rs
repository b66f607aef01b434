use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::super::{adopt, make, read_untrusted};
use super::*;

const MOST: u64 = 1000;
const ANOTHER: u32 = 65_534;

/// A runtime directory with the directory of wg0.
fn instance() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let instance = directory.path().join("wg0");
    make(&instance).unwrap();
    (directory, instance)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Returns the error of reading the file, after checking that opening it fails too.
fn refused(path: &Path) -> UntrustedError {
    for access in [Access::Read, Access::Create] {
        open_untrusted(path, access, MOST).unwrap_err();
    }
    read_untrusted(path, MOST).unwrap_err()
}

/// Reports whether this process may change the owner of files. If not, notes that the test is not run.
fn may_chown(path: &Path) -> bool {
    let may = chown(path, Some(ANOTHER), None).is_ok();
    if !may {
        #[cfg(target_os = "linux")]
        weft_lab::here::not_run("needs root");
    }
    may
}

#[test]
fn the_runtime_directory_is_for_everybody_to_look_into_and_an_interfaces_is_private() {
    let place = tempfile::tempdir().unwrap();
    let (directory, instance) = (place.path().join("run/weft"), place.path().join("run/weft/wg0"));
    for _ in 0..2 {
        make(&instance).unwrap();
        assert_eq!((mode(&directory), mode(&instance)), (0o755, 0o700));
    }
    fs::set_permissions(&directory, Permissions::from_mode(0o751)).unwrap();
    make(&instance).unwrap();
    assert_eq!(mode(&directory), 0o751, "rights that were chosen stay");
    fs::write(directory.join("file"), "").unwrap();
    make(&directory.join("file")).unwrap_err();
}

#[test]
fn a_file_of_this_user_is_opened_and_made_for_its_owner_alone() {
    let (_directory, instance) = instance();
    let path = instance.join("lock");
    assert!(open_untrusted(&path, Access::Read, MOST).unwrap().is_none());
    assert!(open_untrusted(&path, Access::Create, MOST).unwrap().is_some());
    assert_eq!(mode(&path), 0o600);
    fs::write(&path, vec![b'x'; MOST as usize]).unwrap();
    assert_eq!(read_untrusted(&path, MOST).unwrap().unwrap().0.len() as u64, MOST);
    let missing = instance.with_file_name("wg1").join("lock");
    assert!(open_untrusted(&missing, Access::Create, MOST).unwrap().is_none());
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (directory, instance) = instance();
    let target = directory.path().join("precious");
    fs::write(&target, "precious").unwrap();
    mkfifo(&instance.join("fifo"), Mode::S_IRWXU).unwrap();
    symlink(&target, instance.join("link")).unwrap();
    symlink("nowhere", instance.join("dangling")).unwrap();
    fs::create_dir(instance.join("directory")).unwrap();
    let _socket = UnixListener::bind(instance.join("socket")).unwrap();
    // A call that waits for the other end of the FIFO would block forever.
    let (done, ended) = std::sync::mpsc::channel();
    let files = instance.clone();
    std::thread::spawn(move || {
        for (file, kind) in [
            ("fifo", "a FIFO"),
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("directory", "a directory"),
            ("socket", "a socket"),
        ] {
            let path = files.join(file);
            done.send((path.clone(), kind, refused(&path))).unwrap();
        }
    });
    for _ in 0..5 {
        let (path, kind, error) = ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        let told = error.to_string();
        assert!(matches!(error, UntrustedError::Kind { .. }), "{told}");
        assert!(
            told.starts_with(&format!("{} is {kind}, ", path.display())) && told.contains("remove it"),
            "{told}"
        );
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert!(!instance.join("nowhere").exists());
}

#[test]
fn a_file_that_is_too_large_is_refused_unread() {
    let (_directory, instance) = instance();
    let path = instance.join("record.json");
    // A sparse file, larger than the memory of any machine.
    File::create(&path).unwrap().set_len(1 << 43).unwrap();
    let error = refused(&path);
    assert!(matches!(error, UntrustedError::Size { bytes: 0x0800_0000_0000, most: MOST, .. }), "{error}");
    File::options().write(true).open(&path).unwrap().set_len(MOST + 1).unwrap();
    assert!(matches!(refused(&path), UntrustedError::Size { .. }));
}

#[test]
fn a_file_with_a_second_name_is_refused() {
    let (directory, instance) = instance();
    let precious = directory.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    fs::hard_link(&precious, instance.join("lock")).unwrap();
    let error = refused(&instance.join("lock"));
    assert!(matches!(error, UntrustedError::Links { links: 2, .. }), "{error}");
}

#[test]
fn a_file_is_roots_or_this_users_or_the_owners_of_the_directory() {
    let (_directory, instance) = instance();
    let path = instance.join("record.json");
    fs::write(&path, "").unwrap();
    if !may_chown(&path) {
        return;
    }
    let error = refused(&path);
    assert!(matches!(error, UntrustedError::Owner { owner: ANOTHER, .. }), "{error}");
    assert!(error.to_string().contains("belongs to user 65534, and not to root: "), "{error}");
    chown(&instance, Some(ANOTHER), None).unwrap();
    assert!(open_untrusted(&path, Access::Create, MOST).unwrap().is_some());
    chown(&path, Some(ANOTHER - 1), None).unwrap();
    let error = refused(&path);
    assert!(error.to_string().contains("and not to root or user 65534: "), "{error}");
    // From here on, a daemon of this user runs the interface.
    adopt(&instance).unwrap();
    chown(&path, Some(ANOTHER), None).unwrap();
    assert!(matches!(refused(&path), UntrustedError::Owner { .. }));
    assert_eq!(mode(&instance), 0o700);
}

#[test]
fn a_runtime_directory_that_others_may_change_decides_nothing() {
    let (directory, instance) = instance();
    let path = instance.join("lock");
    fs::write(&path, "").unwrap();
    for open in [0o775, 0o777, 0o1777] {
        fs::set_permissions(directory.path(), Permissions::from_mode(open)).unwrap();
        let error = refused(&path);
        assert!(matches!(error, UntrustedError::Directory { .. }), "{error}");
        assert!(error.to_string().contains("others may write to it; let only root"), "{error}");
    }
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(open_untrusted(&path, Access::Read, MOST).unwrap().is_some());
    symlink("wg0", directory.path().join("wg1")).unwrap();
    let error = refused(&directory.path().join("wg1/lock"));
    assert!(error.to_string().contains("has a symbolic link in place of the directory"), "{error}");
    adopt(&directory.path().join("wg1")).unwrap_err();
    if may_chown(directory.path()) {
        let error = refused(&path);
        assert!(error.to_string().contains("this directory belongs to user 65534; "), "{error}");
    }
}
