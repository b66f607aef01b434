use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::OutputFile;

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
            make(&place);
            // A user cannot make a file of root its own, and in most systems not link to it.
            if what != "a hard link" {
                std::os::unix::fs::lchown(place.path(), Some(STRANGER), None).unwrap();
            }
            let result = open_within(&place.path(), 0o600, Duration::ZERO);
            let result = result.map(drop).map_err(|error| error.to_string());
            // In a directory of that user a file is as good as any.
            match what {
                "a file" if owner == STRANGER => assert_eq!(result, Ok(()), "{what}, {mode:o}"),
                "a directory" | "a FIFO" if owner == STRANGER => {
                    let told = if what == "a FIFO" { "no program reads it" } else { "no regular file" };
                    assert!(result.unwrap_err().contains(told), "{what}, {mode:o}");
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
fn an_earlier_file_is_whole_until_the_new_one_is() {
    for mode in [0o700, 0o1777] {
        let place = Place::new(mode, geteuid().as_raw());
        let entries = || fs::read_dir(place.path().parent().unwrap()).unwrap().count();
        let link = place.path().with_file_name("link");
        symlink("out", &link).unwrap();
        // First there is none.
        for (path, before) in [(place.path(), None), (place.path(), Some("first")), (link, Some("second"))] {
            let content = || fs::read_to_string(place.path()).ok();
            let begin = |text: &str| {
                let mut file = OutputFile::create(&path, 0o600).unwrap();
                file.write_all(text.as_bytes()).unwrap();
                file
            };
            assert_eq!(content().as_deref(), before);
            let unfinished = begin("unfinished");
            assert_eq!(content().as_deref(), before.or(Some("unfinished")));
            drop(unfinished);
            assert_eq!((content().as_deref(), entries()), (before, 1 + usize::from(before.is_some())));
            OutputFile::create(&path, 0o600).unwrap().keep_if_new();
            assert_eq!((content().as_deref(), entries()), (before, 1 + usize::from(before.is_some())));
            begin("kept, if it is new").keep_if_new();
            assert_eq!(content().as_deref(), before.or(Some("kept, if it is new")));
            let next = before.map_or("first", |_| "second");
            begin(next).keep().unwrap();
            assert_eq!((content().as_deref(), entries()), (Some(next), 2));
            // It keeps its mode.
            let mode = if before.is_some() { 0o604 } else { 0o600 };
            assert_eq!(fs::metadata(place.path()).unwrap().mode() & 0o777, mode);
            fs::set_permissions(place.path(), fs::Permissions::from_mode(0o604)).unwrap();
        }
        assert!(fs::symlink_metadata(place.path().with_file_name("link")).unwrap().is_symlink());
    }
}

#[test]
fn what_cannot_be_replaced_is_written_as_it_is_and_not_emptied_before() {
    let place = Place::new(0o700, geteuid().as_raw());
    fs::write(place.path(), "a long text").unwrap();
    fs::hard_link(place.path(), place.path().with_file_name("other")).unwrap();
    drop(OutputFile::create(&place.path(), 0o600).unwrap());
    assert_eq!(fs::read_to_string(place.path()).unwrap(), "a long text");
    OutputFile::write_whole(&place.path(), 0o600, b"short").unwrap();
    assert_eq!(fs::read_to_string(place.path().with_file_name("other")).unwrap(), "short");

    let fifo = place.path().with_file_name("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read_to_string(fifo)
    });
    OutputFile::write_whole(&fifo, 0o600, b"to a reader").unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), "to a reader");
    OutputFile::write_whole(Path::new("/dev/null"), 0o600, b"nothing").unwrap();

    // As with `> FILE`: what is written goes behind what the program has written.
    let mut open = File::create(place.path().with_file_name("open")).unwrap();
    open.write_all(b"before ").unwrap();
    let name = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    OutputFile::write_whole(Path::new(&name), 0o600, b"and after").unwrap();
    assert_eq!(fs::read_to_string(place.path().with_file_name("open")).unwrap(), "before and after");
}

#[test]
fn a_pipe_without_a_reader_is_refused() {
    let place = Place::new(0o700, geteuid().as_raw());
    let link = place.path().with_file_name("link");
    mkfifo(&place.path(), Mode::S_IRWXU).unwrap();
    symlink("out", &link).unwrap();
    // One that had a reader when it was opened, as by a shell.
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(place.path()).unwrap();
    let writer = OpenOptions::new().write(true).open(place.path()).unwrap();
    drop(reader);
    let descriptor = PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)));
    for path in [place.path(), link, descriptor] {
        let error = open_within(&path, 0o600, Duration::ZERO).unwrap_err().to_string();
        assert_eq!(error, "it is a FIFO, and no program reads it", "{path:?}");
    }
    // What opens nothing for another reason is not waited for.
    let socket = place.path().with_file_name("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = open_within(&socket, 0o600, Duration::MAX).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_mounted_over_a_file_keeps_its_content_on_a_full_disk() {
    use std::process::Command;

    let place = Place::new(0o700, geteuid().as_raw());
    let disk = place.path().with_file_name("disk");
    fs::create_dir(&disk).unwrap();
    fs::write(place.path(), "").unwrap();
    let mount = |words: &[&str], on: &Path| {
        let status = Command::new("mount").args(words).arg(on).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other("mount(8) failed")) }
    };
    let file = disk.join("file");
    let prepare = || {
        mount(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"], &disk)?;
        fs::write(&file, "earlier")?;
        mount(&["--bind", file.to_str().unwrap()], &place.path())
    };
    weft_lab::mounts::run_separate(prepare, || {
        let content = || fs::read(place.path()).unwrap();
        let error = OutputFile::write_whole(&place.path(), 0o600, &[7; 128 << 10]).unwrap_err();
        assert_eq!((error.kind(), &content()[..]), (io::ErrorKind::StorageFull, &b"earlier"[..]));
        for new in [&b"a longer text than before"[..], b"short", b"", b"other"] {
            OutputFile::write_whole(&place.path(), 0o600, new).unwrap();
            assert_eq!((&content()[..], &fs::read(&file).unwrap()[..]), (new, new));
        }
        assert_eq!(fs::read_dir(place.path().parent().unwrap()).unwrap().count(), 2);
    });
}
