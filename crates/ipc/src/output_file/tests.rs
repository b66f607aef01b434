use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// Another user.
const STRANGER: u32 = 54_321;

/// A directory with this mode and owner, and a file of this user that nothing may reach.
struct Place {
    directory: tempfile::TempDir,
    mine: PathBuf,
}

impl Place {
    fn new(mode: u32, owner: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        chown(&place, Some(owner), None).unwrap();
        let mine = directory.path().join("mine");
        fs::write(&mine, "precious").unwrap();
        Self { directory, mine }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("place/out")
    }
}

#[test]
fn what_another_user_left_in_a_directory_of_others_is_no_trap() {
    if chown(tempfile::tempdir().unwrap().path(), Some(STRANGER), None).is_err() {
        #[cfg(target_os = "linux")]
        weft_lab::here::not_run("files of others need root");
        return;
    }
    type Entry = fn(&Place);
    let entries: [(&str, Entry, &str); 6] = [
        ("a link", |place| symlink(&place.mine, place.path()).unwrap(), "a symbolic link of user"),
        (
            "a link to nothing",
            |place| symlink("/nonexistent/x", place.path()).unwrap(),
            "a symbolic link of user",
        ),
        ("a hard link", |place| fs::hard_link(&place.mine, place.path()).unwrap(), "2 names"),
        ("a file", |place| fs::write(place.path(), "old").unwrap(), "a file of user"),
        ("a FIFO", |place| mkfifo(&place.path(), Mode::S_IRWXU).unwrap(), "a file of user"),
        ("a directory", |place| fs::create_dir(place.path()).unwrap(), "a file of user"),
    ];
    for (mode, owner) in [(0o1777, 0), (0o755, STRANGER), (0o777, STRANGER)] {
        for (what, make, told) in entries {
            let place = Place::new(mode, owner);
            if what == "a FIFO" && owner == STRANGER {
                // As a file. Opening it waits for a reader.
                continue;
            }
            make(&place);
            // A user cannot make a file of root its own, and in most systems not link to it.
            if what != "a hard link" {
                std::os::unix::fs::lchown(place.path(), Some(STRANGER), None).unwrap();
            }
            let result = create(&place.path(), 0o600).map(drop).map_err(|error| error.to_string());
            // In a directory of that user a file is as good as any.
            match what {
                "a file" if owner == STRANGER => assert_eq!(result, Ok(()), "{what}, {mode:o}"),
                "a directory" if owner == STRANGER => {
                    assert!(result.unwrap_err().contains("no regular file"), "{what}, {mode:o}");
                }
                _ => assert!(
                    result.as_ref().is_err_and(|error| error.contains(told)),
                    "{what}, {mode:o}: {result:?}"
                ),
            }
            assert_eq!(fs::read_to_string(&place.mine).unwrap(), "precious", "{what}, {mode:o}");
        }
    }
}

#[test]
fn own_files_are_written_from_their_start_with_their_mode() {
    for mode in [0o700, 0o1777] {
        let place = Place::new(mode, geteuid().as_raw());
        for text in ["a long text", "short"] {
            create(&place.path(), 0o600).unwrap().write_all(text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(place.path()).unwrap(), text);
        }
        assert_eq!(fs::metadata(place.path()).unwrap().mode() & 0o777, 0o600);
        let link = place.path().with_file_name("link");
        symlink(place.path(), &link).unwrap();
        create(&link, 0o600).unwrap().write_all(b"by a link").unwrap();
        assert_eq!(fs::read_to_string(place.path()).unwrap(), "by a link");
    }
}
